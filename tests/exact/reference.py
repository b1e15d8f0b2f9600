"""The coding and the mean as docs and comments say them: one value at a time, in fractions."""

import math
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

LIMITS = {"int16": 32767, "int8": 127}
FORMATS = {"int16": "h", "int8": "b"}
Chunk = tuple[int, list[int]]  # exponent and integers

FLOORS = st.one_of(st.integers(-200, 94), st.integers(-150, -100), st.integers(-20, 20))
CODECS = st.sampled_from(sorted(LIMITS))


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


def coded_chunk(codec: str, values: Sequence[Fraction], floor: int) -> Chunk:
    limit = LIMITS[codec]
    for exponent in range(20):
        rounded = {value: round(value / two_to(floor + exponent)) for value in set(values)}
        if all(abs(integer) <= limit for integer in rounded.values()):
            break
    return exponent, [max(-limit, min(limit, rounded[value])) for value in values]


def coded(codec: str, values: Iterable[float], floor: int) -> list[Chunk]:
    fractions = [Fraction(float(value)) for value in values]
    return [coded_chunk(codec, fractions[first : first + 4096], floor) for first in range(0, len(fractions), 4096)]


def body_bytes(codec: str, chunks: Iterable[Chunk]) -> bytes:
    return b"".join(struct.pack(f"<B{len(integers)}{FORMATS[codec]}", exponent, *integers) for exponent, integers in chunks)


def decoded(chunks: Iterable[Chunk], floor: int) -> list[Fraction]:
    return [integer * two_to(floor + exponent) for exponent, integers in chunks for integer in integers]


def mean(rows: Sequence[tuple[list[Chunk], int, int]], total_weight: int, floor: int) -> list[np.float32]:
    """The mean of (chunks, shift, weight); its sums are in units of 2^floor."""
    scaled = [[weight * value for value in decoded(chunks, shift)] for chunks, shift, weight in rows]
    sums = [sum(column) for column in zip(*scaled, strict=True)]
    assert all(Fraction(value).denominator == 1 for value in sums)
    return [float32(Fraction(math.ldexp(float(value) / float(total_weight), floor))) for value in sums]
