"""The coding against arithmetic in fractions, and against bytes from strangers."""

import random
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manta_swarm.codec.coding import body_num_bytes, encode, group_sizes, parse
from manta_swarm.codec.scaling import check_denormals
from manta_swarm.protocol.errors import EncodingError, OwnFault
from manta_swarm.protocol.exchange import CHUNK, GREATEST_MIN_EXPONENT, GROUP_CHUNKS, LEAST_MIN_EXPONENT, WINDOW
from tests.codec import reference

Floats = np.ndarray
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
VECTORS = hnp.arrays(np.float32, st.integers(0, 40), elements=FINITE)
GROUP = CHUNK * GROUP_CHUNKS
CODECS = (*reference.DENSE, *reference.SPARSE)


def vector(*values: float) -> Floats:
    return np.array(values, np.float32)


@st.composite
def near_borders(draw: st.DrawFn, codec: str, min_exponent: int) -> Floats:
    """Whole and half multiples of one power of two, most of them near where the exponent or the integer changes."""
    limit = reference.limit_of(codec)
    halves = st.one_of(
        st.integers(-3, 3),
        st.integers(-2 * limit - 4, 2 * limit + 4),
        st.integers(2 * limit - 3, 2 * limit + 4),
        st.integers(limit - 3, limit + 4),
    )
    unit = min_exponent - 1 + draw(st.integers(-2, reference.window_of(codec)))
    scaled = [half * reference.two_to(unit) for half in draw(st.lists(halves, max_size=12))]
    return vector(*(float(reference.float32(value)) for value in scaled if abs(value) < reference.two_to(128)))


def long_vector(seed: int, count: int, min_exponent: int) -> Floats:
    """Few different values a chunk, so that fractions stay fast; chunks are of sizes all over the window and beyond."""
    rng = random.Random(seed)
    chunks = []
    for first in range(0, count, CHUNK):
        top = min_exponent + rng.randrange(-3, 38)
        palette = [rng.uniform(-1.0, 1.0) * 2.0 ** (top - rng.randrange(12)) for _ in range(5)] + [0.0, -0.0]
        chunks.append(rng.choices(palette, k=min(CHUNK, count - first)))
    return vector(*(value for chunk in chunks for value in chunk))


@given(VECTORS, reference.CODECS, reference.MIN_EXPONENTS)
def test_any_vector_is_coded_as_fractions_say(values: Floats, codec: str, min_exponent: int) -> None:
    assert encode(codec, values, min_exponent) == reference.body_bytes(codec, reference.coded(codec, values, min_exponent))


@given(st.data(), reference.CODECS, reference.MIN_EXPONENTS)
def test_values_at_the_borders_of_rounding_are_coded_as_fractions_say(data: st.DataObject, codec: str, min_exponent: int) -> None:
    values = data.draw(near_borders(codec, min_exponent))
    assert encode(codec, values, min_exponent) == reference.body_bytes(codec, reference.coded(codec, values, min_exponent))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("count", "min_exponent"), [(CHUNK, -149), (CHUNK + 7, -20)])
def test_each_chunk_is_coded_by_itself(codec: str, count: int, min_exponent: int) -> None:
    values = long_vector(count, count, min_exponent)
    assert encode(codec, values, min_exponent) == reference.body_bytes(codec, reference.coded(codec, values, min_exponent))


@pytest.mark.parametrize("codec", ["int16", "int8", "topk-512-3"])
def test_a_vector_of_several_groups_is_its_groups_one_after_the_other(codec: str) -> None:
    count = 2 * GROUP + CHUNK + 5
    values = (np.arange(count) * 7919 % 65537 - 32768).astype(np.float32) * np.exp2(np.arange(count) // CHUNK % 23).astype(np.float32)
    data, sizes = encode(codec, values, -3), group_sizes(codec, count)
    assert sizes == tuple(body_num_bytes(codec, length) for length in (GROUP, GROUP, CHUNK + 5))
    groups = [encode(codec, values[first : first + GROUP], -3) for first in range(0, count, GROUP)]
    assert data == b"".join(groups)
    parsed = [parse(codec, group, length) for group, length in zip(groups, (GROUP, GROUP, CHUNK + 5), strict=True)]
    whole = parse(codec, data, count)
    assert sum(body.norm_square for body in parsed) == whole.norm_square
    assert b"".join(body.values(-3).tobytes() for body in parsed) == whole.values(-3).tobytes()
    assert [block.start for block in whole.blocks()] == [0, GROUP, 2 * GROUP, 2 * GROUP + CHUNK]


@given(st.data(), reference.CODECS, reference.MIN_EXPONENTS)
def test_a_body_is_what_fractions_say(data: st.DataObject, codec: str, min_exponent: int) -> None:
    values = data.draw(st.one_of(VECTORS, near_borders(codec, min_exponent)))
    chunks = reference.coded(codec, values, min_exponent)
    body = parse(codec, encode(codec, values, min_exponent), values.size)
    assert body.exponents.tolist() == [exponent for exponent, _ in chunks]
    assert body.max_exponent == max((exponent for exponent, _ in chunks), default=0)
    found = np.zeros(values.size, np.int64)
    for block in body.blocks():
        found[block.places] = block.integers.reshape(-1)
    assert found.tolist() == [q for _, coded in chunks for q in coded]
    assert body.norm_square == sum(value * value for value in reference.decoded(chunks, 0))
    expected = [reference.float32(value) for value in reference.decoded(chunks, min_exponent)]
    assert body.values(min_exponent).tobytes() == np.array(expected, np.float32).tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_the_largest_body_has_an_exact_norm(codec: str) -> None:
    count, top = 3 * CHUNK + 2, reference.limit_of(codec) << reference.window_of(codec) - 1
    values = np.full(count, 2.0**127, np.float32)
    values[1::2] *= -1.0
    kept = 3 * reference.kept_of(codec, CHUNK) + reference.kept_of(codec, 2)
    assert parse(codec, encode(codec, values, LEAST_MIN_EXPONENT), count).norm_square == kept * top**2


@given(st.data(), reference.DENSE_CODECS)
def test_bytes_are_a_body_exactly_if_they_are_what_their_values_are_coded_to(data: st.DataObject, codec: str) -> None:
    count = data.draw(st.integers(1, 4))
    limit = reference.limit_of(codec)
    integers = st.one_of(st.integers(-limit - 1, limit), st.integers(-2, 2), st.integers(limit // 2 - 1, limit // 2 + 2))
    drawn = data.draw(st.lists(integers, min_size=count, max_size=count))
    chunk = (data.draw(st.integers(0, 22)), drawn)
    body = reference.body_bytes(codec, [chunk])
    is_canonical = chunk[0] < WINDOW and chunk == reference.coded_chunk(codec, reference.decoded([chunk], 0), 0)
    try:
        parse(codec, body, count)
    except EncodingError:
        assert not is_canonical
    else:
        assert is_canonical


@given(st.binary(max_size=20), reference.CODECS, st.integers(0, 10))
def test_any_bytes_are_a_body_or_are_refused(data: bytes, codec: str, count: int) -> None:
    try:
        body = parse(codec, data, count)
    except EncodingError:
        return
    assert encode(codec, body.values(0), 0) == data


def test_hand_made_bytes_are_read_as_the_format_says() -> None:
    body = parse("int16", b"\x03" + struct.pack("<3h", -1, 32767, 256), 3)
    assert body.values(-1).tolist() == [-4.0, 131068.0, 1024.0]
    assert body.norm_square == 64 * (1 + 32767**2 + 256**2)
    assert parse("int8", b"\x00\xff\x02", 2).values(0).tolist() == [-1.0, 2.0]


def chunked(exponent: int, *integers: int) -> bytes:
    return reference.body_bytes("int16", [(exponent, list(integers))])


@pytest.mark.parametrize(
    ("codec", "data", "count", "why"),
    [
        ("int16", b"", 1, "bytes"),
        ("int16", chunked(0, 1), 0, "bytes"),
        ("int16", chunked(0, 1), 2, "bytes"),
        ("int16", chunked(0, 1, 2)[:-1], 2, "bytes"),
        ("int16", chunked(0, 1, 2) + b"\x00", 2, "bytes"),
        ("int8", chunked(0, 1, 2), 2, "bytes"),
        ("int16", chunked(20, 32767), 1, "window"),
        ("int16", chunked(255, 32767), 1, "window"),
        ("int16", chunked(0, 5, -32768), 2, "below"),
        ("int16", chunked(19, -32768), 1, "below"),
        ("int8", b"\x00\x80", 1, "below"),
        ("int16", chunked(1, 0, 0), 2, "larger"),
        ("int16", chunked(1, 16383, -16383), 2, "larger"),
        ("int16", chunked(19, 16383), 1, "larger"),
        ("int8", b"\x01\x3f\xc1", 2, "larger"),
        ("int16", chunked(0, *[7] * CHUNK) + chunked(1, 16383), CHUNK + 1, "larger"),
        ("int16", chunked(1, *[7] * CHUNK) + chunked(0, 16383), CHUNK + 1, "larger"),
        ("int16", chunked(0, *[7] * CHUNK) + chunked(20, 16384), CHUNK + 1, "window"),
        ("int16", chunked(0, *[7] * (CHUNK - 1), -32768) + chunked(0, 1), CHUNK + 1, "below"),
        ("int16", chunked(0, *[7] * CHUNK) * GROUP_CHUNKS + chunked(2, *[7] * CHUNK), GROUP + CHUNK, "larger"),
    ],
)
def test_bytes_that_no_vector_is_coded_to_are_refused(codec: str, data: bytes, count: int, why: str) -> None:
    with pytest.raises(EncodingError, match=why):
        parse(codec, data, count)


@pytest.mark.parametrize("data", [chunked(1, 16384), chunked(1, 1, -16384), chunked(19, 32767, -32767), chunked(0, 0, 0)])
def test_bytes_at_the_edge_are_a_body(data: bytes) -> None:
    assert encode("int16", parse("int16", memoryview(data), len(data) // 2).values(0), 0) == data


@pytest.mark.parametrize(
    ("value", "chunk"),
    [
        (0.0, (0, 0)),
        (-0.0, (0, 0)),
        (0.5, (0, 0)),
        (1.5, (0, 2)),
        (-2.5, (0, -2)),
        (32767.0, (0, 32767)),
        (32767.25, (0, 32767)),
        (32767.5, (1, 16384)),  # would round to 32768, which does not fit
        (-32767.5, (1, -16384)),
        (65535.0, (2, 16384)),  # 32767.5 at exponent 1
        (32767.0 * 2**19, (19, 32767)),
        (32767.25 * 2**19, (19, 32767)),
        (32767.5 * 2**19, (19, 32767)),  # saturates from here on
        (-(2.0**127), (19, -32767)),
        (2.0**-149, (0, 0)),
    ],
)
def test_a_value_is_rounded_to_even_at_the_least_exponent_that_fits(value: float, chunk: tuple[int, int]) -> None:
    assert encode("int16", vector(value), 0) == chunked(chunk[0], chunk[1])


def test_a_chunk_that_saturates_keeps_its_smaller_values_and_leaves_other_chunks_alone() -> None:
    values = np.zeros(2 * CHUNK, np.float32)
    values[:4] = 2.0**100, -(2.0**100), 3 * 2.0**19, 2.0**18
    values[CHUNK] = 5.0
    body = parse("int16", encode("int16", values, 0), values.size)
    assert body.exponents.tolist() == [19, 0]
    assert body.values(0)[[0, 1, 2, 3, CHUNK]].tolist() == [32767 * 2.0**19, -32767 * 2.0**19, 3 * 2.0**19, 0.0, 5.0]


def test_denormals_are_coded_exactly_where_the_min_exponent_is_low_enough() -> None:
    values = vector(2.0**-149, -3 * 2.0**-149, 2.0**-137)
    assert parse("int16", encode("int16", values, -149), 3).values(-149).tobytes() == values.tobytes()
    assert parse("int16", encode("int16", values, -151), 3).norm_square == sum((Fraction(float(v)) * 2**151) ** 2 for v in values)
    halves = parse("int16", chunked(0, 1, 2, 3, 6), 4)  # in units of half the smallest number
    assert halves.values(-150).tolist() == [0.0, 2.0**-149, 2.0**-148, 3 * 2.0**-149]


@pytest.mark.parametrize("codec", ["int16", "topk-64-2"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, CHUNK + 2])
def test_a_vector_that_is_not_finite_is_not_coded(codec: str, value: float, place: int) -> None:
    values = np.ones(CHUNK + 3, np.float32)
    values[place] = value
    with pytest.raises(ValueError, match="not finite"):
        encode(codec, values, 0)


def test_what_is_no_float32_vector_or_no_min_exponent_is_not_coded() -> None:
    for values in (np.zeros(3), np.zeros((1, 3), np.float32), np.zeros(3, ">f4")):
        with pytest.raises(ValueError, match="float32 vector"):
            encode("int16", values, 0)
    for min_exponent in (LEAST_MIN_EXPONENT - 1, GREATEST_MIN_EXPONENT + 1):
        with pytest.raises(ValueError, match="min exponent"):
            encode("int16", vector(1.0), min_exponent)
        with pytest.raises(ValueError, match="min exponent"):
            parse("int16", chunked(0, 1), 1).values(min_exponent)


def test_a_vector_need_not_lie_in_one_piece() -> None:
    values = long_vector(5, 2 * CHUNK, -10)
    assert encode("int8", values[::2], -10) == encode("int8", values[::2].copy(), -10)
    assert encode("int8", values[::-1], -10) == encode("int8", values[::-1].copy(), -10)


@pytest.mark.usefixtures("_flushing")
def test_a_thread_that_flushes_denormals_codes_nothing() -> None:
    with pytest.raises(OwnFault, match="denormal"):
        check_denormals()
    with pytest.raises(OwnFault, match="denormal"):
        encode("int16", vector(1.0), 0)
    with pytest.raises(OwnFault, match="denormal"):
        parse("int16", chunked(0, 1), 1).values(0)


@given(st.integers(0, 3 * GROUP), reference.CODECS)
def test_sizes_are_known_before(count: int, codec: str) -> None:
    chunks = [min(CHUNK, count - first) for first in range(0, count, CHUNK)]
    size = {length: len(reference.chunk_bytes(codec, (0, [0] * length))) for length in set(chunks)}
    assert body_num_bytes(codec, count) == sum(size[length] for length in chunks)
    groups = [chunks[first : first + GROUP_CHUNKS] for first in range(0, len(chunks), GROUP_CHUNKS)]
    assert group_sizes(codec, count) == tuple(sum(size[length] for length in group) for group in groups)


def test_a_codec_that_no_manifest_may_name_is_none() -> None:
    for codec in ("int32", "topk-256-9", "topk-2049-4", "topk-0-4", ""):
        with pytest.raises(ValueError, match="unknown codec"):
            encode(codec, vector(1.0), 0)
        with pytest.raises(ValueError, match="unknown codec"):
            parse(codec, b"", 0)
