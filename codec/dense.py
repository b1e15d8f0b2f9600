"""Chunks of which every value is coded: an exponent, then one integer a value; and some chunks of a body, decoded, dense or sparse."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.scaling import is_too_large, least_exponents, rounded
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import CHUNK, Codec

Bytes = NDArray[np.uint8]  # (chunks, bytes of a chunk)
Integers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """At most a group of a body's chunks, all of one length."""

    start: int  # index of the first chunk's first value
    exponents: NDArray[np.uint8]  # (chunks,), relative to the min exponent
    integers: Integers  # (chunks, kept): in the order of their values
    positions: NDArray[np.uint16] | None  # (chunks, kept): where they are in their chunk; None: all values are there

    @property
    def places(self) -> slice | NDArray[np.int64]:
        """Where the integers, flattened, are in the vector."""
        if self.positions is None:
            return slice(self.start, self.start + self.integers.size)
        firsts = self.start + CHUNK * np.arange(len(self.exponents))
        return (firsts[:, None] + self.positions).reshape(-1)


def chunk_num_bytes(codec: Codec, length: int) -> int:
    """Return how long the chunk of ``length`` values is."""
    return 1 + _integer(codec).itemsize * length


def write(codec: Codec, values: NDArray[np.float32], min_exponent: int, chunks: Bytes) -> None:
    """Code chunks of values (chunks, length) into their bytes.

    Raises:
        ValueError: values that are not finite.
    """
    peaks = np.maximum(values.max(axis=1), -values.min(axis=1))  # not a number if one of the values is none
    exponents = least_exponents(peaks, codec, min_exponent)
    chunks[:, 0] = exponents
    chunks[:, 1:].view(_integer(codec))[...] = rounded(values, exponents, codec, min_exponent)


def read(codec: Codec, start: int, chunks: Bytes) -> Block:
    """Return what these chunks are, unchecked; the first one's first value has the index ``start``."""
    integer = _integer(codec)
    integers = chunks[:, 1:].view(integer).astype(integer.newbyteorder("="))  # a copy: aligned, and small enough for a cache
    return Block(start, chunks[:, 0], integers, None)


def check(codec: Codec, block: Block) -> None:
    """Check that a block is what ``write`` makes of its values.

    Raises:
        EncodingError: it is not.
    """
    lowest, highest = block.integers.min(axis=1), block.integers.max(axis=1)
    if lowest.min() < -codec.limit:
        raise EncodingError(f"an integer is below -{codec.limit}")
    if is_too_large(block.exponents, np.maximum(highest, -lowest), codec):
        raise EncodingError("a chunk's exponent is larger than it needs")


def _integer(codec: Codec) -> "np.dtype[Any]":
    return np.dtype(f"<i{(codec.bits + 1) // 8}")
