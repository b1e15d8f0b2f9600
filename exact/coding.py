"""How a vector of float32 becomes a body and back: small integers, with one exponent for each chunk of 4096 values.

A body is, for each chunk in order (the last may be shorter), one byte for the exponent e, relative to a floor that whoever reads it knows,
then the chunk's integers q, little-endian; a value is q * 2^(floor + e). The exponent is the least that fits, so a vector has one body.

Each step is integer arithmetic, or an operation on single values that IEEE 754 rounds exactly; most are exact anyway. What a body may
weigh, who signs it and the root over its groups are not known here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EncodingError, OwnFault
from protocol.exchange import CHUNK, CODEC_BITS, GROUP_CHUNKS, MAX_FLOOR, MIN_FLOOR, WINDOW

MAX_EXPONENT = WINDOW - 1


@dataclass(frozen=True, slots=True)
class Codec:
    """What the integers of a body are."""

    name: str
    bits: int  # of a magnitude
    limit: int  # the largest magnitude
    dtype: "np.dtype[Any]"  # as it travels: little-endian


CODECS: Mapping[str, Codec] = {name: Codec(name, bits, 2**bits - 1, np.dtype(f"<i{(bits + 1) // 8}")) for name, bits in CODEC_BITS.items()}


def body_num_bytes(codec: str, count: int) -> int:
    """Return how long the body of ``count`` values is."""
    return -(-count // CHUNK) + CODECS[codec].dtype.itemsize * count


def group_sizes(codec: str, count: int) -> tuple[int, ...]:
    """Return how long each group of a body of ``count`` values is; a group is the body of its own values."""
    whole, rest = divmod(body_num_bytes(codec, count), body_num_bytes(codec, GROUP_CHUNKS * CHUNK))
    return (body_num_bytes(codec, GROUP_CHUNKS * CHUNK),) * whole + ((rest,) if rest else ())


def body_groups(codec: str, data: bytes, count: int) -> list[memoryview]:
    """Return a body of ``count`` values in its groups, the leaves under its root; views of ``data``."""
    ends = list(accumulate(group_sizes(codec, count)))
    return [memoryview(data)[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True, eq=False)
class Body:
    """A body that has been parsed. It reads its bytes where they lie: nobody may change them as long as it lives."""

    codec: Codec
    count: int
    exponents: NDArray[np.uint8]  # one a chunk, relative to the floor
    _data: NDArray[np.uint8]

    def blocks(self) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.signedinteger[Any]]]]:
        """Yield the body in order, at most a group at a time: the first value's index, exponents (chunks,), integers (chunks, length)."""
        for start, records in _blocks(self.codec, self._data, self.count):
            integers = records["q"].astype(self.codec.dtype.newbyteorder("="))  # a copy: aligned, and small enough for a cache
            yield start, records["exponent"], integers

    @cached_property
    def max_exponent(self) -> int:
        """The largest exponent of a chunk, relative to the floor."""
        return int(self.exponents.max(initial=0))

    @cached_property
    def norm_square(self) -> int:
        """The sum of the values' squares in units of 4^floor, exact; takes a pass over the body the first time."""
        total = 0
        for _, exponents, integers in self.blocks():
            # A chunk's sum is below 2^(12 + 30), an integer as every part of it: float64 holds them all, in whatever order they are added.
            values = integers.astype(np.float64)
            squares = np.einsum("cv,cv->c", values, values)
            total += sum(int(square) << 2 * exponent for square, exponent in zip(squares.tolist(), exponents.tolist(), strict=True))
        return total

    def values(self, floor: int) -> NDArray[np.float32]:
        """Return what the body decodes to on this floor, each value rounded to float32 once.

        Raises:
            ValueError: a floor out of range.
            OwnFault: as ``check_denormals``.
        """
        _check_floor(floor)
        check_denormals()
        values = np.empty(self.count, np.float32)
        for start, exponents, integers in self.blocks():
            scaled = integers * _powers_of_two(floor + exponents.astype(np.int64))[:, None]  # exact in float64
            values[start : start + integers.size] = scaled.reshape(-1)  # rounds
        return values


def encode(codec: str, values: NDArray[np.float32], floor: int) -> bytes:
    """Return the body of ``values`` (one dimension) on this floor.

    Each integer is the nearest, ties to even. A chunk that the largest exponent does not fit saturates.

    Raises:
        ValueError: values that are not finite, or not a float32 vector; a floor out of range.
        OwnFault: as ``check_denormals``.
    """
    if values.dtype != np.float32 or values.ndim != 1:
        raise ValueError("a body is made of a float32 vector")
    _check_floor(floor)
    check_denormals()
    data = np.empty(body_num_bytes(codec, values.size), np.uint8)
    limit = CODECS[codec].limit
    for start, records in _blocks(CODECS[codec], data, values.size):
        block = values[start : start + records["q"].size].reshape(records["q"].shape)
        exponents = _least_exponents(block, limit, floor)
        scaled = block * _powers_of_two(-floor - exponents)[:, None]  # in float64: exact, also of denormals
        np.rint(scaled, out=scaled)
        if exponents.max() == MAX_EXPONENT:
            np.clip(scaled, -limit, limit, out=scaled)
        records["exponent"] = exponents
        records["q"] = scaled.astype(records["q"].dtype)
    return data.tobytes()


def parse(codec: str, data: bytes | memoryview, count: int) -> Body:
    """Return the body of ``count`` values that ``data`` is; it goes on reading ``data``, which nobody may change from here on.

    Raises:
        EncodingError: the wrong length, or not what ``encode`` makes of any values.
    """
    if memoryview(data).nbytes != body_num_bytes(codec, count):
        raise EncodingError(f"{memoryview(data).nbytes} bytes are no body of {count} values in {codec}")
    flat = np.frombuffer(data, np.uint8)
    exponents = [records["exponent"] for _, records in _blocks(CODECS[codec], flat, count)]
    body = Body(CODECS[codec], count, np.concatenate([np.empty(0, np.uint8), *exponents]), flat)
    if body.max_exponent > MAX_EXPONENT:
        raise EncodingError(f"an exponent of {body.max_exponent} is beyond the window")
    limit = body.codec.limit
    for _, block_exponents, integers in body.blocks():
        lowest, highest = integers.min(axis=1), integers.max(axis=1)
        if lowest.min() < -limit:
            raise EncodingError(f"an integer is below -{limit}")
        if ((block_exponents > 0) & (np.maximum(highest, -lowest) <= limit // 2)).any():
            raise EncodingError("a chunk's exponent is larger than it needs")
    return body


def check_denormals() -> None:
    """Check that this thread keeps denormal numbers.

    Raises:
        OwnFault: it flushes them to zero, so it would compute other bits than everybody else.
    """
    smallest = np.full(1, 2.0**-149).astype(np.float32)
    if smallest.view(np.uint32)[0] != 1 or smallest.astype(np.float64)[0] != 2.0**-149:
        raise OwnFault("this thread flushes denormal numbers to zero: something called torch.set_flush_denormal(True); remove that call")


def _least_exponents(block: NDArray[np.float32], limit: int, floor: int) -> NDArray[np.int64]:
    """Return the exponent of each row of ``block``: rounding keeps the order, so a row's largest magnitude decides."""
    peaks = np.maximum(block.max(axis=1), -block.min(axis=1)).astype(np.float64)  # not a number if one of them is none
    if not np.isfinite(peaks).all():
        raise ValueError("a vector to be coded holds values that are not finite")
    fits = np.rint(peaks[:, None] * _powers_of_two(-floor - np.arange(WINDOW))) <= limit
    return np.where(fits.any(axis=1), fits.argmax(axis=1), MAX_EXPONENT)


def _powers_of_two(exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.ldexp(1.0, exponents)  # exact: none is denormal or infinite


def _check_floor(floor: int) -> None:
    if not MIN_FLOOR <= floor <= MAX_FLOOR:
        raise ValueError(f"a floor of {floor} is not between {MIN_FLOOR} and {MAX_FLOOR}")


def _blocks(codec: Codec, data: NDArray[np.uint8], count: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield a body's chunks where they lie in ``data``, at most a group at a time, the shorter last one by itself.

    Each block is the index of its first value, and an array of records (exponent, q) that is writable if ``data`` is.
    """
    whole, rest = divmod(count, CHUNK)
    chunk = np.dtype([("exponent", "u1"), ("q", codec.dtype, (CHUNK,))])
    chunks = data[: whole * chunk.itemsize].view(chunk)
    for first in range(0, whole, GROUP_CHUNKS):
        yield first * CHUNK, chunks[first : first + GROUP_CHUNKS]
    if rest:
        last = np.dtype([("exponent", "u1"), ("q", codec.dtype, (rest,))])
        yield whole * CHUNK, data[whole * chunk.itemsize :].view(last)
