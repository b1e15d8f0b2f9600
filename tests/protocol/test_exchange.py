"""The numbers of a round: against rational arithmetic and brute force, and what a manifest may not choose."""

from dataclasses import replace
from fractions import Fraction
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.exchange import (
    DRIFT,
    GREATEST_MIN_EXPONENT,
    LEAST_MIN_EXPONENT,
    MAX_AGE,
    MAX_MICROBATCH_MS,
    MAX_OPEN_MS,
    MAX_ROWS,
    SPARSE_WINDOW,
    SUM_BITS,
    WINDOW,
    Exchange,
    codec_named,
    grace_ms,
    next_open_ms,
    sum_bits,
)
from tests.runs import EXCHANGE

DAY_MS = MAX_OPEN_MS
WIDE = replace(EXCHANGE, min_open_ms=1, max_open_ms=DAY_MS)

CODECS = ["int16", "int8", "topk-1-2", "topk-256-4", "topk-2048-8"]

microbatches_ms = st.lists(st.integers(1, MAX_MICROBATCH_MS), min_size=1, max_size=9)


@given(
    st.integers(1, DAY_MS),
    st.integers(1, 2**50),
    st.integers(1, 2**40),
    microbatches_ms,
    st.integers(1, DAY_MS),
    st.integers(1, DAY_MS),
    st.integers(1, 512),
)
def test_the_next_round_s_time_is_that_of_rational_arithmetic(
    open_ms: int, counted: int, target: int, durations: list[int], one_bound: int, other_bound: int, steps: int
) -> None:
    low, high = sorted((one_bound, other_bound))
    exchange = replace(EXCHANGE, target_batch=target, min_open_ms=low, first_open_ms=low, max_open_ms=high, local_steps=steps)
    factor = min(max(Fraction(target, counted), Fraction(3, 4)), Fraction(4, 3))
    enough = max(int(open_ms * factor), 4 * steps * median_low(durations))
    assert next_open_ms(exchange, open_ms, counted, durations) == min(max(enough, low), high)


@pytest.mark.parametrize(
    ("open_ms", "counted", "durations", "expected"),
    [
        (1_000, 64, [1], 1_000),  # on target
        (1_000, 80, [1], 800),
        (1_000, 1_000_000, [1], 750),  # no faster than a quarter less
        (1_000, 1, [1], 1_333),  # no slower than a third more
        (1_000, 64, [500, 400, 2_000], 2_000),  # room for four median microbatches
        (1_000, 64, [500, 400], 1_600),  # of two, the shorter one
        (1_000, 64, [1, 1, MAX_MICROBATCH_MS], 1_000),  # who names a long one alone changes nothing
        (100, 1_000_000, [1], 100),
        (60_000, 1, [1], 60_000),
        (60_000, 1, [MAX_MICROBATCH_MS], 60_000),  # the manifest's bounds stand above all
    ],
)
def test_the_next_round_s_time_by_hand(open_ms: int, counted: int, durations: list[int], expected: int) -> None:
    assert next_open_ms(EXCHANGE, open_ms, counted, durations) == expected


@given(st.integers(1_000, 1_000_000), st.integers(1, 5_000))
def test_a_swarm_of_steady_speed_comes_to_its_target_and_stays(first_open_ms: int, samples_a_second: int) -> None:
    exchange = replace(WIDE, target_batch=20 * samples_a_second)  # 20 s would do
    open_ms = first_open_ms
    for _ in range(20):
        open_ms = next_open_ms(exchange, open_ms, samples_a_second * open_ms // 1_000, [1])
    sample_ms = 1_000 / samples_a_second  # as near as whole samples and milliseconds allow
    assert abs(open_ms - 20_000) <= 2 * sample_ms + 1


@pytest.mark.parametrize(
    ("open_ms", "expected"),
    [(1, 250), (2_500, 250), (2_509, 250), (2_510, 251), (30_000, 3_000), (99_999, 9_999), (100_000, 10_000), (DAY_MS, 10_000)],
)
def test_the_grace_is_a_tenth_of_the_round_between_a_quarter_of_a_second_and_ten(open_ms: int, expected: int) -> None:
    assert grace_ms(open_ms) == expected


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 64, 255, 256, 257, 512, 513, 1023, 1024])
def test_the_largest_sum_fits_in_as_many_bits_as_it_is_said_to_need(codec: str, rows: int) -> None:
    limit = {"int16": 32_767, "int8": 127, "topk-1-2": 1, "topk-256-4": 7, "topk-2048-8": 127}[codec]
    window = 24 if codec.startswith("topk") else 20
    largest = rows * limit * 2 ** (window - 1 + DRIFT) * (2**16 - 1)
    assert largest < 2 ** sum_bits(codec, rows)
    assert largest.bit_length() >= sum_bits(codec, rows) - 2  # and it needs them, but for what rounding up two factors costs


@pytest.mark.parametrize("codec", CODECS)
def test_a_manifest_whose_sums_might_not_fit_is_refused(codec: str) -> None:
    taken = []
    for rows in (1, 2, 128, 255, 256, 257, 512, MAX_ROWS):
        try:
            taken.append(replace(EXCHANGE, codec=codec, max_rows=rows).max_rows)
        except ValueError as error:
            assert "bits where 62 are safe" in str(error)  # noqa: PT017 - both outcomes are right, by the numbers below
    assert taken == ([1, 2, 128, 255, 256] if codec == "int16" else [1, 2, 128, 255, 256, 257, 512, MAX_ROWS])


def test_the_constants_that_others_were_computed_from() -> None:
    # A window of 20, which moves by one at a commit, is one of 24 within a table.
    assert (WINDOW + DRIFT, SPARSE_WINDOW + DRIFT) == (24, 28)
    assert DRIFT == MAX_AGE == 4
    assert SUM_BITS < 63


BOUNDS: list[tuple[str, int, int]] = [  # field, least, most
    ("max_rows", 1, 256),
    ("target_batch", 1, 2**40),
    ("max_claim_samples", 80, 2**40),  # the weight cap
    ("weight_cap", 1, 640),  # the most that a claim may have
    ("first_min_exponent", -200, 94),
    ("first_open_ms", 100, 60_000),
    ("min_open_ms", 1, 1_000),
    ("max_open_ms", 1_000, DAY_MS),
    ("local_steps", 1, 512),
    ("residual_percent", 0, 100),
]


@pytest.mark.parametrize(("field", "least", "most"), BOUNDS, ids=[field for field, _, _ in BOUNDS])
def test_every_number_has_bounds(field: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(replace(EXCHANGE, **{field: value}), field) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=r"."):
            replace(EXCHANGE, **{field: value})


def test_every_field_has_been_bounded_above() -> None:
    assert {field for field, _, _ in BOUNDS} | {"codec"} == set(Exchange.__dataclass_fields__)


@pytest.mark.parametrize("codec", CODECS)
def test_every_value_of_a_body_is_a_float32_and_its_scale_a_normal_float64(codec: str) -> None:
    found = codec_named(codec)
    largest = found.limit * 2.0 ** (GREATEST_MIN_EXPONENT + found.window - 1)
    assert largest <= float.fromhex("0x1.fffffep+127")
    assert float.fromhex("0x1p+1022") >= 1 / 2.0**LEAST_MIN_EXPONENT


def test_a_codec_s_name_says_all_of_it() -> None:
    assert [(one.bits, one.limit, one.kept, one.window, one.is_sparse) for one in map(codec_named, CODECS)] == [
        (15, 32_767, 4_096, 20, False),
        (7, 127, 4_096, 20, False),
        (1, 1, 1, 24, True),
        (3, 7, 256, 24, True),
        (7, 127, 2_048, 24, True),
    ]
    assert all(codec_named(name).name == name for name in CODECS)


WRONG_CODECS = ["", "fp16", "INT16", "int32", "topk", "topk-256", "topk-0-4", "topk-2049-4", "topk-99999-4", "topk-256-1", "topk-256-9"]


@pytest.mark.parametrize("codec", [*WRONG_CODECS, "topk-0256-4", "topk-256-04", "topk-256-4 ", "topk-256-4\n", "topk-٣-4", "atopk-256-4"])
def test_another_codec_is_refused(codec: str) -> None:
    with pytest.raises(ValueError, match="codec"):
        replace(EXCHANGE, codec=codec)
