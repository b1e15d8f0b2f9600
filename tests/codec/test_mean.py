"""Sums and means against arithmetic in fractions; any order gives the same bytes."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.codec.coding import Body, body_groups, encode, parse
from manta_swarm.codec.mean import Sum, group_mean, next_min_exponent, total_weights
from manta_swarm.protocol.errors import OwnFault
from manta_swarm.protocol.exchange import CHUNK, DRIFT, GREATEST_MIN_EXPONENT, GROUP_VALUES, LEAST_MIN_EXPONENT, SUM_BITS, sum_bits
from tests.codec import reference

MAX_WEIGHT = 65535
CODECS = (*reference.DENSE, "topk-512-3")
ROWS = st.lists(st.tuples(st.integers(0, DRIFT), st.integers(0, MAX_WEIGHT)), min_size=1, max_size=5)  # (shift, weight)


def body_of(codec: str, chunks: list[reference.Chunk]) -> Body:
    return parse(codec, reference.body_bytes(codec, chunks), sum(len(integers) for _, integers in chunks))


def random_body(codec: str, seed: int, count: int) -> Body:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(count) * np.exp2(rng.integers(-4, 14, -(-count // CHUNK))).repeat(CHUNK)[:count]
    return parse(codec, encode(codec, values.astype(np.float32), -10), count)


@pytest.mark.parametrize("codec", CODECS)
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


@st.composite
def masks_of(draw: st.DrawFn, count: int, rows: int) -> list[np.ndarray | None]:
    """A mask or none for each row, some of them shared."""
    few = draw(st.lists(st.one_of(st.none(), st.lists(st.booleans(), min_size=count, max_size=count)), min_size=1, max_size=3))
    made = [None if mask is None else np.array(mask, np.bool_) for mask in few]
    return draw(st.lists(st.sampled_from(made), min_size=rows, max_size=rows))


@given(
    st.data(), reference.CODECS, reference.MIN_EXPONENTS.map(lambda min_exponent: min(min_exponent, GREATEST_MIN_EXPONENT - DRIFT)), ROWS
)
def test_a_mean_with_masks_or_none_is_what_fractions_say(
    data: st.DataObject, codec: str, min_exponent: int, rows: list[tuple[int, int]]
) -> None:
    count = data.draw(st.integers(1, 6))
    masks = data.draw(masks_of(count, len(rows)))
    whole = [max(1, weight + data.draw(st.integers(0, 1000))) for _, weight in rows]  # before they were clipped
    sums, drawn = Sum(count, min_exponent), []
    for (shift, weight), mask in zip(rows, masks, strict=True):
        chunks = data.draw(reference.chunks_of(codec, count))
        drawn.append((chunks, shift, weight, None if mask is None else mask.tolist()))
        sums.add(body_of(codec, chunks), shift, weight, mask)
    totals = [sum(weight for weight, mask in zip(whole, masks, strict=True) if mask is None or mask[place]) for place in range(count)]
    found = sums.mean(total_weights(whole, masks, count))
    assert found.tobytes() == np.array(reference.masked_mean(drawn, totals, min_exponent), np.float32).tobytes()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_mean_of_several_chunks_and_groups_has_nothing_of_what_is_outside_of_masks(codec: str, is_masked: bool) -> None:
    count, min_exponent = GROUP_VALUES + CHUNK + 9, -12
    masks = [np.arange(count) % 3 != 1, np.arange(count) < GROUP_VALUES, None] if is_masked else [None] * 3
    bodies = [random_body(codec, seed, count) for seed in range(3)]
    sums, expected, totals = Sum(count, min_exponent), np.zeros(count), np.zeros(count)
    for body, mask, weight in zip(bodies, masks, (3, 5, 7), strict=True):
        sums.add(body, 2, weight, mask)
        covers = np.ones(count) if mask is None else mask
        expected += weight * covers * body.values(min_exponent + 2)  # exact in float64: few bits, few rows
        totals += weight * covers
    found = sums.mean(total_weights((3, 5, 7), masks, count))
    assert found.tobytes() == (expected / totals).astype(np.float32).tobytes()


def test_what_no_row_covers_is_zero() -> None:
    mask = np.array([True, False, False])
    sums = Sum(3, 0)
    sums.add(body_of("int8", [(0, [4, 5, 0])]), 0, 2, mask)
    totals = total_weights([2], [mask], 3)
    assert sums.mean(totals).tolist() == [4.0, 0.0, 0.0]


def test_masks_that_cover_all_change_nothing() -> None:
    bodies = [random_body("topk-64-2", seed, CHUNK + 7) for seed in range(3)]
    found = []
    for masks in (None, [None] * 3, [np.ones(CHUNK + 7, np.bool_)] * 3):
        sums = Sum(CHUNK + 7, -10)
        for body, mask in zip(bodies, masks or [None] * 3, strict=True):
            sums.add(body, 0, 9, mask)
        found.append(sums.mean(total_weights([9] * 3, masks, CHUNK + 7)).tobytes())
    assert len(set(found)) == 1


def test_masks_and_totals_that_do_not_fit_are_refused() -> None:
    body = body_of("int8", [(0, [1, 2])])
    with pytest.raises(ValueError, match="mask"):
        Sum(2, 0).add(body, 0, 1, np.ones(1, np.bool_))
    with pytest.raises(ValueError, match="mask"):
        total_weights([1], [np.ones(3, np.bool_)], 2)
    with pytest.raises(ValueError, match="shorter"):
        total_weights([1, 2], [np.ones(2, np.bool_)], 2)
    for totals in ([1], [1, 2, 3], [-1, 1], [1, 2**53]):
        with pytest.raises(ValueError, match="total weight"):
            Sum(2, 0).mean(np.array(totals, np.int64))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_group_of_a_mean_is_that_of_the_groups_of_its_bodies(codec: str, is_masked: bool) -> None:
    count = 2 * GROUP_VALUES + CHUNK + 300
    rng = np.random.default_rng(2)
    min_exponents, counted, whole = (-9, -11, -10, -12), (60_000, 17, 3, 65_535), (60_000, 90, 3, 65_535)
    vectors = [(rng.standard_normal(count) * 3**row).astype(np.float32) for row in range(4)]
    data = [encode(codec, vector, min_exponent) for vector, min_exponent in zip(vectors, min_exponents, strict=True)]
    masks = [rng.random(count) < part for part in (0.3, 0.9, 0.0)] + [None] if is_masked else None
    total = Sum(count, min(min_exponents) - 1)  # the min exponent of the round's own base may be less than any
    for row in range(4):
        total.add(
            parse(codec, data[row], count), min_exponents[row] - min(min_exponents) + 1, counted[row], None if masks is None else masks[row]
        )
    mean = total.mean(total_weights(whole, masks, count))
    for group, start in enumerate(range(0, count, GROUP_VALUES)):
        length = min(GROUP_VALUES, count - start)
        bodies = [parse(codec, body_groups(codec, each, count)[group], length) for each in data]
        cut = None if masks is None else [None if mask is None else mask[start : start + length] for mask in masks]
        found = group_mean(bodies, counted, min_exponents, cut, total_weights(whole, cut, length))
        assert found.tobytes() == mean[start : start + length].tobytes()


def test_a_mean_of_one_body_is_what_it_decodes_to() -> None:
    body = random_body("int16", 1, CHUNK + 5)
    for min_exponent, weight in ((-10, 1), (LEAST_MIN_EXPONENT, 3), (GREATEST_MIN_EXPONENT, 65535), (-150, 7)):
        sums = Sum(body.count, min_exponent)
        sums.add(body, 0, weight)
        assert sums.mean(weight).tobytes() == body.values(min_exponent).tobytes()


@pytest.mark.parametrize(("codec", "rows"), [("int16", 256), ("int8", 1024), ("topk-2048-8", 256), ("topk-2048-4", 1024)])
def test_the_largest_table_does_not_overflow(codec: str, rows: int) -> None:
    limit, last = reference.limit_of(codec), reference.window_of(codec) - 1
    assert sum_bits(codec, rows) <= SUM_BITS
    body = body_of(codec, [(last, [limit, -limit, 0])])
    sums = Sum(3, 0)
    for _ in range(rows):
        sums.add(body, DRIFT, MAX_WEIGHT)
    row = ([(last, [limit, -limit, 0])], DRIFT, MAX_WEIGHT, None)
    expected = reference.masked_mean([row] * rows, [1] * 3, 0)
    assert expected[0] == -expected[1] > 0
    assert sums.mean(1).tolist() == expected


def test_bodies_whose_sum_might_overflow_are_not_added() -> None:
    sums, body = Sum(1, 0), body_of("int16", [(19, [32767])])
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


def test_a_weight_or_a_min_exponent_out_of_range_gives_no_mean() -> None:
    for total_weight in (0, -1, 2**53):
        with pytest.raises(ValueError, match="weight"):
            Sum(1, 0).mean(total_weight)
    for min_exponent in (LEAST_MIN_EXPONENT - 1, GREATEST_MIN_EXPONENT + 1):
        with pytest.raises(ValueError, match="min exponent"):
            Sum(1, min_exponent).mean(1)


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


@given(
    st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 6)), min_size=1, max_size=9),
    st.integers(-30, 30),
    st.sampled_from([(20, 12), (24, 16)]),
)
def test_a_min_exponent_moves_by_one_step_towards_one_that_leaves_seven_exponents_above_the_median(
    pairs: list[tuple[int, int]], min_exponent: int, window_and_below: tuple[int, int]
) -> None:
    window, below = window_and_below
    repeated = sorted(value for value, weight in pairs for _ in range(weight))
    wanted = repeated[(len(repeated) - 1) // 2] - below
    found = next_min_exponent([value for value, _ in pairs], [weight for _, weight in pairs], min_exponent, window)
    assert abs(found - min_exponent) <= 1
    assert abs(wanted - found) == max(0, abs(wanted - min_exponent) - 1)


def test_a_min_exponent_stays_where_floats_are() -> None:
    assert next_min_exponent([LEAST_MIN_EXPONENT], [1], LEAST_MIN_EXPONENT, 20) == LEAST_MIN_EXPONENT
    assert next_min_exponent([GREATEST_MIN_EXPONENT + 19], [1], GREATEST_MIN_EXPONENT, 20) == GREATEST_MIN_EXPONENT


def test_a_min_exponent_needs_rows_and_a_weight_for_each() -> None:
    with pytest.raises(ValueError, match="no values"):
        next_min_exponent([], [], 0, 20)
    with pytest.raises(ValueError, match="shorter"):
        next_min_exponent([1, 2], [1], 0, 20)


@pytest.mark.parametrize(("codec", "usual"), [("int16", 12), ("topk-256-4", 16)])
def test_a_min_exponent_follows_vectors_that_grow_or_shrink_until_their_largest_exponent_is_the_usual_one(codec: str, usual: int) -> None:
    rng = random.Random(4)
    values = np.array([rng.gauss(0.0, 1.0) for _ in range(CHUNK)], np.float32)
    for start in (-40, 20):
        min_exponent = start
        for _ in range(60):
            body = parse(codec, encode(codec, values, min_exponent), CHUNK)
            min_exponent = next_min_exponent([min_exponent + body.max_exponent], [1], min_exponent, body.codec.window)
        assert parse(codec, encode(codec, values, min_exponent), CHUNK).max_exponent == usual
