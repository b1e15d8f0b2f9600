"""The sparse form: which values are kept, how their positions are written, and every way in which bytes are none."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.codec.coding import body_num_bytes, encode, parse
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import CHUNK, GROUP_CHUNKS
from tests.codec import reference

CODEC = "topk-512-4"  # of 16 values it keeps 2, with low parts of 3 bits


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def kept(codec: str, values: np.ndarray, min_exponent: int = 0) -> dict[int, float]:
    """What a vector comes to, by position, where it is other than 0."""
    decoded = parse(codec, encode(codec, values, min_exponent), values.size).values(min_exponent)
    return {int(place): float(decoded[place]) for place in np.flatnonzero(decoded)}


def read_bits(data: bytes, start: int, count: int) -> str:
    return "".join(str(data[start + place // 8] >> place % 8 & 1) for place in range(count))


def as_number(bits: str) -> int:
    return int(bits[::-1] or "0", 2)


def read_chunk(codec: str, data: bytes, length: int) -> reference.Chunk | None:
    """Read a chunk bit by bit, with no look at whether it is what anything is coded to; None: its positions or integers are none."""
    count, limit = reference.kept_of(codec, length), reference.limit_of(codec)
    low, width = reference.low_bits_of(length, count), (2 * limit + 1).bit_length()
    high_bits = count + (length - 1 >> low)
    high_start = 1 + -(-count * low // 8)
    code_start = high_start + -(-high_bits // 8)
    high = read_bits(data, high_start, high_bits)
    uppers = [place - at for at, place in enumerate(place for place, bit in enumerate(high) if bit == "1")]
    if len(uppers) != count:
        return None
    lows, codes = read_bits(data, 1, count * low), read_bits(data, code_start, count * width)
    integers = [0] * length
    for at, upper in enumerate(uppers):
        position = (upper << low) + as_number(lows[at * low : (at + 1) * low])
        integer = as_number(codes[at * width : (at + 1) * width]) - limit
        if position >= length or integer > limit:
            return None
        integers[position] = integer
    return data[0], integers


def is_body(codec: str, data: bytes, length: int) -> bool:
    """Whether a chunk is what its values are coded to."""
    chunk = read_chunk(codec, data, length)
    if chunk is None or chunk[0] >= 24:
        return False
    return reference.chunk_bytes(codec, reference.coded_chunk(codec, reference.decoded([chunk], 0), 0)) == data


def check_parse(codec: str, data: bytes, length: int) -> None:
    try:
        body = parse(codec, data, length)
    except EncodingError:
        assert not is_body(codec, data, length)
    else:
        assert is_body(codec, data, length)
        assert encode(codec, body.values(0), 0) == data


@given(st.integers(1, 40), reference.SPARSE_CODECS, st.data())
def test_bytes_are_a_body_exactly_if_they_are_what_their_values_are_coded_to(length: int, codec: str, data: st.DataObject) -> None:
    size = body_num_bytes(codec, length)
    check_parse(codec, data.draw(st.binary(min_size=size, max_size=size)), length)


@given(st.integers(1, 40), reference.SPARSE_CODECS, st.integers(0, 24), st.data())
def test_a_body_with_some_bits_changed_is_one_or_is_refused(length: int, codec: str, exponent: int, data: st.DataObject) -> None:
    limit = reference.limit_of(codec)
    integers = reference.thinned(codec, data.draw(st.lists(st.integers(-limit, limit), min_size=length, max_size=length)))
    body = bytearray(reference.chunk_bytes(codec, (exponent, integers)))
    for place in data.draw(st.lists(st.integers(0, 8 * len(body) - 1), max_size=3)):
        body[place // 8] ^= 1 << place % 8
    check_parse(codec, bytes(body), length)


def test_of_a_small_chunk_exactly_those_bytes_are_bodies_that_something_is_coded_to() -> None:
    """Three values of which two are kept: every string of positions, every pair of integers."""
    assert body_num_bytes("topk-2048-2", 3) == 3
    for exponent, positions, integers in itertools.product((0, 1), range(256), (*range(16), 16, 0x85)):
        check_parse("topk-2048-2", bytes([exponent, positions, integers]), 3)


@pytest.mark.parametrize("length", [*range(1, 34), 127, 128, 129, 1000, 2049, 4095, 4096])
def test_a_chunk_of_any_length_is_laid_out_as_the_reference_has_it(length: int) -> None:
    rng = random.Random(length)
    for codec in reference.SPARSE:
        values = vector(*(rng.choice([-1, 1]) * rng.randrange(1, 50) for _ in range(length)))
        assert encode(codec, values, -1) == reference.body_bytes(codec, reference.coded(codec, values, -1))


def test_a_body_of_the_usual_codec_is_a_twentyfifth_of_a_vector_in_half_precision() -> None:
    assert body_num_bytes("topk-256-4", CHUNK) == 1 + 128 + 64 + 128
    assert body_num_bytes("topk-64-2", CHUNK) == 1 + 48 + 16 + 16


def test_the_largest_magnitudes_are_kept_whatever_their_sign() -> None:
    values = vector(*([0.25] * 16))
    values[[3, 11]] = -5.0, 4.0
    assert kept(CODEC, values) == {3: -5.0, 11: 4.0}
    values[[3, 11]] = 0.0
    values[[0, 15]] = 4.0, -5.0
    assert kept(CODEC, values) == {0: 4.0, 15: -5.0}


def test_of_equal_magnitudes_those_in_front_are_kept() -> None:
    values = vector(*([-2.0, 2.0] * 8))
    assert kept(CODEC, values) == {0: -2.0, 1: 2.0}
    values[9] = 3.0
    assert kept(CODEC, values) == {0: -2.0, 9: 3.0}
    values[12] = -3.0
    assert kept(CODEC, values) == {9: 3.0, 12: -3.0}
    values[[9, 12]] = 1.0
    values[:7] = 0.0
    assert kept(CODEC, values) == {7: 2.0, 8: -2.0}


def test_equal_magnitudes_in_many_chunks_are_kept_in_front_in_each_of_them() -> None:
    values = np.ones(3 * CHUNK + 16, np.float32)
    values[CHUNK : 2 * CHUNK] = np.linspace(1, 2, CHUNK, dtype=np.float32)
    places = list(kept("topk-64-4", values))
    assert places == [*range(64), *range(2 * CHUNK - 64, 2 * CHUNK), *range(2 * CHUNK, 2 * CHUNK + 64), 3 * CHUNK]


def test_denormals_have_an_order_too() -> None:
    values = np.arange(16, dtype=np.uint32).view(np.float32)
    assert kept(CODEC, values, -149) == {14: 16 * 2.0**-149, 15: 16 * 2.0**-149}  # units of 4: 15 / 2 rounds to 8


def test_zeros_among_the_kept_are_written_at_the_lowest_positions_that_are_left() -> None:
    assert positions(CODEC, vector(*([0.0] * 16))) == [0, 1]
    assert positions(CODEC, vector(*([0.0] * 9 + [1.0] + [0.0] * 6))) == [0, 9]
    assert positions(CODEC, vector(*([1.0] + [0.0] * 15))) == [0, 1]
    tiny = vector(*([0.0] * 9 + [1e6, 1.0] + [0.0] * 5))  # the second largest is nothing beside the largest
    assert positions(CODEC, tiny) == [0, 9]
    assert kept(CODEC, tiny) == {9: pytest.approx(1e6, rel=0.1)}


def positions(codec: str, values: np.ndarray) -> list[int]:
    (block,) = parse(codec, encode(codec, values, 0), values.size).blocks()
    assert block.positions is not None
    return block.positions[0].tolist()


def test_hand_made_bytes_are_read_as_the_format_says() -> None:
    """Positions 3 and 11 with -7 and 6 in units of 4: low parts 011 and 011, upper parts 0 and 1, codes 0 and 13."""
    data = bytes([2, 0b011_011, 0b0000_0101, 0b1101_0000])
    assert parse(CODEC, data, 16).values(0).tolist() == [0, 0, 0, -28, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0]


def chunk(
    exponent: int = 2, low: str = "110110", high: str = "101", codes: Sequence[int] = (0, 13), ends: tuple[str, str, str] = ("", "", "")
) -> bytes:
    """The chunk of the test above with some of it changed; ``ends`` are bits after those of each part."""
    parts = [low, high, "".join(reference.number(code, 4) for code in codes)]
    return bytes([exponent]) + b"".join(reference.packed(bits + end) for bits, end in zip(parts, ends, strict=True))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "bytes"),
        (chunk()[:-1], "bytes"),
        (chunk() + b"\x00", "bytes"),
        (chunk(exponent=24), "window"),
        (chunk(exponent=255), "window"),
        (chunk(high="100"), "positions"),
        (chunk(high="111"), "positions"),
        (chunk(high="000"), "positions"),
        (chunk(high="110"), "ascend"),  # both in the lower half, at the same place
        (chunk(high="110", low="110100"), "ascend"),
        (chunk(ends=("1", "", "")), "nothing"),
        (chunk(ends=("01", "", "")), "nothing"),
        (chunk(ends=("", "1", "")), "nothing"),
        (chunk(ends=("", "00001", "")), "nothing"),
        (chunk(codes=(0, 15)), "above"),
        (chunk(codes=(15, 13)), "above"),
        (chunk(codes=(4, 10)), "larger"),  # -3 and 3 in units of 4 are -6 and 6 in units of 2
        (chunk(exponent=1, codes=(7, 7)), "larger"),
        (chunk(codes=(0, 7)), "zero"),
        (chunk(codes=(7, 0)), "zero"),
        (chunk(exponent=0, codes=(7, 7)), "zero"),
        (chunk(exponent=0, codes=(7, 7), low="000010", high="110"), "zero"),  # at 0 and 2
    ],
)
def test_bytes_that_no_vector_is_coded_to_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(EncodingError, match=why):
        parse(CODEC, data, 16)


@pytest.mark.parametrize(
    "data",
    [
        chunk(),
        chunk(exponent=0, codes=(4, 10)),
        chunk(exponent=23),
        chunk(exponent=2, codes=(3, 11)),
        chunk(low="000110", codes=(7, 14)),  # a zero at 0
        chunk(exponent=0, codes=(7, 7), low="000100", high="110"),  # and at 0 and 1
    ],
)
def test_bytes_at_the_edge_are_a_body(data: bytes) -> None:
    assert encode(CODEC, parse(CODEC, data, 16).values(0), 0) == data


def test_a_position_beyond_a_chunk_that_is_no_power_of_two_is_refused() -> None:
    """3 of 19 values are kept, with low parts of 2 bits; the last upper part, 4, has the positions 16 to 18 only."""
    parse(CODEC, reference.chunk_bytes(CODEC, (0, [7] * 2 + [0] * 16 + [7])), 19)
    low, high = reference.sparse_fields(20, [0, 1, 19])
    beyond = b"\x00" + reference.packed(low) + reference.packed(high) + reference.packed(reference.number(14, 4) * 3)
    assert len(beyond) == body_num_bytes(CODEC, 19)
    with pytest.raises(EncodingError, match="ascend"):
        parse(CODEC, beyond, 19)


def test_one_wrong_chunk_of_many_is_found() -> None:
    rng = np.random.default_rng(3)
    count = (GROUP_CHUNKS + 2) * CHUNK + 100
    data = bytearray(encode("topk-64-2", rng.standard_normal(count).astype(np.float32), -10))
    size = body_num_bytes("topk-64-2", CHUNK)
    for broken in (0, 5, GROUP_CHUNKS, GROUP_CHUNKS + 1):
        place = broken * size + 49  # its high part, in which a bit of every kind is too many
        data[place] ^= 1
        with pytest.raises(EncodingError):
            parse("topk-64-2", bytes(data), count)
        data[place] ^= 1
    data[-1] ^= 0x80
    with pytest.raises(EncodingError):
        parse("topk-64-2", bytes(data), count)


def test_a_parsed_body_does_not_read_its_bytes_again() -> None:
    data = bytearray(chunk())
    body = parse(CODEC, memoryview(data), 16)
    data[:] = bytes(len(data))
    assert body.norm_square == 16 * (49 + 36)
    assert body.exponents.tolist() == [2]
    assert body.max_exponent == 2
