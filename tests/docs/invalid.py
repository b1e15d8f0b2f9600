"""A hundred invalid logs, each of which one rule of docs/protocol.md refuses: the ledgers of docs/vectors/invalid.json.

Each begins with entries of a valid one (``tests.docs.ledgers``); of what follows all but the last entry holds. Or its manifest is refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from manta_swarm.protocol.admission import INVITED, Admission, Invitation
from manta_swarm.protocol.encoding import decode, encode, pack
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Claim, ClaimStep, Header, StepMean, Threshold, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Outcome, Verdict
from tests.contributions import header_of, with_contribution
from tests.docs.ledgers import FIVE, FOUR, MADE, RULES, in_turn, is_drawn, together
from tests.docs.logs import AUDITORS, ONE, OPERATOR, SECRET, STRANGER, THREE, TWO, WIDE, Entries, Log, in_digest_order, log_of, resigned

GOOD, UNPAID, DEMOTED, VOID = Outcome
ANOTHER = sha256(b"another")
NO_KEY = bytes(32)


@dataclass(frozen=True)
class Invalid:
    """A log that is refused."""

    name: str
    rule: str
    signed: SignedManifest
    ledger: str  # the valid one that it begins as; empty: none
    kept: int  # entries of it
    then: Entries  # the last one is refused; none: the manifest is


_Made = Callable[[Log], Entries]
_ALONE: list[tuple[str, str, Callable[[], tuple[Log, Entries]]]] = []
_CASES: list[tuple[str, str, str, int | None, _Made]] = []


def case(rule: str, ledger: str, until: int | None = None) -> Callable[[_Made], _Made]:
    """Add a case that goes on from the first entries of a valid ledger."""

    def add(make: _Made) -> _Made:
        _CASES.append((make.__name__.replace("_", " "), rule, ledger, until, make))
        return make

    return add


def cases(rule: str, ledger: str, until: int | None = None, **made: _Made) -> None:
    """Add cases of one rule, each by its name."""
    for name, make in made.items():
        _CASES.append((name.replace("_", " "), rule, ledger, until, make))


def alone(rule: str) -> Callable[[Callable[[], tuple[Log, Entries]]], None]:
    """Add a case that goes on from no other ledger."""
    return lambda make: _ALONE.append((make.__name__.replace("_", " "), rule, make))


def of(*headers: Header) -> Entries:
    """Return the entries of contributions."""
    return list(map(entry_of, headers))


def with_fields(log: Log, place: int, value: object) -> Entries:
    """Return the entry of a contribution of ONE whose only claim has another field, whatever it is."""
    fields: list[Any] = list(decode(log.header().claims[0].payload, max_bytes=4000))  # type: ignore[arg-type]
    fields[place : place + 1] = [] if value is None else [value]
    return with_payload(log, encode(tuple(fields)))


def with_payload(log: Log, payload: bytes) -> Entries:
    """Return the entry of a contribution of ONE whose only claim has these bytes."""
    claim = Signed(Claim, payload, ONE.sign("claim", payload))
    return of(with_contribution(replace(log.header(), claims=(claim,)), ONE, claims=(claim.digest,)))


def last_changed(entries: Entries, old: bytes, new: bytes) -> Entries:
    """Return entries of whose last one some bytes are others."""
    assert entries[-1].count(old) == 1
    return [*entries[:-1], entries[-1].replace(old, new)]


# Encoding and signatures.

cases(
    "B1",
    "plain",
    an_entry_is_a_map=lambda log: [b"\xa0"],
    an_entry_has_no_stated_length=lambda log: [b"\x9f\xff"],
    an_entry_is_nested_too_deep=lambda log: [b"\x81" * 9 + b"\0"],
    a_number_has_more_than_63_bits=lambda log: [b"\x82\x65round\x1b" + b"\xff" * 8],
)
cases(
    "B2",
    "plain",
    a_byte_follows_an_entry=lambda log: [of(log.header())[0] + b"\0"],
    a_length_is_not_in_its_shortest_form=lambda log: [b"\x98\x02" + of(log.header())[0][1:]],
    a_byte_follows_a_claim=lambda log: with_payload(log, log.header().claims[0].payload + b"\0"),
)
cases(
    "B3",
    "plain",
    a_claim_lacks_a_field=lambda log: with_fields(log, 13, None),
    a_microbatch_takes_no_time=lambda log: with_fields(log, 11, 0),
    a_min_exponent_is_beyond_its_range=lambda log: last_changed(
        log.round([log.header()], min_exponent=-34, open_ms=60_000), b"\x38\x21\x19\xea\x60", b"\x38\xc8\x19\xea\x60"
    ),
    thresholds_are_not_sorted=lambda log: last_changed(
        log.round([log.header()], thresholds=(Threshold(0, 1, 1), Threshold(1, 1, 1))),
        encode((0, 1, 1)) + encode((1, 1, 1)),
        encode((1, 1, 1)) + encode((0, 1, 1)),
    ),
)
cases(
    "S1",
    "plain",
    an_account_is_a_point_of_low_order=lambda log: with_fields(log, 4, NO_KEY),
    an_account_is_not_in_its_one_form=lambda log: with_fields(log, 4, (2**255 - 18).to_bytes(32, "little")),
    a_key_is_one_that_fits_any_signature=lambda log: of(resigned(log.header(), ONE, key=NO_KEY)),
)
cases(
    "S2",
    "plain",
    a_claim_is_signed_by_another_key=lambda log: of(resigned(log.header(), TWO)),
    a_contribution_is_signed_by_another_key=lambda log: of(with_contribution(log.header(), TWO)),
)


@case("S2", "plain")
def a_claim_is_signed_for_another_version(log: Log) -> Entries:
    payload = log.header().claims[0].payload
    claim = Signed(Claim, payload, ONE._private.sign(b"manta/claim/v11\n" + payload))
    return of(with_contribution(replace(log.header(), claims=(claim,)), ONE, claims=(claim.digest,)))


@case("S2", "accused", 6)
def a_verdict_is_signed_as_a_claim(log: Log) -> Entries:
    payload = log.verdict(FIVE).payload
    return [entry_of(Signed(Verdict, payload, in_turn(log, 1, FIVE)[0].sign("claim", payload)))]


cases(
    "S2",
    "invited",
    0,
    who_has_not_the_secret_admits=lambda log: [admitted(log, secret=STRANGER)],
    another_key_signs_for_the_operator=lambda log: [admitted(log, signer=STRANGER)],
)


def admitted(log: Log, *, secret: Identity = SECRET, signer: Identity = OPERATOR) -> bytes:
    """Return the entry of an admission of ONE's: by SECRET's invitation of OPERATOR's, whoever signs."""
    payload = pack(Invitation(log.ledger.run, OPERATOR.public_key, SECRET.public_key, 8, 9, "member"))
    invitation = Signed(Invitation, payload, signer.sign("invitation", payload))
    return entry_of(Signed.sign(Admission(invitation, ONE.public_key), secret))


# Kinds and order.

cases(
    "E1",
    "plain",
    an_entry_is_of_no_known_kind=lambda log: [pack_entry("finding", entry_of(log.header()))],
    a_contribution_is_of_another_run=lambda log: of(with_contribution(log.header(), ONE, run=ANOTHER)),
)
cases("E1", "accused", 6, a_verdict_is_of_another_run=lambda log: [entry_of(log.verdict(FIVE, run=ANOTHER))])
cases("E1", "invited", 0, a_revocation_is_of_another_run=lambda log: [log.revocation(ONE, run=ANOTHER)])
cases(
    "E2",
    "plain",
    a_round_has_no_contributions=lambda log: log.round([log.header()])[-1:],
    an_unaudited_run_is_settled=lambda log: [log.settlement()],
)
cases("E2", "invited", 0, an_admission_follows_a_contribution=lambda log: [log.admission(ONE), entry_of(log.header()), log.admission(TWO)])
cases("E2", "cohorts", a_contribution_follows_the_last_round=lambda log: [entry_of(log.until(3).header())])
cases("E2", "accused", 6, a_verdict_follows_a_contribution=lambda log: [entry_of(together(log)), entry_of(log.verdict(FIVE))])
cases("E2", "audited", a_run_is_settled_twice=lambda log: [log.settlement()])
cases("E2", "audited", -1, an_audited_run_goes_on_after_its_last_round=lambda log: [entry_of(log.until(44).header())])


def pack_entry(kind: str, entry: bytes) -> bytes:
    """Return an entry whose body is another one's under another kind."""
    value = decode(entry, max_bytes=2**16)
    assert isinstance(value, tuple)
    return encode((kind, value[1]))


# Who is in.

cases("E3", "plain", somebody_is_admitted_to_an_open_run=lambda log: [log.admission(STRANGER)])
cases("E3", "listed", somebody_is_invited_to_a_run_with_a_list=lambda log: [log.admission(STRANGER)])
cases(
    "E4",
    "invited",
    0,
    a_stranger_invites=lambda log: [log.admission(ONE, operator=STRANGER)],
    an_invitation_was_taken_back=lambda log: [log.revocation(SECRET, INVITED), log.admission(ONE)],
    an_invitation_is_used_up=lambda log: [log.admission(ONE, keys=1), log.admission(TWO, keys=1)],
)
cases("E4", "invited", an_invitation_has_ended=lambda log: [log.admission(STRANGER, secret=STRANGER, until_round=4)])
cases(
    "E5",
    "invited",
    an_admitted_key_is_in=lambda log: [log.admission(ONE, secret=STRANGER)],
    an_admitted_key_was_taken_back=lambda log: [log.admission(TWO, secret=STRANGER)],
)
cases(
    "E6",
    "invited",
    a_stranger_takes_a_key_back=lambda log: [log.revocation(ONE, operator=STRANGER)],
    a_key_is_taken_back_that_is_not_in=lambda log: [log.revocation(STRANGER)],
    an_operator_is_taken_back=lambda log: [log.revocation(OPERATOR)],
    an_invitation_is_taken_back_twice=lambda log: [log.revocation(SECRET, INVITED)],
)

# Verdicts.


def verdict(log: Log, auditor: Identity, contribution: bytes, round_: int, *outcomes: Outcome, **changes: Any) -> Entries:
    """Return the entry of a verdict, whether or not there is such an audit."""
    said = Verdict(log.ledger.run, auditor.public_key, round_, contribution, tuple(map(int, outcomes or (GOOD,))), auditor.public_key)
    return [entry_of(Signed.sign(replace(said, **changes), auditor))]


def listed(log: Log, peer: Identity, round_: int) -> bytes:
    """Return the digest of the contribution of a round that lists a peer's claim."""
    return next(one.contribution for one in log.ledger.table_at(round_) or () if peer.public_key in one.keys)


def not_drawn(log: Log) -> Entries:
    """Return a verdict on a contribution with a beacon that was not drawn."""
    round_ = log.ledger.round - 1
    peer = next(peer for peer in (ONE, TWO, THREE) if not is_drawn(log, peer))
    return verdict(log, AUDITORS[0], listed(log, peer, round_), round_)


cases("E7", "plain", a_verdict_stands_in_an_unaudited_run=lambda log: verdict(log, AUDITORS[0], listed(log, ONE, 2), 2))
cases("E7", "accused", 6, who_judges_is_not_named=lambda log: [entry_of(log.verdict(FIVE, auditor=STRANGER))])
cases(
    "E8",
    "audited",
    8,
    a_verdict_is_on_a_round_without_a_beacon=lambda log: verdict(log, AUDITORS[0], listed(log, ONE, 2), 2),
    a_contribution_was_not_drawn=not_drawn,
)
cases("E8", "accused", 6, a_verdict_names_another_round=lambda log: verdict(log, AUDITORS[0], log.audit(FIVE).work.contribution, 2))


@case("E8", "accused", -1)
def a_contribution_is_paid(log: Log) -> Entries:
    return verdict(log, AUDITORS[0], log.until(6).audit(FIVE).work.contribution, 1)


@case("E9", "accused", -1)
def an_auditor_judges_a_contribution_twice(log: Log) -> Entries:
    audit = next(audit for audit in log.ledger.reputation.audits.values() if audit.verdicts)
    auditor = next(each for each in AUDITORS if each.public_key == audit.verdicts[0].auditor)
    return verdict(log, auditor, audit.work.contribution, audit.round, *(VOID for _ in audit.work.keys))


@case("E9", "accused", 6)
def verdicts_are_not_sorted(log: Log) -> Entries:
    return in_digest_order([log.verdict(ONE), log.verdict(FIVE)])[::-1]


cases("E10", "accused", 6, a_verdict_has_too_few_outcomes=lambda log: [entry_of(log.verdict(ONE, GOOD, GOOD))])
cases("E11", "accused", 6, nothing_may_be_missed_yet=lambda log: [entry_of(log.verdict(FIVE, UNPAID))])


@case("E12", "accused", 6)
def something_is_taken_away_by_anothers_work(log: Log) -> Entries:
    audit, auditor = log.audit(FIVE), AUDITORS[0]
    payload = encode((log.ledger.run, auditor.public_key, audit.round, audit.work.contribution, (int(VOID),), ONE.public_key))
    return [entry_of(Signed(Verdict, payload, auditor.sign("verdict", payload)))]


cases(
    "E12",
    "accused",
    6,
    a_member_says_that_its_own_contribution_is_good=lambda log: [entry_of(log.verdict(ONE, by=ONE.public_key))],
    who_says_that_all_is_good_is_not_proven=lambda log: [entry_of(log.verdict(FIVE, by=THREE.public_key))],
)

# Contributions.

cases("E13", "late", 5, a_contribution_has_a_wrong_base=lambda log: of(log.header(base=ANOTHER)))
cases("E13", "late", a_base_is_five_commits_old=lambda log: of(log.until(0).header(FIVE)))


@case("E14", "sparse")
def channels_were_sorted_since_the_base(log: Log) -> Entries:
    entries = list[bytes]()
    while True:  # rounds until the update that ends the newest one sorts channels
        before, round_ = log.until(), log.round([log.header(THREE, cohort="there")])
        log.append(round_)
        entries += round_
        if log.ledger.training_spec.sorts_after(log.ledger.round):
            return [*entries, entry_of(before.header(FOUR, cohort="there"))]


cases(
    "E15",
    "cohorts",
    0,
    a_contribution_lists_another_claim=lambda log: of(with_contribution(log.header(), ONE, claims=(ANOTHER,))),
    a_claim_comes_that_is_not_listed=lambda log: of(
        replace(log.cohort((ONE, TWO)), contribution=log.header(founder=ONE.public_key).contribution)
    ),
)


def relisted(log: Log, *places: int) -> Entries:
    """Return the entry of a contribution of ONE's that lists these claims of a cohort's three."""
    header = log.cohort()
    claims = tuple(header.claims[place] for place in places)
    steps = (StepMean(ANOTHER, (1 << len(places)) - 1),)
    listing_ = {"claims": tuple(each.digest for each in claims), "included": (1 << len(places)) - 1, "steps": steps}
    return of(with_contribution(replace(header, claims=claims), ONE, **listing_))


cases("E16", "cohorts", 0, claims_are_not_sorted=lambda log: relisted(log, 1, 0), a_founder_has_no_claim=lambda log: relisted(log, 1, 2))
cases(
    "E17",
    "cohorts",
    3,
    a_claim_is_of_another_cohort=lambda log: of(resigned(log.cohort(), TWO, 1, cohort="there")),
    a_claim_names_another_founder=lambda log: of(resigned(log.cohort(), TWO, 1, founder=TWO.public_key)),
    a_claim_is_on_another_base=lambda log: of(resigned(log.cohort(), TWO, 1, round=1, base=log.ledger.run)),
)
cases("E18", "invited", 4, nobody_let_a_key_in=lambda log: of(log.header(FIVE)), a_guest_trains=lambda log: of(log.header(FOUR)))
cases("E18", "invited", a_key_was_taken_back_two_rounds_ago=lambda log: of(log.header(TWO)))


def gives_nothing(log: Log) -> Entries:
    """Return the entry of a contribution of ONE alone that gives no vector of its microbatches."""
    return of(log.header(steps=(ClaimStep(0, 3, (), ANOTHER),), microbatches=(1,) * 4, given=b""))


def of_fields(log: Log, place: int, change: Callable[[Any], Any]) -> Entries:
    """Return the entry of a contribution of ONE alone, a field of whose claim is changed."""
    fields = list(decode(log.header(given=ANOTHER).claims[0].payload, max_bytes=4000))  # type: ignore[arg-type]
    fields[place] = change(fields[place])
    return with_payload(log, encode(tuple(fields)))


cases("E19", "plain", a_claim_gives_nothing=gives_nothing)
cases("E19", "accused", 6, a_founder_dropped_out=gives_nothing)


@case("E19", "accused", 6)
def who_dropped_out_gives_a_vector(log: Log) -> Entries:
    place = [claim.open().key for claim in together(log).claims].index(THREE.public_key)
    return of(resigned(together(log), THREE, place, given=ANOTHER))


cases(
    "E20",
    "accused",
    6,
    steps_are_out_of_order=lambda log: of_fields(log, 7, lambda steps: steps[::-1]),
    a_step_skips_its_last_microbatch=lambda log: of_fields(log, 7, lambda steps: ((0, 4, (4,), ANOTHER, 1), steps[1])),
)
cases(
    "E20",
    "plain",
    a_claim_counts_other_architectures=lambda log: of(log.header(microbatches=(1, 1, 1, 1, 1))),
    a_claim_counts_microbatches_that_its_indices_are_not_of=lambda log: of(
        log.header(steps=(ClaimStep(0, 3, (), NO_KEY),), microbatches=(2, 0, 1, 1))
    ),
)
cases("E21", "plain", a_claim_has_too_many_samples=lambda log: of(log.header(microbatches=(2**15,) * 4)))
cases("E21", "plain", who_has_both_views_names_a_partner=lambda log: of(log.header(partner=TWO.public_key)))
cases("E21", "listed", a_part_is_all_shards=lambda log: of(log.header(ONE, shards=8)))
cases(
    "E22",
    "plain",
    a_dense_body_leaves_a_residual=lambda log: of(log.header(left=ANOTHER)),
    a_residual_is_added_to_a_dense_body=lambda log: of(log.header(residual=ANOTHER)),
)
cases(
    "E23",
    "plain",
    work_on_a_base_counts_again=lambda log: of(log.header(round=log.ledger.round, microbatch_ms=11)),
    a_key_stands_twice_in_a_round=lambda log: of(log.cohort((ONE, TWO)), log.header(TWO)),
)


cases("E24", "plain", a_claim_is_not_in_the_body=lambda log: of(with_contribution(log.cohort((ONE, TWO)), ONE, included=bit(log, ONE))))
cases(
    "E24",
    "accused",
    6,
    the_founder_is_not_in_the_body=lambda log: of(with_contribution(together(log), ONE, included=bit(log, TWO, 3))),
    who_dropped_out_is_in_the_body=lambda log: of(with_contribution(together(log), ONE, included=7)),
)


def bit(log: Log, peer: Identity, count: int = 2) -> int:
    """Return the bit of a peer's claim among those of the first so many peers."""
    return 1 << sorted(each.public_key for each in (ONE, TWO, THREE)[:count]).index(peer.public_key)


cases("E25", "plain", contributions_are_not_sorted_by_founder=lambda log: of(log.header(TWO), log.header(ONE)))


@alone("E25")
def a_round_has_more_contributions_than_max_rows() -> tuple[Log, Entries]:
    log = log_of(exchange=replace(WIDE, max_rows=2))
    return log, of(*(log.header(peer) for peer in (ONE, TWO, THREE)))


# Rounds and settlements.

cases("E26", "plain", a_round_has_another_base=lambda log: log.round([log.header()], base=log.ledger.commit_at(2)))
cases("E27", "plain", a_round_names_other_places=lambda log: log.round([log.header(ONE)], first=log.ledger.size + 1))
cases(
    "E28",
    "plain",
    the_min_exponent_jumps=lambda log: log.round([log.header()], min_exponent=log.ledger.min_exponent_at(log.ledger.round) + 2),
)
cases("E29", "plain", the_next_round_is_open_for_too_long=lambda log: log.round([log.header()], open_ms=WIDE.max_open_ms + 1))
cases("E30", "audited", -1, a_settlement_is_on_another_commit=lambda log: [log.settlement(commit=log.ledger.commit_at(3))])


@alone("E31")
def an_architecture_has_no_price() -> tuple[Log, Entries]:
    log = log_of(costs=log_of().ledger.manifest.costs[:-1])
    return log, of(header_of(log.ledger, ONE, microbatches=(1, 1, 1, 1)))


# Manifests.


def manifests() -> Iterator[tuple[str, str, SignedManifest]]:
    """Yield name, rule and manifest of what no run may be."""
    manifest, signed = log_of().ledger.manifest, log_of().signed

    def made(rule: str, name: str, **fields: Any) -> tuple[str, str, SignedManifest]:
        """Return the manifest with other fields, by their places, whatever they are."""
        values = list(decode(signed.payload, max_bytes=2**20))  # type: ignore[arg-type]
        for place, value in fields.items():
            values[int(place[1:])] = value
        payload = encode(tuple(values))
        return name, rule, SignedManifest(payload, OPERATOR.sign("manifest", payload))

    yield "a manifest is of another version", "M1", replace(signed, protocol=signed.protocol + 1)
    yield "a manifest is for another program", "M1", replace(signed, program="0.2.0")
    yield "another key signed a manifest", "S2", SignedManifest.sign(manifest, STRANGER)
    yield made("M2", "a quorum is more than the operators", _23=2)
    yield made("M2", "private data have cohorts by affinity", _16="affinity", _17="private", _18=((("cat", "dog"), 1, 25),))
    rules: Any = decode(pack(RULES), max_bytes=4000)
    yield made("M2", "a round is paid before it can be judged", _21=((*rules[:6], 4, *rules[7:]),))


def invalid() -> Iterator[Invalid]:
    """Yield the hundred."""
    logs = {name: make() for name, make in MADE.items()}
    for name, rule, ledger, until, continued in _CASES:
        log = logs[ledger].until(until)
        yield Invalid(name, rule, log.signed, ledger, len(log.entries), continued(log))
    for name, rule, made in _ALONE:
        log, then = made()
        yield Invalid(name, rule, log.signed, "", 0, then)
    for name, rule, signed in manifests():
        yield Invalid(name, rule, signed, "", 0, [])
