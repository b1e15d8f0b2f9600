"""Powers of two, and the least of them that a chunk needs. Each step is exact, or an operation that IEEE 754 rounds exactly."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.protocol.errors import OwnFault
from manta_swarm.protocol.exchange import GREATEST_MIN_EXPONENT, LEAST_MIN_EXPONENT, Codec


def powers_of_two(exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 2 to these exponents, exact: for those of any body and min exponent none is denormal or infinite."""
    return np.ldexp(1.0, exponents)


def least_exponents(peaks: NDArray[np.float32], codec: Codec, min_exponent: int) -> NDArray[np.int64]:
    """Return the exponent of each chunk, relative to the min exponent: rounding keeps the order, so its largest magnitude decides.

    Raises:
        ValueError: a magnitude in ``peaks`` that is not finite.
    """
    if not np.isfinite(peaks).all():
        raise ValueError("a vector to be coded holds values that are not finite")
    scaled = peaks.astype(np.float64)[:, None] * powers_of_two(-min_exponent - np.arange(codec.window))
    fits = np.rint(scaled) <= codec.limit
    return np.where(fits.any(axis=1), fits.argmax(axis=1), codec.window - 1)


def rounded(values: NDArray[np.float32], exponents: NDArray[np.int64], codec: Codec, min_exponent: int) -> NDArray[np.float64]:
    """Return values (chunks, length) in units of 2^(min exponent + exponent): the nearest integers, ties to even, within the codec's."""
    scaled = values * powers_of_two(-min_exponent - exponents)[:, None]  # in float64: exact, also of denormals
    np.rint(scaled, out=scaled)
    if exponents.max() == codec.window - 1:
        np.clip(scaled, -codec.limit, codec.limit, out=scaled)
    return scaled


def is_too_large(exponents: NDArray[np.uint8], peaks: NDArray[np.signedinteger[Any]], codec: Codec) -> bool:
    """Return whether a chunk whose largest integer is ``peaks`` would have fitted into a smaller exponent."""
    return bool(((exponents > 0) & (peaks <= codec.limit // 2)).any())


def check_min_exponent(min_exponent: int) -> None:
    """Check that a min exponent is one that a round entry may have.

    Raises:
        ValueError: it is not.
    """
    if not LEAST_MIN_EXPONENT <= min_exponent <= GREATEST_MIN_EXPONENT:
        raise ValueError(f"a min exponent of {min_exponent} is not between {LEAST_MIN_EXPONENT} and {GREATEST_MIN_EXPONENT}")


def check_denormals() -> None:
    """Check that this thread keeps denormal numbers.

    Raises:
        OwnFault: it flushes them to zero, so it would compute other bits than everybody else.
    """
    smallest = np.full(1, 2.0**-149).astype(np.float32)
    if smallest.view(np.uint32)[0] != 1 or smallest.astype(np.float64)[0] != 2.0**-149:
        raise OwnFault("this thread flushes denormal numbers to zero: something called torch.set_flush_denormal(True); remove that call")
