"""Sums and means against arithmetic in fractions; any order gives the same bytes."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exact.coding import Body, encode, parse
from exact.mean import Sum, next_floor
from protocol.errors import OwnFault
from protocol.exchange import CHUNK, CODEC_BITS, DRIFT, MAX_FLOOR, MIN_FLOOR, SUM_BITS, sum_bits
from protocol.table import clipped_weight, weighted_median
from tests.exact import reference

MAX_WEIGHT = 65535
ROWS = st.lists(st.tuples(st.integers(0, DRIFT), st.integers(0, MAX_WEIGHT)), min_size=1, max_size=5)  # (shift, weight)


def body_of(codec: str, chunks: list[reference.Chunk]) -> Body:
    return parse(codec, reference.body_bytes(codec, chunks), sum(len(integers) for _, integers in chunks))


def random_body(codec: str, seed: int, count: int) -> Body:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(count) * np.exp2(rng.integers(-4, 14, -(-count // CHUNK))).repeat(CHUNK)[:count]
    return parse(codec, encode(codec, values.astype(np.float32), -10), count)


@st.composite
def chunks_of(draw: st.DrawFn, codec: str, count: int) -> list[reference.Chunk]:
    limit = reference.LIMITS[codec]
    integers = draw(st.lists(st.integers(-limit, limit), min_size=count, max_size=count))
    is_large = max(map(abs, integers)) > limit // 2
    return [(draw(st.integers(0, 19)) if is_large else 0, integers)]


@given(st.data(), reference.CODECS, reference.FLOORS.map(lambda floor: min(floor, MAX_FLOOR - DRIFT)), ROWS)
def test_a_mean_is_what_fractions_say(data: st.DataObject, codec: str, floor: int, rows: list[tuple[int, int]]) -> None:
    count = data.draw(st.integers(1, 6))
    drawn = [(data.draw(chunks_of(codec, count)), shift, weight) for shift, weight in rows]
    total_weight = max(1, sum(weight for _, weight in rows)) + data.draw(st.integers(0, 1000))  # some were clipped
    sums = Sum(count, floor)
    for chunks, shift, weight in drawn:
        sums.add(body_of(codec, chunks), shift, weight)
    found = sums.mean(total_weight)
    assert found.dtype == np.float32
    assert found.tobytes() == np.array(reference.mean(drawn, total_weight, floor), np.float32).tobytes()


@pytest.mark.parametrize("codec", CODEC_BITS)
def test_a_mean_of_several_chunks_and_groups_is_what_integers_say(codec: str) -> None:
    count = 65 * CHUNK + 3
    rows = [(random_body(codec, seed, count), seed % 5, 65535 // (seed + 1)) for seed in range(4)]
    sums, expected = Sum(count, -12), np.zeros(count, object)
    for body, shift, weight in rows:
        sums.add(body, shift, weight)
        integers = np.concatenate([block.reshape(-1) for _, _, block in body.blocks()]).astype(object)
        expected += integers * (2 ** (body.exponents.astype(object) + shift) * weight).repeat(CHUNK)[:count]
    total = sum(weight for _, _, weight in rows)
    exact = np.array([math.ldexp(float(value) / float(total), -12) for value in expected], np.float32)
    assert sums.mean(total).tobytes() == exact.tobytes()


@pytest.mark.parametrize("codec", CODEC_BITS)
def test_any_order_gives_the_same_bytes(codec: str) -> None:
    count = 2 * CHUNK + 17
    rows = [(random_body(codec, seed, count), seed % 5, 1 + 13107 * seed) for seed in range(5)]
    found = set()
    for order in itertools.permutations(rows):
        sums = Sum(count, -14)
        for body, shift, weight in order:
            sums.add(body, shift, weight)
        found.add(sums.mean(100_000).tobytes())
    assert len(found) == 1


def test_a_mean_of_one_body_is_what_it_decodes_to() -> None:
    body = random_body("int16", 1, CHUNK + 5)
    for floor, weight in ((-10, 1), (MIN_FLOOR, 3), (MAX_FLOOR, 65535), (-150, 7)):
        sums = Sum(body.count, floor)
        sums.add(body, 0, weight)
        assert sums.mean(weight).tobytes() == body.values(floor).tobytes()


@pytest.mark.parametrize(("codec", "rows"), [("int16", 256), ("int8", 1024)])
def test_the_largest_table_does_not_overflow(codec: str, rows: int) -> None:
    limit = reference.LIMITS[codec]
    assert sum_bits(codec, rows) <= SUM_BITS
    body = body_of(codec, [(19, [limit, -limit, 1])])
    sums = Sum(3, 0)
    for _ in range(rows):
        sums.add(body, DRIFT, MAX_WEIGHT)
    row = ([(19, [limit, -limit, 1])], DRIFT, MAX_WEIGHT)
    expected = reference.mean([row] * rows, 1, 0)
    assert expected[0] == -expected[1] > 0
    assert sums.mean(1).tolist() == expected


def test_bodies_whose_sum_might_overflow_are_not_added() -> None:
    limit = reference.LIMITS["int16"]
    sums, body = Sum(1, 0), body_of("int16", [(19, [limit])])
    for _ in range(256):
        sums.add(body, DRIFT, MAX_WEIGHT)
    before = sums.mean(1)
    with pytest.raises(ValueError, match="bits"):
        sums.add(body, DRIFT, MAX_WEIGHT)
    with pytest.raises(ValueError, match="bits"):
        Sum(1, 0).add(body, 100, 1)
    assert sums.mean(1) == before


def test_what_does_not_fit_a_sum_is_not_added() -> None:
    sums, body = Sum(2, 0), body_of("int8", [(0, [1, 2])])
    with pytest.raises(ValueError, match="values"):
        sums.add(body_of("int8", [(0, [1])]), 0, 1)
    for shift, weight in ((-1, 1), (0, -1), (0, MAX_WEIGHT + 1)):
        with pytest.raises(ValueError, match="out of range"):
            sums.add(body, shift, weight)
    assert sums.mean(1).tolist() == [0.0, 0.0]


def test_a_row_of_no_weight_adds_nothing() -> None:
    sums = Sum(2, 0)
    sums.add(body_of("int8", [(0, [1, 2])]), 0, 0)
    assert sums.mean(5).tolist() == [0.0, 0.0]


def test_a_weight_or_a_floor_out_of_range_gives_no_mean() -> None:
    for total_weight in (0, -1, 2**53):
        with pytest.raises(ValueError, match="weight"):
            Sum(1, 0).mean(total_weight)
    for floor in (MIN_FLOOR - 1, MAX_FLOOR + 1):
        with pytest.raises(ValueError, match="floor"):
            Sum(1, floor).mean(1)


def test_a_sum_goes_on_after_its_mean() -> None:
    sums, body = Sum(1, 0), body_of("int8", [(0, [3])])
    sums.add(body, 0, 1)
    assert sums.mean(1).tolist() == [3.0]
    sums.add(body, 1, 1)
    assert sums.mean(2).tolist() == [4.5]


@pytest.mark.usefixtures("_flushing")
def test_a_thread_that_flushes_denormals_takes_no_mean() -> None:
    with pytest.raises(OwnFault, match="denormal"):
        Sum(1, 0).mean(1)


@given(st.integers(0, MAX_WEIGHT), st.integers(0, 2**80), st.integers(0, 2**80))
def test_a_clipped_weight_is_the_largest_integer_that_is_not_above_the_exact_one(weight: int, norm_square: int, limit_square: int) -> None:
    found = clipped_weight(weight, norm_square, limit_square)
    if norm_square <= limit_square:
        assert found == weight
    else:
        exact_square = Fraction(weight**2 * limit_square, norm_square)
        assert found**2 <= exact_square < (found + 1) ** 2


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 6)), min_size=1, max_size=9))
def test_a_weighted_median_is_the_lower_median_with_each_value_repeated(pairs: list[tuple[int, int]]) -> None:
    repeated = sorted(value for value, weight in pairs for _ in range(weight))
    assert weighted_median(pairs) == repeated[(len(repeated) - 1) // 2]


@given(st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 6)), min_size=1, max_size=9), st.integers(-30, 30))
def test_a_floor_moves_by_one_step_towards_twelve_below_the_median(pairs: list[tuple[int, int]], floor: int) -> None:
    repeated = sorted(value for value, weight in pairs for _ in range(weight))
    wanted = repeated[(len(repeated) - 1) // 2] - 12
    found = next_floor([value for value, _ in pairs], [weight for _, weight in pairs], floor)
    assert abs(found - floor) <= 1
    assert abs(wanted - found) == max(0, abs(wanted - floor) - 1)


def test_a_floor_stays_where_floats_are() -> None:
    assert next_floor([MIN_FLOOR], [1], MIN_FLOOR) == MIN_FLOOR
    assert next_floor([MAX_FLOOR + 19], [1], MAX_FLOOR) == MAX_FLOOR


def test_a_floor_needs_rows_and_a_weight_for_each() -> None:
    with pytest.raises(ValueError, match="no values"):
        next_floor([], [], 0)
    with pytest.raises(ValueError, match="shorter"):
        next_floor([1, 2], [1], 0)


def test_a_floor_follows_vectors_that_grow_or_shrink_until_their_largest_exponent_is_twelve() -> None:
    rng = random.Random(4)
    values = np.array([rng.gauss(0.0, 1.0) for _ in range(CHUNK)], np.float32)
    for start in (-40, 20):
        floor = start
        for _ in range(60):
            body = parse("int16", encode("int16", values, floor), CHUNK)
            floor = next_floor([floor + body.max_exponent], [1], floor)
        assert parse("int16", encode("int16", values, floor), CHUNK).max_exponent == 12
