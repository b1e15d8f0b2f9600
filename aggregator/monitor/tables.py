"""Who gave what to a round: the entries between two round entries, put together, with what each claim earned. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from aggregator.monitor.opened import Opened
from protocol.admission import Admission
from protocol.audits import Extra
from protocol.course import Course
from protocol.earnings import shares_of
from protocol.errors import LedgerError
from protocol.manifest import Manifest
from protocol.records import Claim, Contribution, Round
from protocol.revocation import Revocation
from protocol.rewards import claim_weight


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim of a table."""

    key: bytes
    payout: bytes  # the account that its credit adds up to
    index: int  # of its entry
    contribution: int  # of the entry that lists it
    round: int  # in which it counted
    base_round: int
    cohort: str
    founder: bytes  # of the contribution
    lots: int
    samples: int
    lot_ms: int
    credit: int

    @property
    def age(self) -> int:
        """Commits between its base and that of the round it counted in."""
        return self.round - 1 - self.base_round


@dataclass(frozen=True, slots=True)
class RowSeen:
    """A contribution of a table."""

    index: int
    founder: bytes
    cohort: str
    age: int
    role: int
    samples: int  # that it weighs: each claim's, capped
    body: bytes
    claims: tuple[ClaimSeen, ...]


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A round with its table."""

    index: int
    said: Round
    rows: tuple[RowSeen, ...]

    @property
    def claims(self) -> list[ClaimSeen]:
        """All claims, in the order of the log."""
        return [claim for row in self.rows for claim in row.claims]

    @property
    def lot_ms(self) -> int:
        """The median of what the claims say that a lot took."""
        return median_low(claim.lot_ms for claim in self.claims)

    @property
    def train_ms(self) -> int:
        """The median of what the claims say that their lots took together."""
        return median_low(claim.lot_ms * claim.lots for claim in self.claims)


def table_seen(first: int, entries: Sequence[Opened], manifest: Manifest, course: Course) -> TableSeen:
    """Return the round whose entries these are, from entry ``first`` on; its round entry is the last of them.

    Raises:
        LedgerError: they are not those of one round.
    """
    *before, last = entries
    if not isinstance(last.said, Round):
        raise LedgerError("a table without its round")
    listed: list[tuple[int, Contribution, list[tuple[int, Claim]]]] = []
    claims: list[tuple[int, Claim]] = []
    for index, one in enumerate(before, first):
        if isinstance(one.said, Extra | Admission | Revocation) and not claims and not listed:
            continue
        if isinstance(one.said, Claim):
            claims.append((index, one.said))
        elif isinstance(one.said, Contribution) and claims:
            listed.append((index, one.said, claims))
            claims = []
        else:
            raise LedgerError("entries that are not those of one round")
    if claims or not listed:
        raise LedgerError("a round without contributions, or with a claim that none lists")
    earned = _earned([claim for _, _, some in listed for _, claim in some], manifest, course)
    rows = tuple(_row(index, said, some, last.said.round, earned, manifest, course) for index, said, some in listed)
    return TableSeen(first + len(before), last.said, rows)


def _earned(claims: Sequence[Claim], manifest: Manifest, course: Course) -> dict[bytes, int]:
    """Return key -> credit, as ``protocol.ledger`` shares it out; where claims are audited for work alone: all else goes by verdicts."""
    cap = manifest.exchange.weight_cap
    weights = {claim.key: claim_weight(claim.work, course.costs(claim.round, claim.cohort), manifest.lot_samples, cap) for claim in claims}
    return shares_of(manifest, weights)


def _row(
    index: int,
    said: Contribution,
    claims: Sequence[tuple[int, Claim]],
    round_: int,
    earned: dict[bytes, int],
    manifest: Manifest,
    course: Course,
) -> RowSeen:
    cap, cohort = manifest.exchange.weight_cap, claims[0][1].cohort
    seen = tuple(
        ClaimSeen(
            key=claim.key,
            payout=claim.payout,
            index=place,
            contribution=index,
            round=round_,
            base_round=claim.round - 1,
            cohort=claim.cohort,
            founder=said.founder,
            lots=claim.lots,
            samples=claim.lots * manifest.lot_samples,
            lot_ms=claim.lot_ms,
            credit=earned.get(claim.key, 0),
        )
        for place, claim in claims
    )
    return RowSeen(
        index=index,
        founder=said.founder,
        cohort=cohort,
        age=round_ - said.round,
        role=course.role(said.round, cohort),
        samples=sum(min(claim.samples, cap) for claim in seen),
        body=said.body,
        claims=seen,
    )
