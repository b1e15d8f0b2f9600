"""The mean of a round's bodies, and where the next bodies' exponents begin.

The sum is one of integers, so the order in which bodies come changes nothing; only then is it divided, by operations that IEEE 754 rounds
exactly. What a row weighs and how far it is clipped says ``protocol.table``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from exact.coding import Body, check_denormals
from protocol.exchange import CHUNK, GROUP_CHUNKS, MAX_FLOOR, MIN_FLOOR, SUM_BITS, WEIGHT_BITS
from protocol.table import weighted_median

_BELOW = 12  # exponents that a window has below the largest usual one, for smaller chunks; 7 are left above it, for growth


class Sum:
    """The weighted sum of bodies of ``count`` values, in units of 2^floor: the least floor among theirs. Takes 8 bytes a value."""

    def __init__(self, count: int, floor: int) -> None:
        """Start at zero."""
        self._sums = np.zeros(count, np.int64)
        self._floor = floor
        self._bound = 0  # no sum is larger in magnitude

    def add(self, body: Body, shift: int, weight: int) -> None:
        """Add ``weight`` times a body whose floor is ``shift`` above this sum's.

        Raises:
            ValueError: another number of values, a negative shift, a weight out of range, or the sums might overflow; nothing was added.
        """
        if body.count != self._sums.size:
            raise ValueError(f"a body of {body.count} values is not added to a sum of {self._sums.size}")
        if shift < 0 or not 0 <= weight < 2**WEIGHT_BITS:
            raise ValueError(f"a shift of {shift} or a weight of {weight} is out of range")
        bound = self._bound + (body.codec.limit * weight << body.max_exponent + shift)
        if bound > 2**SUM_BITS:
            raise ValueError(f"sums might need more than {SUM_BITS} bits")
        self._bound = bound
        if weight == 0:
            return
        for start, exponents, integers in body.blocks():
            factors = np.left_shift(weight, exponents.astype(np.int64) + shift)
            self._sums[start : start + integers.size] += (integers * factors[:, None]).reshape(-1)

    def mean(self, total_weight: int) -> NDArray[np.float32]:
        """Return the sums divided by the weight of all rows, before they were clipped.

        Each step is rounded alike everywhere: IEEE 754 rounds every conversion and the quotient to the nearest, ties to even, and they
        are separate calls, so that nothing can fuse them. The weight is below 2^53, so a float64. The power of two changes no digit: it
        is a normal float64, and so are the products, for a quotient that is not 0 is at least 2^-53.

        Raises:
            ValueError: the weight or the floor is out of range.
            OwnFault: as ``check_denormals``.
        """
        if not 0 < total_weight < 2**53 or not MIN_FLOOR <= self._floor <= MAX_FLOOR:
            raise ValueError(f"a total weight of {total_weight} or a floor of {self._floor} is out of range")
        check_denormals()
        scale = np.ldexp(1.0, self._floor)
        mean = np.empty(self._sums.size, np.float32)
        step = CHUNK * GROUP_CHUNKS
        for start in range(0, mean.size, step):
            quotients = self._sums[start : start + step].astype(np.float64)
            np.divide(quotients, np.float64(total_weight), out=quotients)
            np.multiply(quotients, scale, out=quotients)
            mean[start : start + step] = quotients
        return mean


def next_floor(max_exponents: Sequence[int], weights: Sequence[int], floor: int) -> int:
    """Return the floor for bodies on the next commit.

    It follows the median of the rows' largest exponents, by one step at most, so that a table's floors stay near each other.

    Args:
        max_exponents: each row's largest exponent, its base's floor added.
        weights: of the rows, before they were clipped.
        floor: for bodies on the commit before.

    Raises:
        ValueError: no rows, or not a weight for each.
    """
    wanted = weighted_median(zip(max_exponents, weights, strict=True)) - _BELOW
    moved = floor + (wanted > floor) - (wanted < floor)
    return min(max(moved, MIN_FLOOR), MAX_FLOOR)
