"""Who gave what to a round: the entries between two round entries, put together, with what each claim earned. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from manta_swarm.aggregator.monitor.opened import Opened
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, Contribution, Header, Round
from manta_swarm.protocol.rewards import TrainingSpec, reward_weight, shares_of


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim of a round."""

    key: bytes
    payout: bytes  # the account that its credit adds up to
    index: int  # of its contribution's entry
    round: int  # in which it counted
    base_round: int
    cohort: str
    founder: bytes  # of the contribution
    microbatches: int
    samples: int
    microbatch_ms: int
    weight: int  # in the pay of its round; 0: it is listed unpaid
    credit: int | None  # that its round paid for it; None: it is not paid yet, or what it paid is not in these entries

    @property
    def age(self) -> int:
        """Commits between its base and that of the round it counted in."""
        return self.round - 1 - self.base_round


@dataclass(frozen=True, slots=True)
class ContributionSeen:
    """A contribution of a round."""

    index: int
    digest: bytes
    founder: bytes
    cohort: str
    age: int
    role: int
    samples: int  # that it weighs: each claim's, capped
    body: bytes
    claims: tuple[ClaimSeen, ...]

    @property
    def round(self) -> int:
        """The round that it counted in."""
        return self.claims[0].round


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A round with its contributions."""

    index: int
    said: Round
    contributions: tuple[ContributionSeen, ...]

    @property
    def claims(self) -> list[ClaimSeen]:
        """All claims, in the order of the log."""
        return [claim for one in self.contributions for claim in one.claims]

    @property
    def microbatch_ms(self) -> int:
        """The median of what the claims say that a microbatch took."""
        return median_low(claim.microbatch_ms for claim in self.claims)

    @property
    def train_ms(self) -> int:
        """The median of what the claims say that their microbatches took together."""
        return median_low(claim.microbatch_ms * claim.microbatches for claim in self.claims)


def table_seen(
    first: int, entries: Sequence[Opened], manifest: Manifest, training_spec: TrainingSpec, listed_as: Sequence[Listed] = ()
) -> TableSeen:
    """Return the round whose entries these are, from entry ``first`` on; its round entry is the last of them.

    ``listed_as``: the same contributions as a ledger lists them; without it each claim weighs what it says.

    Raises:
        LedgerError: they are not those of one round.
    """
    *before, last = entries
    if not isinstance(last.said, Round):
        raise LedgerError("contributions without their round")
    listed: list[_Listed] = []
    for index, one in enumerate(before, first):
        if isinstance(one.record, Header) and isinstance(one.said, Contribution):
            listed.append(_Listed(index, one.record.contribution.digest, one.said, one.claims))
        elif isinstance(one.said, Round) or listed:
            raise LedgerError("entries that are not those of one round")
    if not listed:
        raise LedgerError("a round without contributions")
    if (last.said.first, last.said.contributions) != (listed[0].index, len(listed)):
        raise LedgerError("a round about other contributions than those before it")
    weights = [one.weights for one in listed_as]
    if not weights:
        weights = [tuple(reward_weight(manifest, training_spec, claim) for claim in one.claims) for one in listed]
    pairs = [(claim.key, weight) for one, of in zip(listed, weights, strict=True) for claim, weight in zip(one.claims, of, strict=True)]
    paid = None if manifest.is_audited else shares_of(manifest, dict(pairs))
    contributions = tuple(_seen(one, last.said.round, of, paid, manifest, training_spec) for one, of in zip(listed, weights, strict=True))
    return TableSeen(first + len(before), last.said, contributions)


@dataclass(frozen=True, slots=True)
class _Listed:
    index: int
    digest: bytes
    said: Contribution
    claims: Sequence[Claim]


def _seen(
    one: _Listed,
    round_: int,
    weights: Sequence[int],
    paid: Mapping[bytes, int] | None,
    manifest: Manifest,
    training_spec: TrainingSpec,
) -> ContributionSeen:
    cap, cohort = manifest.exchange.weight_cap, one.claims[0].cohort
    seen = tuple(
        ClaimSeen(
            key=claim.key,
            payout=claim.payout,
            index=one.index,
            round=round_,
            base_round=claim.round - 1,
            cohort=claim.cohort,
            founder=one.said.founder,
            microbatches=claim.microbatches,
            samples=claim.microbatches * manifest.microbatch_samples,
            microbatch_ms=claim.microbatch_ms,
            weight=weight,
            credit=None if paid is None else paid.get(claim.key, 0),
        )
        for claim, weight in zip(one.claims, weights, strict=True)
    )
    return ContributionSeen(
        index=one.index,
        digest=one.digest,
        founder=one.said.founder,
        cohort=cohort,
        age=round_ - one.said.round,
        role=training_spec.role(one.said.round, cohort),
        samples=sum(min(claim.samples, cap) for claim in seen),
        body=one.said.body,
        claims=seen,
    )
