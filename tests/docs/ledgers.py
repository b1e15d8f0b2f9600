"""Ten small valid logs, each for what a run may have: the ledgers of docs/vectors/ledgers.json."""

from collections.abc import Callable
from dataclasses import replace

from manta_swarm.protocol.admission import INVITED, AdmissionRule
from manta_swarm.protocol.manifest import TravellingShards
from manta_swarm.protocol.private import PrivateData
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import AuditRules, Outcome, Verdict
from tests.claim_steps import steps_of
from tests.contributions import PEERS, claim_of, listing
from tests.docs.logs import AUDITORS, ONE, OPERATOR, SECRET, STRANGER, THREE, TWO, WIDE, Log, in_digest_order, log_of

FOUR, FIVE = PEERS[3:5]
GOOD, UNPAID, DEMOTED, VOID = Outcome
OTHER_SECRETS = Identity(b"\x22" * 32), Identity(b"\x23" * 32)
OPERATORS = (OPERATOR, *(Identity(bytes([seed]) * 32) for seed in (2, 4, 5)))
RULES = AuditRules(
    named=(AUDITORS[0].public_key,),
    proven=(ONE.public_key,),
    proven_after=2,
    audit_percent=60,
    newcomer_percent=100,
    kept_rounds=2,
    pending_rounds=5,
    pool_percent=10,
)
MADE: dict[str, Callable[[], Log]] = {}


def made(make: Callable[[], Log]) -> Callable[[], Log]:
    """Add a ledger."""
    MADE[make.__name__] = make
    return make


@made
def begun() -> Log:
    """A run without entries."""
    return log_of()


@made
def plain() -> Log:
    """Peers alone, one of whom names another account."""
    log = log_of(1)
    log.append(log.round([log.header(ONE, payout=STRANGER.public_key), log.header(TWO, payout=ONE.public_key), log.header(THREE)]))
    log.append(log.round([log.header(ONE), log.header(TWO, microbatches=(3, 3, 3, 3))], min_exponent=-33))
    return log


@made
def late() -> Log:
    """Work that counts in later rounds, and a claim of more samples than weigh."""
    log = log_of(num_rounds=6)
    works = [log.header(peer) for peer in (TWO, THREE, FOUR)]
    log.grow(peers=[ONE])
    log.append(log.round([log.header(ONE), works[0]]))
    log.grow(2, [ONE])
    log.append(log.round([log.header(ONE, microbatches=(300, 300, 300, 300)), works[1], works[2]]))
    return log


@made
def cohorts() -> Log:
    """A cohort, a member of another one that hands in alone, and the run's last round."""
    log = log_of(num_rounds=2)
    log.append(log.round([log.cohort((TWO, ONE, THREE)), log.header(FOUR, founder=FIVE.public_key)]))
    log.append(log.round([log.cohort((ONE, FIVE)), log.cohort((TWO, FOUR, THREE), cohort="there")]))
    return log


@made
def invited() -> Log:
    """Members, a guest and a key that is taken back, by invitations, of which one is taken back."""
    log = log_of(admission=AdmissionRule("invitation"))
    log.append([log.admission(ONE), log.admission(TWO), log.admission(THREE, secret=OTHER_SECRETS[0], keys=1, access="proven")])
    log.append([log.admission(FOUR, secret=OTHER_SECRETS[1], access="guest")])
    log.grow()
    log.append([log.revocation(TWO), log.revocation(SECRET, INVITED)])
    log.grow(2)
    log.grow(peers=[ONE, THREE])
    return log


@made
def listed() -> Log:
    """Keys that the manifest lists, of whom some hold a part of the shards, and four operators of whom three sign."""
    keys = tuple(sorted(each.public_key for each in (ONE, TWO)))
    log = log_of(
        admission=AdmissionRule("list", keys),
        shards=(TravellingShards(sha256(b"list"), 1000, 2**24, 8),),
        operators=tuple(each.public_key for each in OPERATORS),
        quorum=3,
    )
    log.append([log.revocation(TWO)])
    log.append(log.round([log.header(ONE), log.header(TWO, shards=7)]))
    return log


@made
def private() -> Log:
    """Images that stay with their peers: what a key earns in a round is capped."""
    log = log_of(data="private", private=(PrivateData(("cat", "dog"), 1, 25),))
    log.grow()
    log.grow(peers=[ONE])
    return log


@made
def sparse() -> Log:
    """Parts of the weights, two local steps, sparse bodies that leave residuals; updates that sort channels."""
    exchange = replace(WIDE, local_steps=2, codec="topk-256-4", first_min_exponent=-40)
    log = log_of(algorithm="model-parallel", schedule="shrinking", num_rounds=8, exchange=exchange)
    for round_ in range(3):
        left = sha256(b"left %d" % round_)
        log.append(
            log.round(
                [
                    log.cohort((ONE, TWO), cohort="here.size-1", left=left, residual=sha256(b"old %d" % round_)),
                    log.header(THREE, cohort="there", left=left),
                ]
            )
        )
    return log


@made
def audited() -> Log:
    """One auditor: a newcomer becomes proven, rounds are paid later, a key falls; the settlement pays the rest."""
    log = log_of(audits=(RULES,), num_rounds=9)
    while not log.ledger.finished:
        round_, waiting = log.ledger.round, list[Signed[Verdict]]()
        for peer in (ONE, TWO):
            waiting += [log.verdict(peer)] if is_drawn(log, peer) else []
        if is_drawn(log, THREE, round_ - 2):
            waiting.append(log.verdict(THREE, DEMOTED, round=round_ - 2))
        log.append(log.round([log.header(ONE, payout=FIVE.public_key), log.header(TWO), log.header(THREE)], waiting))
    last = [log.verdict(TWO)] if is_drawn(log, TWO) else []
    log.append([*in_digest_order(last), log.settlement()])
    return log


@made
def accused() -> Log:
    """Three auditors, two local steps: members drop out; verdicts by others' work, of several auditors, against a claim."""
    rules = replace(
        RULES, named=tuple(each.public_key for each in AUDITORS), proven=tuple(sorted((ONE.public_key, TWO.public_key))), audit_percent=100
    )
    log = log_of(audits=(rules,), num_rounds=8, exchange=replace(WIDE, local_steps=2))
    while not log.ledger.finished:
        verdicts, newest = list[Signed[Verdict]](), log.ledger.round - 1
        if log.ledger.round % 3 == 2:  # the auditor drawn and another one, against one claim each
            drawn, other, _ = in_turn(log, newest)
            verdicts = [log.verdict(ONE, GOOD, GOOD, VOID, auditor=drawn), log.verdict(ONE, GOOD, VOID, VOID, auditor=other)]
        elif log.ledger.round % 3 == 0 and newest > 0:  # a third one, when the time to bring is over; and one by the work of a proven key
            (drawn, *_), (*_, third) = in_turn(log, newest), in_turn(log, newest - 1)
            verdicts = [
                log.verdict(ONE, auditor=drawn, by=FIVE.public_key if is_proven(log, FIVE) else drawn.public_key),
                log.verdict(ONE, GOOD, UNPAID, DEMOTED, auditor=third, round=newest - 1),
            ]
        if is_drawn(log, FIVE):
            verdicts += [log.verdict(FIVE)]
        twice = [log.header(TWO)] if log.ledger.round == 4 else []  # it stands in a cohort's, too: it is paid once
        log.append(log.round([together(log), log.header(FIVE), *twice], verdicts))
    log.append([log.settlement()])
    return log


def in_turn(log: Log, round: int, peer: Identity = ONE) -> tuple[Identity, ...]:
    """Return the auditor drawn for what lists a peer's claim in a round, and then the others."""
    drawn = log.audit(peer, round).auditor
    return tuple(sorted(AUDITORS, key=lambda each: each.public_key != drawn))


def is_drawn(log: Log, peer: Identity, round: int | None = None) -> bool:
    """Return whether what lists a peer's claim in a round is drawn, and not judged yet."""
    try:
        return not log.audit(peer, round).verdicts
    except StopIteration:
        return False


def is_proven(log: Log, peer: Identity) -> bool:
    return log.ledger.reputation.is_proven(peer.public_key)


def together(log: Log) -> Header:
    """Return what a cohort of two local steps hands in of which one member dropped out after the first."""
    base, microbatches = log.ledger.last_commit, log.microbatches()
    short = tuple(microbatches_ // 2 for microbatches_ in microbatches)
    claims = [claim_of(log.ledger, peer, founder=ONE.public_key, microbatches=microbatches) for peer in (ONE, TWO)]
    steps = steps_of(short, base, THREE.public_key, steps=1)
    return listing([*claims, claim_of(log.ledger, THREE, founder=ONE.public_key, microbatches=short, steps=steps)], ONE)
