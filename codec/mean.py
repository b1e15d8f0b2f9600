"""The mean of a round's bodies, and what a table comes to: its mean, and what it leaves to the tables after it. Pure.

The sum is one of integers, so the order in which bodies come changes nothing; only then is it divided, by operations that IEEE 754 rounds
exactly. What a contribution weighs and how far it is clipped says ``protocol.table``. Where contributions cover parts of the vector
(masks), each value is divided by the weight of those that cover it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.coding import Body
from manta_swarm.codec.scaling import check_denormals
from manta_swarm.protocol.exchange import GREATEST_MIN_EXPONENT, GROUP_VALUES, LEAST_MIN_EXPONENT, SUM_BITS, WEIGHT_BITS
from manta_swarm.protocol.records import Threshold
from manta_swarm.protocol.table import Weighing, clipped_weight, limit_square, next_thresholds, shifted, weighted_median, weights

_ABOVE = 7  # exponents that a window has above the largest usual one, for growth; those below it are for smaller chunks
_MAX_TOTAL = 2**53 - 1  # of weights: a float64 has it exactly

Mask = NDArray[np.bool_]  # (N,): the values that a contribution covers
Masks = Sequence[Mask | None]  # of each contribution; None: it covers all


class Sum:
    """The weighted sum of bodies of ``count`` values, in units of 2^min_exponent: the least min exponent among theirs.

    Takes 8 bytes a value.
    """

    def __init__(self, count: int, min_exponent: int) -> None:
        """Start at zero."""
        self._sums = np.zeros(count, np.int64)
        self._min_exponent = min_exponent
        self._bound = 0  # no sum is larger in magnitude

    def add(self, body: Body, shift: int, weight: int, mask: Mask | None = None) -> None:
        """Add ``weight`` times a body whose min exponent is ``shift`` above this sum's; of it, only what ``mask`` covers.

        Raises:
            ValueError: another number of values, a negative shift, a weight out of range, or the sums might overflow; nothing was added.
        """
        if body.count != self._sums.size or (mask is not None and mask.shape != self._sums.shape):
            raise ValueError(f"a body of {body.count} values, or its mask, is not added to a sum of {self._sums.size}")
        if shift < 0 or not 0 <= weight < 2**WEIGHT_BITS:
            raise ValueError(f"a shift of {shift} or a weight of {weight} is out of range")
        bound = self._bound + (body.codec.limit * weight << body.max_exponent + shift)
        if bound > 2**SUM_BITS:
            raise ValueError(f"sums might need more than {SUM_BITS} bits")
        self._bound = bound
        if weight == 0:
            return
        for block in body.blocks():
            factors = np.left_shift(weight, block.exponents.astype(np.int64) + shift)
            products, places = (block.integers * factors[:, None]).reshape(-1), block.places
            if mask is not None:
                products *= mask[places]
            self._sums[places] += products  # a place comes once

    def mean(self, total_weight: int | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the sums divided by the total weight before clipping, as ``total_weights`` has it; 0 where that is 0.

        Each step is rounded alike everywhere: IEEE 754 rounds every conversion and the quotient to the nearest, ties to even, and they
        are separate calls, so that nothing can fuse them. The weight is below 2^53, so a float64. The power of two changes no digit: it
        is a normal float64, and so are the products, for a quotient that is not 0 is at least 2^-53.

        Raises:
            ValueError: the weight or the min exponent is out of range.
            OwnFault: as ``check_denormals``.
        """
        if not _is_total(total_weight, self._sums.size) or not LEAST_MIN_EXPONENT <= self._min_exponent <= GREATEST_MIN_EXPONENT:
            raise ValueError(f"a total weight of {total_weight} or a min exponent of {self._min_exponent} is out of range")
        check_denormals()
        scale = np.ldexp(1.0, self._min_exponent)
        mean = np.empty(self._sums.size, np.float32)
        for start in range(0, mean.size, GROUP_VALUES):
            quotients = self._sums[start : start + GROUP_VALUES].astype(np.float64)
            np.divide(quotients, _divisor(total_weight, start), out=quotients)
            np.multiply(quotients, scale, out=quotients)
            mean[start : start + GROUP_VALUES] = quotients
        return mean


def _is_total(total_weight: int | NDArray[np.int64], count: int) -> bool:
    if isinstance(total_weight, int):
        return 0 < total_weight <= _MAX_TOTAL
    return total_weight.shape == (count,) and total_weight.min(initial=0) >= 0 and total_weight.max(initial=0) <= _MAX_TOTAL


def _divisor(total_weight: int | NDArray[np.int64], start: int) -> np.float64 | NDArray[np.float64]:
    if isinstance(total_weight, int):
        return np.float64(total_weight)
    return np.maximum(total_weight[start : start + GROUP_VALUES], 1).astype(np.float64)  # what nobody covers has a sum of 0


def total_weights(weights: Sequence[int], masks: Masks | None, count: int) -> int | NDArray[np.int64]:
    """Return what the sums of ``count`` values are divided by: the whole weight, or, with masks, that of who covers each value.

    Rows that cover the same may share one array, which is then looked at once.

    Raises:
        ValueError: not a mask for each weight, or one of another length.
    """
    if masks is None or all(mask is None for mask in masks):
        return sum(weights)
    by_mask: dict[int, tuple[Mask | None, int]] = {}
    for weight, mask in zip(weights, masks, strict=True):
        by_mask[id(mask)] = mask, by_mask.get(id(mask), (mask, 0))[1] + weight
    totals = np.zeros(count, np.int64)
    for mask, weight in by_mask.values():
        if mask is not None and mask.shape != totals.shape:
            raise ValueError(f"a mask of {mask.size} values for a mean of {count}")
        totals += weight if mask is None else mask * np.int64(weight)
    return totals


def group_mean(
    bodies: Sequence[Body], weights: Sequence[int], min_exponents: Sequence[int], masks: Masks | None, total_weight: int | NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return a mean, or one group of it from the same group of all bodies, each of which is a body of the group's own values.

    A group has the bits that it has in the mean of whole bodies: values are averaged one by one, and the min exponent that sums are counted
    in scales every step by a power of two.

    Args:
        bodies: of the group's values; at least one.
        weights: of the contributions, clipped: those under ``Round.weights``.
        min_exponents: min exponent of each contribution's base.
        masks: as ``Sum.add`` takes them, cut to the group's values.
        total_weight: of the contributions before they were clipped, as ``total_weights`` has it for the group's values.

    Raises:
        ValueError: lengths, weights or min exponents that no table has.
        OwnFault: as ``check_denormals``.
    """
    least = min(min_exponents)
    total = Sum(bodies[0].count, least)
    for body, weight, min_exponent, mask in zip(bodies, weights, min_exponents, masks or [None] * len(bodies), strict=True):
        total.add(body, min_exponent - least, weight, mask)
    return total.mean(total_weight)


def next_min_exponent(max_exponents: Sequence[int], weights: Sequence[int], min_exponent: int, window: int) -> int:
    """Return the min exponent for bodies on the next commit.

    It follows the median of the contributions' largest exponents, by one step at most, so that a round's min exponents stay near each
    other.

    Args:
        max_exponents: each contribution's largest exponent, its base's min exponent added.
        weights: of the contributions, before they were clipped.
        min_exponent: for bodies on the commit before.
        window: exponents that the contributions' codec has.

    Raises:
        ValueError: no contributions, or not a weight for each.
    """
    wanted = weighted_median(zip(max_exponents, weights, strict=True)) - (window - 1 - _ABOVE)
    moved = min_exponent + (wanted > min_exponent) - (wanted < min_exponent)
    return min(max(moved, LEAST_MIN_EXPONENT), GREATEST_MIN_EXPONENT)


@dataclass(frozen=True, slots=True)
class TableMean:
    """A table's mean, and what its round entry says of the weights, exponents and norms."""

    mean: NDArray[np.float32]  # (N,)
    weights: tuple[int, ...]  # of each contribution
    clipped: tuple[int, ...]  # the same, less where its norm is above the limit
    thresholds: tuple[Threshold, ...]
    min_exponent: int

    @property
    def num_clipped(self) -> int:
        """How many contributions counted with less than their norm."""
        return sum(less < weight for weight, less in zip(self.weights, self.clipped, strict=True))


def table_mean(
    table: Sequence[Weighing],
    bodies: Sequence[Body],
    min_exponents: Sequence[int],
    thresholds: Sequence[Threshold],
    min_exponent: int,
    num_values: int,
    masks: Masks | None = None,
) -> TableMean:
    """Return what a table comes to.

    Args:
        table: the round's contributions, in order.
        bodies: of each, all of one codec.
        min_exponents: min exponent of each one's base.
        thresholds: of the round entry before.
        min_exponent: that entry's min exponent; the thresholds are in units of 2^min_exponent.
        num_values: N.
        masks: what each one's architecture covers, where that is a part; those that cover the same may share one array. A body's norm is
            that of all its values all the same.

    Raises:
        ValueError: as ``Sum.add`` and ``total_weights``: contributions and bodies that no log has in a table.
    """
    least = min(min_exponent, *min_exponents)
    norms = [body.norm_square << 2 * (of_base - least) for body, of_base in zip(bodies, min_exponents, strict=True)]
    table_weights = weights(table)
    clipped = _clipped(table, table_weights, norms, thresholds, 2 * (min_exponent - least))
    # A body of zeros says nothing about exponents; a table of nothing else, that the min exponent may be too high.
    said = [place for place, norm in enumerate(norms) if norm]
    highest = [min_exponents[place] + bodies[place].max_exponent for place in said]
    said_weights = [table_weights[place] for place in said]
    new_min_exponent = (
        next_min_exponent(highest, said_weights, min_exponent, bodies[0].codec.window)
        if said
        else max(min_exponent - 1, LEAST_MIN_EXPONENT)
    )
    new_norms = [shifted(norm, 2 * (least - new_min_exponent)) for norm in norms]
    return TableMean(
        mean=mean_of(table_weights, clipped, bodies, min_exponents, num_values, masks),
        weights=table_weights,
        clipped=clipped,
        thresholds=next_thresholds(table, new_norms, thresholds, new_min_exponent - min_exponent),
        min_exponent=new_min_exponent,
    )


def mean_of(
    weights: Sequence[int],
    clipped: Sequence[int],
    bodies: Sequence[Body],
    min_exponents: Sequence[int],
    num_values: int,
    masks: Masks | None = None,
) -> NDArray[np.float32]:
    """Return the mean (N,) of bodies whose weights are known; the arguments are those of ``table_mean``.

    Raises:
        ValueError: as ``table_mean``.
    """
    return group_mean(bodies, clipped, min_exponents, masks, total_weights(weights, masks, num_values))


def _clipped(
    table: Sequence[Weighing], table_weights: Sequence[int], norms: Sequence[int], thresholds: Sequence[Threshold], finer: int
) -> tuple[int, ...]:
    """Return what each contribution counts with; squared norms are in units 2^finer times smaller than those of the thresholds' squares."""
    by_role = {threshold.role: threshold for threshold in thresholds}
    limits = [limit_square(one, by_role) for one in table]
    return tuple(
        clipped_weight(weight, norm, None if limit is None else limit << finer)
        for weight, norm, limit in zip(table_weights, norms, limits, strict=True)
    )
