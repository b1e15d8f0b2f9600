"""Chunks of which only the largest magnitudes are coded: an exponent, the positions in Elias-Fano form, then their integers.

A chunk of n values keeps k of them, the same part of a short chunk as of a whole one. With l = floor(log2(n / k)), it is the
exponent, the l low bits of each position, a string of bits in which bit (position >> l) + i is set for the i-th position, and the integers
plus the limit. Each of these begins at a byte; bits fill bytes from the least significant one upwards, and what is left of a byte is 0.

Of a chunk's values there is one form: the k positions are those of its largest magnitudes, and where fewer than k values are other than 0
once they are coded, the lowest positions make up the number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.dense import Block, Bytes, Integers
from manta_swarm.codec.scaling import is_too_large, least_exponents, rounded
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import CHUNK, Codec

_MAGNITUDE = np.uint32(0x7FFFFFFF)  # a float32 without its sign: as an unsigned integer, in the order of magnitudes

Bits = NDArray[np.uint8]  # (chunks, bits): each 0 or 1


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the chunks of one length are laid out."""

    length: int  # n
    kept: int  # k
    low_bits: int  # l
    integer_bits: int

    @classmethod
    def of(cls, codec: Codec, length: int) -> "_Layout":
        kept = -(-codec.kept * length // CHUNK)
        return cls(length, kept, (length // kept).bit_length() - 1, codec.bits + 1)

    @property
    def high_bits(self) -> int:
        """Bits of the string that has one set for each position: the last that can be is that of the last position."""
        return self.kept + (self.length - 1 >> self.low_bits)

    @property
    def ends(self) -> tuple[int, int, int]:
        """Where low bits, high bits and integers end in a chunk's bytes."""
        low = 1 + _num_bytes(self.kept * self.low_bits)
        high = low + _num_bytes(self.high_bits)
        return low, high, high + _num_bytes(self.kept * self.integer_bits)


def chunk_num_bytes(codec: Codec, length: int) -> int:
    """Return how long the chunk of ``length`` values is."""
    return _Layout.of(codec, length).ends[2]


def write(codec: Codec, values: NDArray[np.float32], min_exponent: int, chunks: Bytes) -> None:
    """Code chunks of values (chunks, length) into their bytes.

    Raises:
        ValueError: values that are not finite.
    """
    layout = _Layout.of(codec, values.shape[1])
    exponents, positions, integers = _chosen(codec, layout, values, min_exponent)
    low_end, high_end, _ = layout.ends
    chunks[:, 0] = exponents
    chunks[:, 1:low_end] = _packed(_bits_of(positions, layout.low_bits))
    high = np.zeros((len(chunks), layout.high_bits), np.uint8)
    np.put_along_axis(high, (positions >> layout.low_bits) + np.arange(layout.kept), 1, axis=1)
    chunks[:, low_end:high_end] = _packed(high)
    chunks[:, high_end:] = _packed(_bits_of((integers + codec.limit).astype(np.uint16), layout.integer_bits))


def read(codec: Codec, start: int, chunks: Bytes, length: int) -> Block:
    """Return what these chunks of ``length`` values each are; the first one's first value has the index ``start``.

    Raises:
        EncodingError: not what ``write`` makes of any values.
    """
    layout = _Layout.of(codec, length)
    low_end, high_end, _ = layout.ends
    low = _unpacked(chunks[:, 1:low_end], layout.kept * layout.low_bits)
    high = _unpacked(chunks[:, low_end:high_end], layout.high_bits)
    codes = _numbers(_unpacked(chunks[:, high_end:], layout.kept * layout.integer_bits), layout.kept, layout.integer_bits)
    if (np.count_nonzero(high, axis=1) != layout.kept).any():
        raise EncodingError(f"a chunk has other than {layout.kept} positions")
    upper = _places_of(high.view(np.bool_), layout.kept) - np.arange(layout.kept)
    positions = (upper << layout.low_bits).astype(np.uint16) | _numbers(low, layout.kept, layout.low_bits)
    if (positions[:, 1:] <= positions[:, :-1]).any() or (positions[:, -1] >= length).any():
        raise EncodingError("positions that do not ascend within their chunk")
    if (codes > 2 * codec.limit).any():
        raise EncodingError(f"an integer is above {codec.limit}")
    integers = (codes.astype(np.int16) - codec.limit).astype(np.int8)
    block = Block(start, chunks[:, 0].copy(), integers, positions)
    _check(codec, block)
    return block


def _check(codec: Codec, block: Block) -> None:
    """Check that a block's integers and positions are those of its values.

    Raises:
        EncodingError: they are not.
    """
    if is_too_large(block.exponents, np.abs(block.integers).max(axis=1), codec):
        raise EncodingError("a chunk's exponent is larger than it needs")
    # A zero is at a lowest position that no other integer has: all those below it are in the chunk too.
    if ((block.integers == 0) & (block.positions != np.arange(block.integers.shape[1]))).any():
        raise EncodingError("a zero that is not at the lowest position that is left")


def _chosen(
    codec: Codec, layout: _Layout, values: NDArray[np.float32], min_exponent: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Integers]:
    """Return exponents (chunks,), and the positions and integers (chunks, kept) that stand for values (chunks, length)."""
    values = np.ascontiguousarray(values)
    magnitudes = values.view(np.uint32) & _MAGNITUDE
    exponents = least_exponents(magnitudes.max(axis=1).view(np.float32), codec, min_exponent)
    positions = _places_of(_largest(magnitudes, layout.kept), layout.kept)
    integers = rounded(np.take_along_axis(values, positions, axis=1), exponents, codec, min_exponent).astype(np.int16)
    hollow = np.flatnonzero((integers == 0).any(axis=1))
    if hollow.size:
        positions[hollow], integers[hollow] = _settled(layout, positions[hollow], integers[hollow])
    return exponents, positions, integers


def _largest(magnitudes: NDArray[np.uint32], kept: int) -> NDArray[np.bool_]:
    """Return where the ``kept`` largest of each chunk are (chunks, length), of equal ones those in front."""
    least = np.partition(magnitudes, -kept, axis=1)[:, -kept, None]  # a value, and so the same whatever the algorithm
    chosen = magnitudes >= least
    tied = np.flatnonzero(np.count_nonzero(chosen, axis=1) > kept)
    if tied.size:
        above, equal = magnitudes[tied] > least[tied], magnitudes[tied] == least[tied]
        wanted = kept - np.count_nonzero(above, axis=1)[:, None]
        chosen[tied] = above | equal & (np.cumsum(equal, axis=1, dtype=np.int16) <= wanted)
    return chosen


def _settled(layout: _Layout, positions: NDArray[np.int64], integers: Integers) -> tuple[NDArray[np.int64], Integers]:
    """Return positions and integers (chunks, kept) with every zero at the lowest positions that are left."""
    spread = np.zeros((len(positions), layout.length), integers.dtype)
    np.put_along_axis(spread, positions, integers, axis=1)
    is_left = spread == 0
    zeros = np.count_nonzero(integers == 0, axis=1)[:, None]
    settled = _places_of(~is_left | (np.cumsum(is_left, axis=1, dtype=np.int16) <= zeros), layout.kept)
    return settled, np.take_along_axis(spread, settled, axis=1)


def _places_of(chosen: NDArray[np.bool_], kept: int) -> NDArray[np.int64]:
    """Return where ``chosen`` (chunks, length) is true (chunks, kept): so often in each chunk."""
    places: NDArray[np.int64] = np.flatnonzero(chosen).reshape(-1, kept)
    places -= chosen.shape[1] * np.arange(len(chosen))[:, None]
    return places


def _num_bytes(bits: int) -> int:
    return -(-bits // 8)


def _bits_of(numbers: NDArray[np.integer], width: int) -> Bits:
    """Return the ``width`` lowest bits of each number (chunks, kept) below 2^16, one number after the other."""
    bits = np.unpackbits(numbers.astype("<u2").reshape(-1).view(np.uint8), bitorder="little")
    return bits.reshape(*numbers.shape, 16)[:, :, :width].reshape(len(numbers), -1)


def _numbers(bits: Bits, kept: int, width: int) -> NDArray[np.uint16]:
    """Return the numbers (chunks, kept) of ``width`` bits each."""
    fields = bits.reshape(len(bits), kept, width)
    numbers = np.zeros((len(bits), kept), np.uint16)
    for place in range(width):
        numbers |= fields[:, :, place].astype(np.uint16) << np.uint16(place)
    return numbers


def _packed(bits: Bits) -> Bytes:
    return np.packbits(bits, axis=1, bitorder="little")


def _unpacked(data: Bytes, count: int) -> Bits:
    """Return ``count`` bits a chunk.

    Raises:
        EncodingError: what is left of the last byte is not 0.
    """
    bits = np.unpackbits(data, axis=1, bitorder="little")
    if bits[:, count:].any():
        raise EncodingError("bits that stand for nothing are set")
    return bits[:, :count]
