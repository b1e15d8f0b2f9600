"""Who gave what to a round: the entries between two round entries, put together, with what each claim earned. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from aggregator.monitor.opened import Opened
from protocol.course import Course
from protocol.earnings import shares_by
from protocol.errors import LedgerError
from protocol.manifest import Manifest
from protocol.records import Claim, Contribution, Round


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim of a table."""

    key: bytes
    payout: bytes  # the account that its credit adds up to
    index: int  # of its contribution's entry
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
    listed: list[tuple[int, Contribution, Sequence[Claim]]] = []
    for index, one in enumerate(before, first):
        if isinstance(one.said, Contribution):
            listed.append((index, one.said, one.claims))
        elif isinstance(one.said, Round) or listed:
            raise LedgerError("entries that are not those of one round")
    if not listed:
        raise LedgerError("a round without contributions")
    if (last.said.first, last.said.contributions) != (listed[0][0], len(listed)):
        raise LedgerError("a round about other contributions than those before it")
    earned = shares_by(manifest, course, [claim for _, _, claims in listed for claim in claims])  # before verdicts, in an audited run
    rows = tuple(_row(index, said, claims, last.said.round, earned, manifest, course) for index, said, claims in listed)
    return TableSeen(first + len(before), last.said, rows)


def _row(
    index: int,
    said: Contribution,
    claims: Sequence[Claim],
    round_: int,
    earned: dict[bytes, int],
    manifest: Manifest,
    course: Course,
) -> RowSeen:
    cap, cohort = manifest.exchange.weight_cap, claims[0].cohort
    seen = tuple(
        ClaimSeen(
            key=claim.key,
            payout=claim.payout,
            index=index,
            round=round_,
            base_round=claim.round - 1,
            cohort=claim.cohort,
            founder=said.founder,
            lots=claim.lots,
            samples=claim.lots * manifest.lot_samples,
            lot_ms=claim.lot_ms,
            credit=earned.get(claim.key, 0),
        )
        for claim in claims
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
