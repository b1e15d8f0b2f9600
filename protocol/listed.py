"""What may stand in a table, what stands in the log after the newest round's entry, and which residuals claims may name.

A claim may name a residual that a contribution, listed not long before it, left to its key. The log takes any digest; an audit looks for
that contribution. A peer adds the residual that it was left last, so it always finds one. A residual that was spent already is found as
well: that is no more than what coding left once before.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from manta_swarm.protocol.admission import Admission, Revocation
from manta_swarm.protocol.errors import ClaimError, LedgerError
from manta_swarm.protocol.exchange import Exchange, codec_named, next_open_ms
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.microbatches import work_of
from manta_swarm.protocol.records import Claim, Contribution, Header, Round
from manta_swarm.protocol.reputation import PayableWork
from manta_swarm.protocol.rewards import TrainingSpec, capped_samples, reward_weight, weighing_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Digest
from manta_swarm.protocol.table import Weighed, Weighing
from manta_swarm.protocol.verdicts import Settlement, Verdict

NO_RESIDUALS = "a residual in a run whose bodies leave none"

RESIDUAL_ROUNDS = 32  # a residual is added to work on the bases of so many rounds after the table that left it, and then forgotten


@dataclass(frozen=True, slots=True)
class Listed:
    """A contribution that may stand in a table, as far as the rules need it."""

    contribution: bytes  # Signed[Contribution].digest
    founder: bytes
    body: bytes  # root over its groups
    weighing: Weighing
    round: int  # the round after its base
    cohort: str  # the name that all of its claims have
    keys: tuple[bytes, ...]  # of its claims, in order
    payouts: tuple[bytes, ...]  # the accounts that they name
    claims: tuple[bytes, ...]  # their digests
    counted: int  # samples, uncapped
    microbatches_ms: tuple[int, ...]  # one a claim
    samples: tuple[int, ...]  # of each claim, that weigh in the mean; 0: it is listed unpaid
    weights: tuple[int, ...]  # what each claim weighs in the pay; 0: likewise
    proven: tuple[bool, ...]  # which of the keys are proven

    @property
    def by_key(self) -> Mapping[bytes, bytes]:
        """The digests of its claims, by their keys."""
        return dict(zip(self.keys, self.claims, strict=True))

    @property
    def work(self) -> PayableWork:
        """What audits and pay need to know of the contribution."""
        return PayableWork(self.contribution, self.keys, self.payouts, self.weights, self.counted, self.proven)

    def without_pay(self, keys: Collection[bytes]) -> "Listed":
        """Return the same, with the claims of these keys listed unpaid: neither the pay nor the mean's weights count them."""
        if not keys:
            return self
        samples, weights = (
            tuple(0 if key in keys else one for key, one in zip(self.keys, of, strict=True)) for of in (self.samples, self.weights)
        )
        unproven = sum(each for each, proven in zip(samples, self.proven, strict=True) if not proven)
        return replace(self, samples=samples, weights=weights, weighing=replace(self.weighing, samples=sum(samples), unproven=unproven))


@dataclass(slots=True)
class RoundContents:
    """What stands in the log before the entry of a round, and after that of the round before it."""

    verdicts: list[tuple[bytes, Verdict]] = field(default_factory=list)  # digest, opened
    listed: list[Listed] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)  # of their claims

    def copy(self) -> "RoundContents":
        return RoundContents(list(self.verdicts), list(self.listed), set(self.keys))


@dataclass(frozen=True, slots=True)
class TakenRound:
    """A round that a ledger has taken: another ledger in the state before it takes it without looking at each entry again."""

    entry: Round
    commit: Digest  # its digest
    index: int  # its place in the log
    contents: RoundContents

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts that stand before its contributions."""
        return [verdict for _, verdict in self.contents.verdicts]


@dataclass(frozen=True, slots=True)
class Settled:
    """The settlement that ends an audited run, which a ledger has taken."""

    entry: Settlement
    index: int  # its place in the log
    verdicts: Sequence[Verdict]  # that stand before it


Step = TakenRound | Settled | Signed[Admission] | Signed[Revocation]


def listed_in(
    manifest: Manifest,
    training_spec: TrainingSpec,
    proven: Sequence[bool],
    digest: bytes,
    contribution: Contribution,
    claims: Sequence[Claim],
    round: int,
    unpaid: Collection[bytes] = (),
) -> Listed:
    """Return a contribution of these claims, of that digest, as the table of ``round`` has it.

    ``proven`` says which of the claims' keys are. The claims of the keys that are ``unpaid`` are listed so.
    """
    listed = Listed(
        contribution=digest,
        founder=contribution.founder,
        body=contribution.body,
        weighing=weighing_of(manifest, training_spec, contribution, claims, round, proven),
        round=contribution.round,
        cohort=claims[0].cohort,
        keys=tuple(claim.key for claim in claims),
        payouts=tuple(claim.payout for claim in claims),
        claims=contribution.claims,
        counted=sum(claim.microbatches for claim in claims) * manifest.microbatch_samples,
        microbatches_ms=tuple(claim.microbatch_ms for claim in claims),
        samples=tuple(capped_samples(manifest, claim) for claim in claims),
        weights=tuple(reward_weight(manifest, training_spec, claim) for claim in claims),
        proven=tuple(proven),
    )
    return listed.without_pay(unpaid)


def paid_once(listed: Sequence[Listed]) -> list[Listed]:
    """Return a round's contributions, in order, with each key paid in one of them: in its own where it is a founder, else in the first.

    In a run whose local steps are not audited no key has two.
    """
    founders, before, found = {one.founder for one in listed}, set[bytes](), list[Listed]()
    for one in listed:
        found.append(one.without_pay([key for key in one.keys if key != one.founder and (key in founders or key in before)]))
        before.update(one.keys)
    return found


def open_ms_after(exchange: Exchange, open_ms: int, listed: Sequence[Listed]) -> int:
    """Return how long the round after a table of these should be open, which was open for ``open_ms`` itself."""
    return next_open_ms(
        exchange, open_ms, sum(one.counted for one in listed), [microbatch_ms for one in listed for microbatch_ms in one.microbatches_ms]
    )


def work_fault(manifest: Manifest, training_spec: TrainingSpec, claim: Claim) -> str | None:
    """Return why a claim says more, or other work than a run may have of one key on one base; None: it does not."""
    exchange = manifest.exchange
    may_be_fewer = manifest.is_audited and claim.founder != claim.key  # it dropped out, which its cohort pays up to there
    if not (1 if may_be_fewer else exchange.local_steps) <= len(claim.steps) <= exchange.local_steps:
        return f"a claim of {len(claim.steps)} local steps in a run of {exchange.local_steps}"
    if bool(claim.given) != (len(claim.steps) == exchange.local_steps) and (claim.given or not may_be_fewer):
        return "it gives a vector for the body with all local steps, and only with all"
    return trained_fault(manifest, training_spec, claim)


def trained_fault(manifest: Manifest, training_spec: TrainingSpec, claim: Claim) -> str | None:
    """Return why a claim, up to whichever step, says what none may of what was trained; None: it does not."""
    exchange, microbatches = manifest.exchange, claim.microbatches
    if len(claim.work) != len(training_spec.costs(claim.round, claim.cohort)):
        return f"round {claim.round} does not ask for {len(claim.work)} architectures"
    if any(step.every not in (1, len(claim.work)) for step in claim.steps):
        return "indices that are of some of its architectures only"
    if claim.work != work_of(len(claim.work), claim.base, claim.key, claim.steps):
        return "it counts other microbatches of its architectures than its indices are of"
    if claim.shards and claim.shards >= manifest.train_shards:
        return f"microbatches of {claim.shards} of the {manifest.train_shards} shards that travel"
    if claim.partner and manifest.task != "stereo":
        return "it names who had the other view, in a run whose samples have one"
    if claim.residual and not codec_named(exchange.codec).is_sparse:
        return NO_RESIDUALS
    if microbatches * manifest.microbatch_samples > exchange.max_claim_samples:
        return f"{microbatches * manifest.microbatch_samples} samples where a claim has at most {exchange.max_claim_samples}"
    return None


def check_list(contribution: Contribution, claims: Sequence[tuple[bytes, Claim]]) -> None:
    """Check that a contribution may list just these claims, each with its digest, whatever each of them says of its work.

    Raises:
        LedgerError: it may not, whichever claims it lists.
        ClaimError: some of its claims may not stand there.
    """
    opened = [claim for _, claim in claims]
    if contribution.claims != tuple(digest for digest, _ in claims):
        raise LedgerError("a contribution of other claims than those that come with it")
    keys = [claim.key for claim in opened]
    own = next((claim for claim in opened if claim.key == contribution.founder), None)
    if own is None or keys != sorted(set(keys)):
        raise LedgerError("the claims are not sorted by key, or the founder has none")
    others = tuple(claim.key for claim in opened if not _is_of(contribution, own, claim))
    if others:
        raise ClaimError("a claim on another base, or of another cohort, than its contribution's", others)


def check_steps(manifest: Manifest, contribution: Contribution, claims: Sequence[Claim]) -> None:
    """Check that a contribution of these claims names the mean of each step, and who counted in it and in the body.

    Raises:
        LedgerError: it does not; or its founder, or a claim alone, gives nothing for the body.
    """
    steps, every = manifest.exchange.local_steps, (1 << len(claims)) - 1
    own = sum(1 << place for place, claim in enumerate(claims) if claim.key == contribution.founder)
    giving = sum(1 << place for place, claim in enumerate(claims) if claim.given)
    if len(contribution.steps) != steps:
        raise LedgerError(f"the means of {len(contribution.steps)} local steps in a run of {steps}")
    for number, step in enumerate(contribution.steps):
        if step.included != sum(1 << place for place, claim in enumerate(claims) if len(claim.steps) > number):
            raise LedgerError(f"in step {number} others counted than have claimed it")
    if not own & contribution.included or contribution.included & ~giving:
        raise LedgerError("a body without its founder, or with a claim that gives nothing for it")
    if contribution.included != every and not manifest.audits_steps:
        raise LedgerError("a claim that is not in the body")


def _is_of(contribution: Contribution, own: Claim, claim: Claim) -> bool:
    """May a contribution list a claim: it is on its base, and consents to the founder, or is the founder's ``own`` one and alone."""
    same = (claim.run, claim.round, claim.base, claim.cohort) == (contribution.run, contribution.round, contribution.base, own.cohort)
    return same and (claim.founder == contribution.founder or (claim is own and len(contribution.claims) == 1))


def weighed_in(listed: Sequence[Listed], weights: Sequence[int], clipped: Sequence[int]) -> tuple[Weighed, ...]:
    """Return what a table's contributions weigh in the mean, as ``codec.mean`` has it."""
    return tuple(Weighed(one.body, one.round, one.cohort, weight, less) for one, weight, less in zip(listed, weights, clipped, strict=True))


def is_added(left: int, newest: int, sorts_after: Callable[[int], bool]) -> bool:
    """Return whether the residual that the table of ``left`` left is still added to what is signed after the commit of ``newest``."""
    return newest - left <= RESIDUAL_ROUNDS and not any(sorts_after(round_) for round_ in range(left, newest + 1))


def was_left(claim: Claim, round: int, sorts_after: Callable[[int], bool], left_by: Callable[[int], Mapping[bytes, bytes]]) -> bool:
    """Return whether the residual that a claim in the table of ``round`` names was left to its key; True where it names none.

    Args:
        claim: what it says.
        round: whose table has it.
        sorts_after: whether the update that ends a round reorders the weights.
        left_by: returns the residual that the table of a round left to each key with a claim in it.
    """
    if not claim.residual:
        return True
    for before in range(round - 1, max(0, claim.round - 2 - RESIDUAL_ROUNDS), -1):
        if sorts_after(before):
            return False
        if left_by(before).get(claim.key) == claim.residual:
            return True
    return False


def left_by(headers: Iterable[Header]) -> Mapping[bytes, bytes]:
    """Return the residual that contributions of a log leave to each key with a claim in their body; who is left with none is not in it."""
    opened = ((header, header.contribution.unchecked()) for header in headers)
    return {
        signed.unchecked().key: contribution.residual
        for header, contribution in opened
        if contribution.residual
        for signed in header.claims
        if signed.digest in contribution.in_body
    }
