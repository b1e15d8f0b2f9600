"""How a vector of float32 becomes a body and back: small integers, with one exponent for each chunk of 4096 values.

A body is its chunks in order (the last may be shorter). A chunk begins with the exponent e, relative to a min exponent that whoever reads
it knows; then come integers q: of all its values (``codec.dense``) or of the largest of them, with their positions (``codec.sparse``). A
value is q * 2^(min exponent + e), and 0 where there is no integer. The exponent is the least that fits, so a vector has one body.

Each step is integer arithmetic, or an operation on single values that IEEE 754 rounds exactly; most are exact anyway. What a body may
weigh, who signs it and the root over its groups are not known here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec import dense, sparse
from manta_swarm.codec.dense import Block, Bytes
from manta_swarm.codec.scaling import check_denormals, check_min_exponent, powers_of_two
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import CHUNK, GROUP_CHUNKS, GROUP_VALUES, Codec, codec_named


def body_num_bytes(codec: str, count: int) -> int:
    """Return how long the body of ``count`` values is."""
    whole, rest = divmod(count, CHUNK)
    coded = codec_named(codec)
    return whole * _chunk_num_bytes(coded, CHUNK) + (_chunk_num_bytes(coded, rest) if rest else 0)


def group_sizes(codec: str, count: int) -> tuple[int, ...]:
    """Return how long each group of a body of ``count`` values is; a group is the body of its own values."""
    whole, rest = divmod(count, GROUP_VALUES)
    return (body_num_bytes(codec, GROUP_VALUES),) * whole + ((body_num_bytes(codec, rest),) if rest else ())


def body_groups(codec: str, data: bytes, count: int) -> list[memoryview]:
    """Return a body of ``count`` values in its groups, the leaves under its root; views of ``data``."""
    ends = list(accumulate(group_sizes(codec, count)))
    return [memoryview(data)[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True, eq=False)
class Body:
    """A body that has been parsed. A dense one reads its bytes where they lie: nobody may change them as long as it lives."""

    codec: Codec
    count: int
    exponents: NDArray[np.uint8]  # one a chunk, relative to the min exponent
    blocks: Callable[[], Iterator[Block]]  # yields the body in order, at most a group at a time

    @cached_property
    def max_exponent(self) -> int:
        """The largest exponent of a chunk, relative to the min exponent."""
        return int(self.exponents.max(initial=0))

    @cached_property
    def norm_square(self) -> int:
        """The sum of the values' squares in units of 4^min exponent, exact; takes a pass over the body the first time."""
        total = 0
        for block in self.blocks():
            # A chunk's sum is below 2^(12 + 30), an integer as every part of it: float64 holds them all, in whatever order they are added.
            values = block.integers.astype(np.float64)
            squares = np.einsum("cv,cv->c", values, values)
            total += sum(int(square) << 2 * exponent for square, exponent in zip(squares.tolist(), block.exponents.tolist(), strict=True))
        return total

    def values(self, min_exponent: int) -> NDArray[np.float32]:
        """Return what the body decodes to on this min exponent, each value rounded to float32 once.

        Raises:
            ValueError: a min exponent out of range.
            OwnFault: as ``check_denormals``.
        """
        check_min_exponent(min_exponent)
        check_denormals()
        values = np.zeros(self.count, np.float32)
        for block in self.blocks():
            scaled = block.integers * powers_of_two(min_exponent + block.exponents.astype(np.int64))[:, None]  # exact in float64
            values[block.places] = scaled.reshape(-1)  # rounds
        return values


def encode(codec: str, values: NDArray[np.float32], min_exponent: int) -> bytes:
    """Return the body of ``values`` (one dimension) on this min exponent.

    Each integer is the nearest, ties to even. A chunk that the largest exponent does not fit saturates. Of equal magnitudes a sparse body
    keeps those of the lower indices.

    Raises:
        ValueError: values that are not finite, or not a float32 vector; a min exponent out of range.
        OwnFault: as ``check_denormals``.
    """
    if values.dtype != np.float32 or values.ndim != 1:
        raise ValueError("a body is made of a float32 vector")
    check_min_exponent(min_exponent)
    check_denormals()
    coded = codec_named(codec)
    data = np.empty(body_num_bytes(codec, values.size), np.uint8)
    write = sparse.write if coded.is_sparse else dense.write
    for start, length, chunks in _chunks(coded, data, values.size):
        write(coded, values[start : start + length * len(chunks)].reshape(len(chunks), length), min_exponent, chunks)
    return data.tobytes()


def parse(codec: str, data: bytes | memoryview, count: int) -> Body:
    """Return the body of ``count`` values that ``data`` is; it may go on reading ``data``, which nobody may change from here on.

    Raises:
        EncodingError: the wrong length, or not what ``encode`` makes of any values.
    """
    if memoryview(data).nbytes != body_num_bytes(codec, count):
        raise EncodingError(f"{memoryview(data).nbytes} bytes are no body of {count} values in {codec}")
    coded, flat = codec_named(codec), np.frombuffer(data, np.uint8)
    exponents = [chunks[:, 0] for _, _, chunks in _chunks(coded, flat, count)]
    joined = np.concatenate([np.empty(0, np.uint8), *exponents])
    if joined.max(initial=0) >= coded.window:
        raise EncodingError(f"an exponent of {joined.max()} is beyond the window")
    if coded.is_sparse:
        blocks = tuple(sparse.read(coded, start, chunks, length) for start, length, chunks in _chunks(coded, flat, count))
        return Body(coded, count, joined, blocks.__iter__)
    body = Body(coded, count, joined, partial(_dense_blocks, coded, flat, count))
    for block in body.blocks():
        dense.check(coded, block)
    return body


def _dense_blocks(codec: Codec, data: NDArray[np.uint8], count: int) -> Iterator[Block]:
    for start, _, chunks in _chunks(codec, data, count):
        yield dense.read(codec, start, chunks)


def _chunk_num_bytes(codec: Codec, length: int) -> int:
    return sparse.chunk_num_bytes(codec, length) if codec.is_sparse else dense.chunk_num_bytes(codec, length)


def _chunks(codec: Codec, data: NDArray[np.uint8], count: int) -> Iterator[tuple[int, int, Bytes]]:
    """Yield a body's chunks where they lie in ``data``, at most a group at a time, the shorter last one by itself.

    With them come the index of their first value, and the number of values that each has.
    """
    whole, rest = divmod(count, CHUNK)
    size = _chunk_num_bytes(codec, CHUNK)
    chunks = data[: whole * size].reshape(whole, size)
    for first in range(0, whole, GROUP_CHUNKS):
        yield first * CHUNK, CHUNK, chunks[first : first + GROUP_CHUNKS]
    if rest:
        yield whole * CHUNK, rest, data[whole * size :].reshape(1, -1)
