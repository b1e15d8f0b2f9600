"""Vectors of float32 as bytes, in groups as long as a body's: what means and states travel in. Groups are the leaves under their roots."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import GROUP_VALUES

_VALUE_BYTES = 4


def vector_groups(values: NDArray[np.float32]) -> list[memoryview]:
    """Return the groups of a vector (N,), little-endian; where the machine is too, they are views of it."""
    data = np.ascontiguousarray(values, dtype="<f4").data.cast("B")
    step = GROUP_VALUES * _VALUE_BYTES
    return [data[start : start + step] for start in range(0, len(data), step)]


def vector_group_sizes(count: int) -> tuple[int, ...]:
    """Return how many bytes each group of a vector of ``count`` values has."""
    return tuple(_VALUE_BYTES * min(GROUP_VALUES, count - start) for start in range(0, count, GROUP_VALUES))


def joined(groups: Sequence[bytes | memoryview], count: int) -> NDArray[np.float32]:
    """Return the vector (``count``,) of these groups, a copy of its own.

    Raises:
        EncodingError: the groups are not those of such a vector, or a value is no finite number.
    """
    if [len(group) for group in groups] != list(vector_group_sizes(count)):
        raise EncodingError(f"groups of other sizes than those of a vector of {count} values")
    values = np.empty(count, np.float32)
    for start, group in zip(range(0, count, GROUP_VALUES), groups, strict=True):
        values[start : start + GROUP_VALUES] = np.frombuffer(group, dtype="<f4")
    if not np.isfinite(values).all():
        raise EncodingError("values that are not finite numbers")
    return values
