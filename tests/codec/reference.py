"""The coding and the mean as docs and comments say them: one value and one bit at a time, in fractions.

A chunk is its exponent and an integer for every value, in a sparse codec 0 for those that are not kept.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

DENSE = ("int16", "int8")
SPARSE = ("topk-512-4", "topk-512-3", "topk-256-4", "topk-64-2", "topk-2048-8", "topk-1-2")
Chunk = tuple[int, list[int]]  # exponent and integers

MIN_EXPONENTS = st.one_of(st.integers(-200, 94), st.integers(-150, -100), st.integers(-20, 20))
DENSE_CODECS = st.sampled_from(DENSE)
SPARSE_CODECS = st.one_of(
    st.sampled_from(SPARSE), st.builds("topk-{}-{}".format, st.one_of(st.integers(1, 2048), st.integers(600, 2048)), st.integers(2, 8))
)
CODECS = st.one_of(DENSE_CODECS, SPARSE_CODECS)


def is_sparse(codec: str) -> bool:
    return codec.startswith("topk")


def limit_of(codec: str) -> int:
    """The largest magnitude of an integer: of the bits, one is the sign."""
    bits = int(codec.split("-")[2]) if is_sparse(codec) else {"int16": 16, "int8": 8}[codec]
    return (1 << bits - 1) - 1


def window_of(codec: str) -> int:
    return 24 if is_sparse(codec) else 20


def kept_of(codec: str, length: int) -> int:
    """How many values of a chunk may be other than 0."""
    return math.ceil(Fraction(int(codec.split("-")[1]) * length, 4096)) if is_sparse(codec) else length


def two_to(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def float32(value: Fraction) -> np.float32:
    """The nearest float32, ties to even; ``value`` is in range. What is negative but rounds to zero is -0.0, as IEEE 754 says."""
    if value == 0:
        return np.float32(0.0)
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < two_to(exponent)  # 2^exponent <= |value| < 2^(exponent + 1)
    unit = two_to(max(exponent, -126) - 23)
    return np.float32(math.copysign(float(round(value / unit) * unit), value))


def coded_chunk(codec: str, values: Sequence[Fraction], min_exponent: int) -> Chunk:
    limit = limit_of(codec)
    ranks = {size: rank for rank, size in enumerate(sorted({abs(value) for value in set(values)}, reverse=True))}
    rank_of = {value: ranks[abs(value)] for value in set(values)}
    largest_first = sorted((rank_of[value], place) for place, value in enumerate(values))
    kept = {place for _, place in largest_first[: kept_of(codec, len(values))]}
    for exponent in range(window_of(codec)):
        rounded = {value: round(value / two_to(min_exponent + exponent)) for value in set(values)}
        if all(abs(integer) <= limit for integer in rounded.values()):
            break
    return exponent, [max(-limit, min(limit, rounded[value])) if place in kept else 0 for place, value in enumerate(values)]


def coded(codec: str, values: Iterable[float], min_exponent: int) -> list[Chunk]:
    fractions = [Fraction(float(value)) for value in values]
    return [coded_chunk(codec, fractions[first : first + 4096], min_exponent) for first in range(0, len(fractions), 4096)]


def packed(bits: str) -> bytes:
    """Bits in the order in which they are written, the first of a byte being its least significant one; the last byte is filled up."""
    filled = bits + "0" * (-len(bits) % 8)
    return bytes(int(filled[start : start + 8][::-1], 2) for start in range(0, len(filled), 8))


def number(value: int, width: int) -> str:
    """The bits of a number, the least significant one first."""
    return "".join(str(value >> place & 1) for place in range(width))


def low_bits_of(length: int, kept: int) -> int:
    low = 0
    while kept * 2 ** (low + 1) <= length:
        low += 1
    return low


def positions_of(codec: str, integers: Sequence[int]) -> list[int]:
    """The positions that are written: those of integers other than 0, and the lowest others to make up the number."""
    used = [place for place, integer in enumerate(integers) if integer]
    left = [place for place, integer in enumerate(integers) if not integer]
    return sorted(used + left[: kept_of(codec, len(integers)) - len(used)])


def sparse_fields(length: int, positions: Sequence[int]) -> tuple[str, str]:
    """The low bits of all positions, and the string that has a bit for each of them."""
    low = low_bits_of(length, len(positions))
    high = ["0"] * (len(positions) + (length - 1 >> low))
    for place, position in enumerate(positions):
        high[(position >> low) + place] = "1"
    return "".join(number(position, low) for position in positions), "".join(high)


def chunk_bytes(codec: str, chunk: Chunk) -> bytes:
    exponent, integers = chunk
    if not is_sparse(codec):
        return struct.pack(f"<B{len(integers)}{'h' if codec == 'int16' else 'b'}", exponent, *integers)
    positions, limit = positions_of(codec, integers), limit_of(codec)
    low, high = sparse_fields(len(integers), positions)
    codes = "".join(number(integers[position] + limit, (2 * limit + 1).bit_length()) for position in positions)
    return bytes([exponent]) + packed(low) + packed(high) + packed(codes)


def body_bytes(codec: str, chunks: Iterable[Chunk]) -> bytes:
    return b"".join(chunk_bytes(codec, chunk) for chunk in chunks)


def decoded(chunks: Iterable[Chunk], min_exponent: int) -> list[Fraction]:
    return [integer * two_to(min_exponent + exponent) for exponent, integers in chunks for integer in integers]


def thinned(codec: str, integers: Sequence[int]) -> list[int]:
    """Integers of which no more are other than 0 than a chunk keeps: the first ones."""
    left, found = kept_of(codec, len(integers)), []
    for integer in integers:
        left -= integer != 0
        found.append(integer if left >= 0 else 0)
    return found


@st.composite
def chunks_of(draw: st.DrawFn, codec: str, count: int) -> list[Chunk]:
    """A chunk of so many values, with an exponent that they need, of all sizes and often of the largest."""
    limit, last = limit_of(codec), window_of(codec) - 1
    size = draw(st.sampled_from([0, 1, limit // 2, limit, limit, limit]))
    integers = thinned(codec, draw(st.lists(st.integers(-size, size), min_size=count, max_size=count)))
    is_large = max(map(abs, integers)) > limit // 2
    return [(draw(st.one_of(st.integers(0, last), st.just(last - 7))) if is_large else 0, integers)]


def masked_mean(
    rows: Sequence[tuple[list[Chunk], int, int, Sequence[bool] | None]], total_weights: Sequence[int], min_exponent: int
) -> list[np.float32]:
    """The mean of (chunks, shift, weight, whether the row has a say in each value); a value in which none has is 0."""
    scaled = []
    for chunks, shift, weight, mask in rows:
        values = [weight * value for value in decoded(chunks, shift)]
        scaled.append(values if mask is None else [value if covers else Fraction(0) for value, covers in zip(values, mask, strict=True)])
    sums = [sum(column) for column in zip(*scaled, strict=True)]
    assert all(Fraction(value).denominator == 1 for value in sums)
    quotients = [float(value) / float(total) if total else 0.0 for value, total in zip(sums, total_weights, strict=True)]
    return [float32(Fraction(math.ldexp(quotient, min_exponent))) for quotient in quotients]
