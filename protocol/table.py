"""The table of a round: its rows in a fixed order, the root over them, and what each may weigh. Integers only.

The mean of a table is a pure function of its rows, its bodies and the round entry before it (``exact.outcome``); what of it needs no body
is here. Norms are those of coded vectors: integers in units of 2^floor of the entry that a vector's base is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

from protocol.encoding import encode, pack, unpack
from protocol.errors import RemoteFault
from protocol.exchange import AGE_WEIGHT, CLIP, MAX_AGE, MAX_COHORT, MAX_ROWS, UNPROVEN_PART, WEIGHT_BITS
from protocol.fields import check_digest, check_name, require
from protocol.merkle import leaf_hash, root, verify_inclusion
from protocol.records import MAX_NORM, MAX_ROLES, Round, Threshold
from protocol.signing import Digest

MAX_TABLE_BYTES = 200 * MAX_ROWS  # a row packed has at most 193, its weight 3
_MAX_WEIGHT = 2**WEIGHT_BITS - 1


class TableError(RemoteFault):
    """Rows that are not the table that a round names."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contribution in a table."""

    contribution: bytes  # SignedContribution.digest
    founder: bytes
    age: int  # commits between its base and the table's
    role: int  # see ``protocol.course``
    samples: int  # over its claims, each one's capped
    cohort: str  # the name that model-parallel's architectures follow from, as its claims say
    body: bytes  # root over the body's groups
    unproven: int = 0  # of the samples: of keys that are not proven
    unproven_claims: int = 0  # which of its claims are those keys', as bits, the first claim's the lowest

    def __post_init__(self) -> None:
        for what in ("contribution", "founder", "body"):
            check_digest(getattr(self, what), what)
        check_name(self.cohort, "cohort")
        if not (0 <= self.age <= MAX_AGE and 0 <= self.role < MAX_ROLES and 1 <= self.samples < 2**62):
            raise ValueError("age, role or samples out of range")
        if not 0 <= self.unproven <= self.samples:
            raise ValueError("samples of unproven keys out of range")
        if not 0 <= self.unproven_claims < 2**MAX_COHORT:
            raise ValueError("claims of unproven keys out of range")


def claims_of_bits(bits: int, count: int) -> Sequence[bool]:
    """Return for each of ``count`` claims whether its bit is set, that of the first one being the lowest.

    Raises:
        ValueError: there are more bits than claims.
    """
    require(0 <= bits < 2**count, "bits of more claims than there are")
    return [bool(bits >> place & 1) for place in range(count)]


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as it travels."""

    rows: tuple[Row, ...]
    weights: tuple[int, ...]  # in the mean, clipped


def ordered(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows in a table's order: by founder."""
    return tuple(sorted(rows, key=lambda row: row.founder))


def table_root(rows: Sequence[Row]) -> Digest:
    """Return the root over a table's rows, in order."""
    return Digest(root([leaf_hash(pack(row)) for row in rows]))


def weights_root(weights: Sequence[int]) -> Digest:
    """Return the root over what each row weighs in the mean, in the table's order.

    With it one group of a mean can be computed again from that group of the bodies; the norms, which clip, are those of whole bodies.
    """
    return Digest(root([leaf_hash(encode(weight)) for weight in weights]))


def table_bytes(rows: Sequence[Row], weights: Sequence[int]) -> bytes:
    """Return a table as it travels, with what each row weighs in the mean."""
    return pack(_Table(tuple(rows), tuple(weights)))


def open_table(data: bytes, round_: Round) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Return the rows of a round's table, and what each weighs in the mean, from their bytes.

    Raises:
        EncodingError: no table.
        TableError: not that of this round.
    """
    table = unpack(_Table, data, max_bytes=MAX_TABLE_BYTES)
    rows, weights = table.rows, table.weights
    if len(rows) != round_.rows or not all(0 <= weight <= _MAX_WEIGHT for weight in weights):
        raise TableError("a table of another size than the round's, or weights out of range")
    if table_root(rows) != round_.table or weights_root(weights) != round_.weights:
        raise TableError("these rows, or their weights, are not the round's")
    return rows, weights


@dataclass(frozen=True, slots=True)
class RowProof:
    """A row, and the proof that it is in a table."""

    row: Row
    place: int
    proof: tuple[bytes, ...]

    def check(self, round_: Round) -> None:
        """Check that the row is in the round's table.

        Raises:
            ProofError: it is not.
        """
        verify_inclusion(leaf_hash(pack(self.row)), self.place, round_.rows, list(self.proof), round_.table)


def weights(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return each row's weight in the mean: its samples, less by a tenth for each commit of age, the largest scaled to 2^16 - 1.

    All samples of keys that are not proven together weigh at most a quarter of those that are, however many they are; where there are no
    others they weigh fully. A row of which no sample is proven may then weigh nothing.
    """
    kept, of = AGE_WEIGHT
    aged = [kept**row.age * of ** (MAX_AGE - row.age) for row in rows]
    unproven = [row.unproven * age for row, age in zip(rows, aged, strict=True)]
    proven = [row.samples * age - less for row, age, less in zip(rows, aged, unproven, strict=True)]
    part, parts = UNPROVEN_PART
    most, there = part * sum(proven), parts * sum(unproven)
    if 0 < most < there:
        raw = [each * there + less * most for each, less in zip(proven, unproven, strict=True)]
        least = [min(1, each) for each in proven]
    else:
        raw = [each + less for each, less in zip(proven, unproven, strict=True)]
        least = [1] * len(raw)
    largest = max(raw)
    return tuple(max(lowest, weight * _MAX_WEIGHT // largest) for lowest, weight in zip(least, raw, strict=True))


def limit_square(row: Row, thresholds: Mapping[int, Threshold]) -> int | None:
    """Return the square of the norm that a row counts with at most, in units of 4^floor of the thresholds' entry; None: any.

    Few samples make a large norm, so a row of fewer samples than usual may have a larger one.
    """
    threshold = thresholds.get(row.role)
    if threshold is None or threshold.norm == 0:  # a usual norm of nothing would count everybody as nothing
        return None
    usual = (CLIP * threshold.norm) ** 2
    return usual if row.samples >= threshold.samples else usual * threshold.samples // row.samples


def clipped_weight(weight: int, norm_square: int, limit: int | None) -> int:
    """Return ``weight`` times min(1, sqrt(limit / norm_square)), rounded down; both squares are in the same units."""
    if limit is None or norm_square <= limit:
        return weight
    return isqrt(weight * weight * limit // norm_square)


def weighted_median(pairs: Iterable[tuple[int, int]]) -> int:
    """Return the lower weighted median of (value, weight) pairs: the least value with half of the weight at or below it."""
    ordered_pairs = sorted(pairs)
    total = sum(weight for _, weight in ordered_pairs)
    below = 0
    for value, weight in ordered_pairs:
        below += weight
        if 2 * below >= total:
            return value
    raise ValueError("no values")


def next_thresholds(rows: Sequence[Row], norm_squares: Sequence[int], before: Sequence[Threshold], raised: int) -> tuple[Threshold, ...]:
    """Return the thresholds that a table leaves to those after it: of each role that it has, of the others as before.

    Args:
        rows: the table.
        norm_squares: of the rows, unclipped, in units of 4^floor of the new entry.
        before: the thresholds that the table itself was clipped by.
        raised: by how much the new entry's floor is above the one before it.
    """
    found = {one.role: Threshold(one.role, min(shifted(one.norm, -raised), MAX_NORM), one.samples) for one in before}
    row_weights = weights(rows)
    for role in {row.role for row in rows}:
        places = [place for place, row in enumerate(rows) if row.role == role]
        norm = weighted_median((isqrt(norm_squares[place]), row_weights[place]) for place in places)
        samples = weighted_median((rows[place].samples, row_weights[place]) for place in places)
        found[role] = Threshold(role, norm, samples)
    return tuple(found[role] for role in sorted(found))


def shifted(value: int, places: int) -> int:
    """Return ``value`` times 2^places, rounded down."""
    return value << places if places >= 0 else value >> -places
