"""Vectors in groups: their bytes, their sizes, and what is refused."""

import struct
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.codec.coding import group_sizes
from manta_swarm.codec.vectors import joined, vector_group_sizes, vector_groups
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import GROUP_VALUES
from tests.codec.reference import DENSE, SPARSE

COUNTS = [1, 4096, GROUP_VALUES - 1, GROUP_VALUES, GROUP_VALUES + 1, 2 * GROUP_VALUES, 3 * GROUP_VALUES + 7]
PATTERNS = st.integers(0, 2**32 - 1)
FINITE = PATTERNS.filter(lambda bits: bits >> 23 & 0xFF != 0xFF)


def vector(count: int) -> np.ndarray:
    """Finite float32s of all signs and magnitudes, an eighth of them denormal."""
    bits = np.arange(count, dtype=np.uint32) * np.uint32(2_654_435_769)
    exponents = np.where(bits & 7 == 0, 0, (bits >> 23) % 255).astype(np.uint32)
    return ((bits & np.uint32(0x807FFFFF)) | (exponents << np.uint32(23))).view(np.float32)


@pytest.mark.parametrize("count", COUNTS)
def test_a_vector_is_its_groups_of_a_mebibyte_one_after_the_other(count: int) -> None:
    values = vector(count)
    groups = vector_groups(values)
    whole = values.astype("<f4").tobytes()
    assert groups == [whole[start : start + 2**20] for start in range(0, len(whole), 2**20)]
    assert tuple(len(group) for group in groups) == vector_group_sizes(count)
    assert joined(groups, count).tobytes() == values.tobytes()
    assert joined([bytes(group) for group in groups], count).tobytes() == values.tobytes()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("codec", [*DENSE, *SPARSE])
def test_a_group_has_the_values_of_a_bodys_group(codec: str, count: int) -> None:
    sizes, body_sizes = vector_group_sizes(count), group_sizes(codec, count)
    assert len(sizes) == len(body_sizes)
    assert [group_sizes(codec, size // 4) for size in sizes] == [(size,) for size in body_sizes]


@given(st.lists(FINITE, max_size=20), st.integers(1, 6))
def test_short_groups_are_what_the_format_says_value_by_value(patterns: list[int], group_values: int) -> None:
    values = np.array(patterns, np.uint32).view(np.float32)
    with patch("manta_swarm.codec.vectors.GROUP_VALUES", group_values):
        groups = vector_groups(values)
        sizes = vector_group_sizes(len(patterns))
        again = joined(groups, len(patterns))
    expected = [patterns[start : start + group_values] for start in range(0, len(patterns), group_values)]
    assert groups == [struct.pack(f"<{len(part)}I", *part) for part in expected]
    assert sizes == tuple(4 * len(part) for part in expected)
    assert again.view(np.uint32).tolist() == patterns


@given(st.lists(PATTERNS, min_size=1, max_size=6), st.integers(1, 4))
def test_groups_are_read_exactly_if_every_value_is_finite(patterns: list[int], group_values: int) -> None:
    groups = [
        struct.pack(f"<{len(part)}I", *part)
        for part in (patterns[start : start + group_values] for start in range(0, len(patterns), group_values))
    ]
    is_finite = all(bits >> 23 & 0xFF != 0xFF for bits in patterns)
    with patch("manta_swarm.codec.vectors.GROUP_VALUES", group_values):
        try:
            found = joined(groups, len(patterns))
        except EncodingError:
            assert not is_finite
        else:
            assert is_finite
            assert found.view(np.uint32).tolist() == patterns


def test_groups_of_a_vector_in_another_order_of_bytes_or_with_gaps_are_the_same() -> None:
    values = vector(GROUP_VALUES + 3)
    assert vector_groups(values.astype(">f4")) == vector_groups(values)
    assert vector_groups(values[::2]) == vector_groups(values[::2].copy())


def test_what_was_joined_is_a_vector_of_its_own() -> None:
    values = vector(10)
    data = bytearray(b"".join(vector_groups(values)))
    found = joined([memoryview(data)], 10)
    data[:] = bytes(len(data))
    assert found.tobytes() == values.tobytes()
    assert found.dtype == np.float32
    found[:] = 0.0
    assert values.any()


def test_groups_take_no_memory_of_their_own() -> None:
    values = vector(2 * GROUP_VALUES)
    assert all(np.shares_memory(np.frombuffer(group, np.uint8), values) for group in vector_groups(values.astype("<f4", copy=False)))


def sizes_of(*sizes: int) -> list[bytes]:
    return [bytes(size) for size in sizes]


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        ([], 1),
        (sizes_of(0), 1),
        (sizes_of(3), 1),
        (sizes_of(5), 1),
        (sizes_of(8), 1),
        (sizes_of(4, 0), 1),
        (sizes_of(4, 4), 1),
        (sizes_of(4, 4), 2),
        (sizes_of(4), 0),
        (sizes_of(0), 0),
        (sizes_of(2**20), GROUP_VALUES + 1),
        (sizes_of(2**20 + 4), GROUP_VALUES + 1),
        (sizes_of(4, 2**20), GROUP_VALUES + 1),
        (sizes_of(2**20 - 4, 8), GROUP_VALUES + 1),
        (sizes_of(2**20, 8), GROUP_VALUES + 1),
        (sizes_of(2**20, 4, 4), GROUP_VALUES + 1),
        (sizes_of(2**20, 2**20), GROUP_VALUES),
    ],
)
def test_groups_of_other_sizes_are_refused(groups: list[bytes], count: int) -> None:
    with pytest.raises(EncodingError, match="sizes"):
        joined(groups, count)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, GROUP_VALUES - 1, GROUP_VALUES, GROUP_VALUES + 4])
def test_a_value_that_is_no_finite_number_is_refused(value: float, place: int) -> None:
    values = vector(GROUP_VALUES + 5)
    values[place] = value
    with pytest.raises(EncodingError, match="finite"):
        joined(vector_groups(values), GROUP_VALUES + 5)
