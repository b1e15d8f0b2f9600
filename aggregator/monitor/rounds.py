"""The rounds that a log has, as columns: a hundred bytes each, so that ten thousand of them are nothing. Pure."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from manta_swarm.aggregator.monitor.tables import TableSeen
from manta_swarm.protocol.errors import EncodingError

RECENT = 32  # rounds that the rate is of


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


class Rounds:
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
    def of(cls, columns: Sequence[bytes]) -> "Rounds":
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
