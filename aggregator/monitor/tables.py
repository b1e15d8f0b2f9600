"""A log's rounds as the monitor knows them: entries opened, who gave what to a round and earned by it, and all rounds as columns. Pure."""

import dataclasses
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Any

from manta_swarm.protocol.admission import Admission, Revocation
from manta_swarm.protocol.errors import EncodingError, LedgerError
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, Contribution, Header, Logged, Round, kind_of, open_entry
from manta_swarm.protocol.rewards import TrainingSpec, reward_weight, shares_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.verdicts import Settlement, Verdict
from manta_swarm.protocol.verified import Verified

Said = Admission | Revocation | Contribution | Round | Verdict | Settlement

RECENT = 32  # rounds that the rate is of


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """One entry of the log, opened."""

    kind: str
    said: Said
    record: Logged  # as it is stored: with a signature where it has one
    claims: tuple[Claim, ...] = ()  # of a contribution


def opened(entry: bytes, verified: Verified | None = None) -> OpenedEntry:
    """Return what an entry says; ``verified`` may know it, and what is inside.

    Raises:
        EncodingError: it is no entry.
    """
    record = open_entry(entry) if verified is None else verified.entry(entry)
    kind = kind_of(record)
    if isinstance(record, Signed):
        return OpenedEntry(kind, record.unchecked(), record)
    if not isinstance(record, Header):
        return OpenedEntry(kind, record, record)
    if verified is None:
        return OpenedEntry(kind, record.contribution.unchecked(), record, tuple(signed.unchecked() for signed in record.claims))
    return OpenedEntry(kind, verified.contribution(record.contribution), record, tuple(map(verified.claim, record.claims)))


def fields(one: OpenedEntry) -> dict[str, Any]:
    """Return an entry's record with its fields' own names, bytes in hexadecimal; signature and digest among them where it has these.

    A contribution has its claims, not their digests alone.
    """
    plain: dict[str, Any] = _plain(one.said)
    if isinstance(one.record, Header):
        claims = [_plain(said) | _signed(signed) for said, signed in zip(one.claims, one.record.claims, strict=True)]
        return plain | {"claims": claims} | _signed(one.record.contribution)
    return plain if isinstance(one.record, Round | Settlement) else plain | _signed(one.record)


def _signed(record: Signed[Any]) -> dict[str, Any]:
    return {"digest": record.digest.hex(), "signature": record.signature.hex()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


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
    first: int, entries: Sequence[OpenedEntry], manifest: Manifest, training_spec: TrainingSpec, listed_as: Sequence[Listed] = ()
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


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """One round as its log entry says it."""

    round: int
    index: int  # of its entry
    contributions: int
    claims: int
    counted: int
    open_ms: int  # of the round that follows
    microbatch_ms: int
    train_ms: int
    min_exponent: int
    state: bytes
    mean: bytes
    weights: bytes
    committed_at: int | None
    round_ms: int | None  # since the commit before


@dataclass(frozen=True, slots=True)
class Series:
    """Rounds as curves: columns of one length."""

    rounds_a_point: int
    round: list[int]
    counted: list[float]
    contributions: list[float]
    claims: list[float]
    round_ms: list[float | None]
    open_ms: list[float]
    microbatch_ms: list[float]


class RoundColumns:
    """Rounds 1 to ``newest``."""

    _NUMBERS = ("index", "contributions", "claims", "counted", "open_ms", "microbatch_ms", "train_ms", "min_exponent")
    _DIGESTS = ("state", "mean", "weights")

    def __init__(self) -> None:
        """Have none yet."""
        self._numbers = {name: array("q") for name in self._NUMBERS}
        self._digests = {name: bytearray() for name in self._DIGESTS}
        self._committed_at = array("q")  # 0: nobody noted it
        self.counted_total = 0

    @property
    def newest(self) -> int:
        """The newest round; 0 before the first."""
        return len(self._committed_at)

    def columns(self) -> tuple[bytes, ...]:
        """Return all of them, to be kept: numbers of 64 bits in this computer's order, digests one after the other."""
        numbers = [column.tobytes() for column in (*self._numbers.values(), self._committed_at)]
        return (*numbers, *map(bytes, self._digests.values()))

    @classmethod
    def of(cls, columns: Sequence[bytes]) -> "RoundColumns":
        """Return the rounds of ``columns``.

        Raises:
            EncodingError: they are none.
        """
        rounds, count = cls(), len(columns[0]) // 8 if columns else 0
        widths = [8] * (len(cls._NUMBERS) + 1) + [32] * len(cls._DIGESTS)
        if [len(column) for column in columns] != [width * count for width in widths]:
            raise EncodingError("columns of rounds that do not fit together")
        *numbers, committed_at = columns[: -len(cls._DIGESTS)]
        rounds._numbers = {name: array("q", column) for name, column in zip(cls._NUMBERS, numbers, strict=True)}
        rounds._digests = {name: bytearray(column) for name, column in zip(cls._DIGESTS, columns[-len(cls._DIGESTS) :], strict=True)}
        rounds._committed_at = array("q", committed_at)
        rounds.counted_total = sum(rounds._numbers["counted"])
        return rounds

    def append(self, table: TableSeen) -> None:
        """Take the next round."""
        said, counted = table.said, sum(claim.samples for claim in table.claims)
        values = (
            table.index,
            said.contributions,
            len(table.claims),
            counted,
            said.open_ms,
            table.microbatch_ms,
            table.train_ms,
            said.min_exponent,
        )
        for name, value in zip(self._NUMBERS, values, strict=True):
            self._numbers[name].append(value)
        for name in self._DIGESTS:
            self._digests[name] += getattr(said, name)
        self._committed_at.append(0)
        self.counted_total += counted

    def committed(self, round_: int, at: int) -> None:
        """A round that is here was committed at that time, in milliseconds since 1970."""
        if 1 <= round_ <= self.newest:
            self._committed_at[round_ - 1] = at

    def index_of(self, round_: int) -> int:
        """Return the place of a round's entry in the log; of round 0 the place before the first."""
        return self._numbers["index"][round_ - 1] if round_ else -1

    def state_of(self, round_: int) -> bytes:
        """Return the digest of the state after a round that is here."""
        return self._digest("state", round_)

    def row(self, round_: int) -> RoundSeen:
        """Return a round that is here."""
        numbers, place = self._numbers, round_ - 1
        return RoundSeen(
            round=round_,
            index=numbers["index"][place],
            contributions=numbers["contributions"][place],
            claims=numbers["claims"][place],
            counted=numbers["counted"][place],
            open_ms=numbers["open_ms"][place],
            microbatch_ms=numbers["microbatch_ms"][place],
            train_ms=numbers["train_ms"][place],
            min_exponent=numbers["min_exponent"][place],
            state=self._digest("state", round_),
            mean=self._digest("mean", round_),
            weights=self._digest("weights", round_),
            committed_at=self._at(round_),
            round_ms=self._round_ms(round_),
        )

    def recent_ms(self) -> float | None:
        """Return the mean time of the newest rounds that somebody timed; None: nobody did."""
        times = [ms for round_ in range(max(1, self.newest - RECENT + 1), self.newest + 1) if (ms := self._round_ms(round_)) is not None]
        return fmean(times) if times else None

    def series(self, first: int, last: int, points: int) -> Series:
        """Return rounds ``first`` to ``last``, which are here, as at most so many points: each is some rounds, one after the other."""
        count = max(0, last - first + 1)
        step = max(1, -(-count // points))
        starts = range(first, last + 1, step)
        spans = [(start, min(start + step - 1, last)) for start in starts]

        def means(name: str) -> list[float]:
            column = self._numbers[name]
            return [_mean(column[start - 1 : end]) for start, end in spans]

        times = [[ms for round_ in range(start, end + 1) if (ms := self._round_ms(round_)) is not None] for start, end in spans]
        return Series(
            rounds_a_point=step,
            round=[end for _, end in spans],
            counted=means("counted"),
            contributions=means("contributions"),
            claims=means("claims"),
            round_ms=[_mean(some) if some else None for some in times],
            open_ms=means("open_ms"),
            microbatch_ms=means("microbatch_ms"),
        )

    def _digest(self, name: str, round_: int) -> bytes:
        return bytes(self._digests[name][32 * (round_ - 1) : 32 * round_])

    def _at(self, round_: int) -> int | None:
        return self._committed_at[round_ - 1] or None

    def _round_ms(self, round_: int) -> int | None:
        before, at = self._committed_at[round_ - 2] if round_ > 1 else 0, self._committed_at[round_ - 1]
        return max(0, at - before) if before and at else None


def _mean(values: Sequence[float]) -> float:
    """Return a mean, as short as it may be written."""
    mean = round(fmean(values), 1)
    return int(mean) if mean == int(mean) else mean
