"""What a round's contributions weigh in its mean. Integers only.

The mean is a pure function of the contributions, their bodies and the round entry before it (``codec.mean``); what of it needs no body
is here. Norms are those of coded vectors: integers in units of 2^min_exponent of the entry that a vector's base is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.exchange import AGE_WEIGHT, CLIP, MAX_AGE, MAX_ROWS, UNPROVEN_PART, WEIGHT_BITS
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, check_name, require
from manta_swarm.protocol.merkle import leaf_hash, root
from manta_swarm.protocol.records import MAX_NORM, Round, Threshold
from manta_swarm.protocol.signing import Digest

MAX_WEIGHED_BYTES = 128 * MAX_ROWS  # a Weighed packed has at most 115
_MAX_WEIGHT = 2**WEIGHT_BITS - 1


class TableError(RemoteFault):
    """Contributions, or their weights, that are not those of a round."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a contribution's weight follows from. It is in no record: claims, and whose keys are proven, say it."""

    age: int  # commits between its base and the round's
    role: int  # see ``protocol.rewards``
    samples: int  # over its claims, each one's capped
    unproven: int = 0  # of these: of keys that are not proven


@dataclass(frozen=True, slots=True)
class Weighed:
    """A contribution as the mean is computed from it: a leaf of ``Round.weights``."""

    body: bytes  # root over the body's groups
    round: int  # the round after its base, whose min exponent its exponents are above
    cohort: str  # the name that its architecture, and so what it covers, follows from
    weight: int  # what the sum is divided by
    clipped: int  # what its values are multiplied by: less than its weight where its norm is above the limit

    def __post_init__(self) -> None:
        check_digest(self.body, "body")
        check_name(self.cohort, "cohort")
        require(1 <= self.round <= MAX_ROUND, "round out of range")
        require(0 <= self.clipped <= self.weight <= _MAX_WEIGHT, "weights out of range")


def weights_root(weighed: Sequence[Weighed]) -> Digest:
    """Return the root over what each contribution of a round weighs, in the table's order.

    With it one group of a mean can be computed again from that group of the bodies; the norms, which clip, are those of whole bodies.
    """
    return Digest(root([leaf_hash(pack(one)) for one in weighed]))


@dataclass(frozen=True, slots=True)
class _List:
    weighed: tuple[Weighed, ...]


def weighed_bytes(weighed: Sequence[Weighed]) -> bytes:
    """Return what a round's contributions weigh as it travels."""
    return pack(_List(tuple(weighed)))


def open_weighed(data: bytes, round_: Round) -> tuple[Weighed, ...]:
    """Return what a round's contributions weigh, from its bytes.

    Raises:
        EncodingError: no such list.
        TableError: not that of this round.
    """
    weighed = unpack(_List, data, max_bytes=MAX_WEIGHED_BYTES).weighed
    if len(weighed) != round_.contributions or not all(0 <= round_.round - one.round <= MAX_AGE for one in weighed):
        raise TableError("another number of contributions than the round has, or bases that it cannot have")
    if weights_root(weighed) != round_.weights:
        raise TableError("these weights are not the round's")
    return weighed


def weights(table: Sequence[Weighing]) -> tuple[int, ...]:
    """Return each contribution's weight in the mean: its samples, less by a tenth for each commit of age, the largest scaled to 2^16 - 1.

    All samples of keys that are not proven together weigh at most a quarter of those that are, however many they are; where there are no
    others they weigh fully. A contribution of which no sample is proven may then weigh nothing.
    """
    kept, of = AGE_WEIGHT
    aged = [kept**one.age * of ** (MAX_AGE - one.age) for one in table]
    unproven = [one.unproven * age for one, age in zip(table, aged, strict=True)]
    proven = [one.samples * age - less for one, age, less in zip(table, aged, unproven, strict=True)]
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


def limit_square(one: Weighing, thresholds: Mapping[int, Threshold]) -> int | None:
    """Return the square of the norm that counts at most, in units of 4^min exponent of the thresholds' entry; None: any.

    Few samples make a large norm, so one of fewer samples than usual may have a larger one.
    """
    threshold = thresholds.get(one.role)
    if threshold is None or threshold.norm == 0:  # a usual norm of nothing would count everybody as nothing
        return None
    usual = (CLIP * threshold.norm) ** 2
    return usual if one.samples >= threshold.samples else usual * threshold.samples // one.samples


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


def next_thresholds(
    table: Sequence[Weighing], norm_squares: Sequence[int], before: Sequence[Threshold], raised: int
) -> tuple[Threshold, ...]:
    """Return the thresholds that a table leaves to those after it: of each role that it has, of the others as before.

    Args:
        table: the round's contributions.
        norm_squares: of their bodies, unclipped, in units of 4^min exponent of the new entry.
        before: the thresholds that the table itself was clipped by.
        raised: by how much the new entry's min exponent is above the one before it.
    """
    found = {one.role: Threshold(one.role, min(shifted(one.norm, -raised), MAX_NORM), one.samples) for one in before}
    table_weights = weights(table)
    for role in {one.role for one in table}:
        places = [place for place, one in enumerate(table) if one.role == role]
        norm = weighted_median((isqrt(norm_squares[place]), table_weights[place]) for place in places)
        samples = weighted_median((table[place].samples, table_weights[place]) for place in places)
        found[role] = Threshold(role, norm, samples)
    return tuple(found[role] for role in sorted(found))


def shifted(value: int, places: int) -> int:
    """Return ``value`` times 2^places, rounded down."""
    return value << places if places >= 0 else value >> -places
