"""What a round's contributions weigh, and the list of it under its root: against rational arithmetic, definitions and brute force."""

from dataclasses import replace
from fractions import Fraction
from hashlib import sha256 as hashlib_sha256
from math import floor, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.encoding import encode, pack, to_value
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import MAX_AGE, MAX_ROWS
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.records import MAX_NORM, Round, Threshold
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.table import (
    MAX_WEIGHED_BYTES,
    TableError,
    Weighed,
    Weighing,
    clipped_weight,
    limit_square,
    next_thresholds,
    open_weighed,
    shifted,
    weighed_bytes,
    weighted_median,
    weights,
    weights_root,
)


def row(_number: int = 0, *, age: int = 0, role: int = 0, samples: int = 16, unproven: int = 0) -> Weighing:
    return Weighing(age, role, samples, unproven)


def one_of(number: int, **changes: Any) -> Weighed:
    return replace(Weighed(sha256(b"body%d" % number), 9, "here", 100 + number, number), **changes)


def round_of(weighed: tuple[Weighed, ...], **changes: Any) -> Round:
    digest = sha256(b"any")
    return replace(Round(digest, 9, digest, 0, len(weighed), weights_root(weighed), digest, digest, (), 0, 1_000), **changes)


SEVEN = tuple(one_of(number) for number in range(7))

digests = st.binary(min_size=32, max_size=32)
ages = st.integers(0, MAX_AGE)
names = st.sampled_from(["here", "there", "c" * 63])
rows_of_roles = st.lists(
    st.builds(Weighing, ages, st.integers(0, 2), st.one_of(st.integers(1, 100), st.integers(1, 2**45))), min_size=1, max_size=12
)
threshold_of = st.builds(Threshold, st.just(0), st.integers(0, 2**50), st.integers(1, 2**45))
lists = st.lists(
    st.builds(
        lambda weight, part, **rest: Weighed(weight=weight, clipped=weight * part // 4, **rest),
        st.integers(0, 2**16 - 1),
        st.integers(0, 4),
        body=digests,
        round=st.integers(9 - MAX_AGE, 9),
        cohort=names,
    ),
    min_size=1,
    max_size=12,
)


# What contributions weigh, as a list under its root.


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"b" * 33},
        {"round": 0},
        {"cohort": ""},
        {"cohort": "Here"},
        {"weight": -1, "clipped": -1},
        {"weight": 2**16},
        {"clipped": 101},
        {"clipped": -1},
    ],
    ids=repr,
)
def test_what_is_out_of_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        one_of(0, **change)


def test_the_root_is_that_of_rfc_9162_over_each_packed() -> None:
    def node(left: bytes, right: bytes) -> bytes:
        return hashlib_sha256(b"\x01" + left + right).digest()

    a, b, c = (hashlib_sha256(b"\x00" + pack(each)).digest() for each in SEVEN[:3])
    assert weights_root(SEVEN[:1]) == a
    assert weights_root(SEVEN[:3]) == node(node(a, b), c)


@given(lists)
def test_a_list_comes_back(weighed: list[Weighed]) -> None:
    assert open_weighed(weighed_bytes(weighed), round_of(tuple(weighed))) == tuple(weighed)


def test_the_longest_list_comes_back() -> None:
    full = tuple(one_of(number, round=MAX_ROUND, cohort="c" * 63, weight=2**16 - 1, clipped=2**16 - 1) for number in range(MAX_ROWS))
    assert len(pack(full[0])) == 115
    assert len(weighed_bytes(full)) <= MAX_WEIGHED_BYTES
    assert open_weighed(weighed_bytes(full), round_of(full, round=MAX_ROUND)) == full


@pytest.mark.parametrize(
    "weighed",
    [SEVEN[:-1], SEVEN[::-1], (*SEVEN, SEVEN[-1]), (replace(SEVEN[0], weight=17), *SEVEN[1:]), ()],
    ids=["one missing", "another order", "one twice", "one changed", "none"],
)
def test_weights_that_are_not_the_round_s_are_refused(weighed: tuple[Weighed, ...]) -> None:
    with pytest.raises(TableError):
        open_weighed(weighed_bytes(weighed), round_of(SEVEN))


@pytest.mark.parametrize("round_", [10, 9 - MAX_AGE - 1])
def test_a_base_that_a_round_cannot_have_is_refused_whatever_the_round_says(round_: int) -> None:
    weighed = (*SEVEN[:-1], replace(SEVEN[-1], round=round_))
    with pytest.raises(TableError, match="cannot have"):
        open_weighed(weighed_bytes(weighed), round_of(weighed))


def test_another_number_of_contributions_than_the_round_says_is_refused() -> None:
    with pytest.raises(TableError):
        open_weighed(weighed_bytes(SEVEN), replace(round_of(SEVEN), contributions=6))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        encode(()),
        encode(((b"row",),)),
        encode((tuple(to_value(each) for each in SEVEN), 1)),
        encode(((*(to_value(each) for each in SEVEN[:-1]), (bytes(32), 9, "here", 1, 2)),)),
        weighed_bytes(SEVEN) + b"0",
        weighed_bytes(SEVEN)[:-1],
        pack(SEVEN),
        bytes(MAX_WEIGHED_BYTES + 1),
    ],
    ids=lambda data: data[:8].hex(),
)
def test_bytes_that_are_no_list_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        open_weighed(data, round_of(SEVEN))


# Weights.


@given(rows_of_roles)
def test_weights_are_samples_times_nine_tenths_a_commit_the_largest_scaled_to_16_bits(rows: list[Weighing]) -> None:
    exact = [each.samples * Fraction(9, 10) ** each.age for each in rows]
    largest = max(exact)
    assert weights(rows) == tuple(max(1, floor(weight / largest * 65_535)) for weight in exact)


def test_weights_by_hand() -> None:
    assert weights([row(0, samples=16), row(1, samples=16, age=1), row(2, samples=8), row(3, samples=32, age=4)]) == (
        49_942,  # 16 of 32 * 0.6561, the largest
        44_948,
        24_971,
        65_535,
    )
    assert weights([row(0, samples=2**45), row(1, samples=1)]) == (65_535, 1)
    assert weights([row(0, samples=1, age=4)]) == (65_535,)


@st.composite
def rows_of_keys(draw: st.DrawFn) -> list[Weighing]:
    """Rows of which some samples, or all, or none, are of keys that are not proven."""
    rows = draw(rows_of_roles)
    parts = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 4, 4]), min_size=len(rows), max_size=len(rows)))
    return [replace(each, unproven=each.samples * part // 4) for each, part in zip(rows, parts, strict=True)]


@given(rows_of_keys())
def test_all_unproven_samples_together_weigh_at_most_a_quarter_of_the_proven(rows: list[Weighing]) -> None:
    aged = [Fraction(9, 10) ** each.age for each in rows]
    unproven = [each.unproven * age for each, age in zip(rows, aged, strict=True)]
    proven = [each.samples * age - less for each, age, less in zip(rows, aged, unproven, strict=True)]
    factor = min(Fraction(1), sum(proven) / 4 / sum(unproven)) if sum(unproven) and sum(proven) else Fraction(1)
    exact = [each + less * factor for each, less in zip(proven, unproven, strict=True)]
    found = weights(rows)
    for weight, each, of_proven in zip(found, exact, proven, strict=True):
        assert weight == max(1 if of_proven or factor == 1 else 0, floor(each / max(exact) * 65_535))
    if sum(proven):
        assert sum(unproven) * factor <= sum(proven) / 4


@given(rows_of_keys())
def test_where_no_sample_is_proven_or_all_are_nothing_is_held_back(rows: list[Weighing]) -> None:
    plain = weights([replace(each, unproven=0) for each in rows])
    assert weights([replace(each, unproven=each.samples) for each in rows]) == plain


@given(st.integers(1, 900), st.integers(1, 2**40), st.lists(st.integers(1, 2**40), min_size=1, max_size=4))
def test_however_many_free_keys_there_are_they_weigh_a_quarter(keys: int, samples: int, honest: list[int]) -> None:
    proven = [row(number, samples=each) for number, each in enumerate(honest)]
    free = [row(10 + number, samples=samples, unproven=samples) for number in range(keys)]
    found = weights([*proven, *free])
    of_free, of_proven = sum(found[len(proven) :]), sum(found[: len(proven)])
    assert 4 * of_free <= of_proven + len(proven)  # what rounding down took from each of the proven


def test_weights_of_unproven_keys_by_hand() -> None:
    rows = [row(0, samples=64), row(1, samples=32, unproven=32), row(2, samples=32, unproven=16)]
    # 80 proven, 48 not: they weigh 20 together, so 5/12 each
    assert weights(rows) == (65_535, 65_535 * 160 // 768, 65_535 * 272 // 768)
    assert weights([row(0, samples=64), row(1, samples=16, unproven=16)]) == (65_535, 16_383)
    assert weights([row(0, samples=1), *(row(each, samples=2**30, unproven=2**30) for each in range(1, 9))]) == (65_535, *(2_047,) * 8)
    assert weights([row(0, samples=1), row(1, samples=1, unproven=1), row(2, samples=2**40, unproven=2**40)]) == (65_535, 0, 16_383)


# Clipping.


@given(st.integers(1, 2**16 - 1), st.integers(0, 2**110), st.one_of(st.none(), st.integers(0, 2**110)))
def test_a_clipped_weight_is_the_largest_that_keeps_the_product_with_the_norm_within_the_limit(
    weight: int, norm_square: int, limit: int | None
) -> None:
    found = clipped_weight(weight, norm_square, limit)
    assert 0 <= found <= weight
    if limit is None or norm_square <= limit:
        assert found == weight
        return
    # found is the greatest integer with (found * norm)^2 <= (weight * limit's root)^2
    assert found**2 * norm_square <= weight**2 * limit
    assert (found + 1) ** 2 * norm_square > weight**2 * limit


def test_clipping_by_hand() -> None:
    assert clipped_weight(1_000, 100, 100) == 1_000
    assert clipped_weight(1_000, 400, 100) == 500
    assert clipped_weight(1_000, 101, 100) == 995  # 995.037
    assert clipped_weight(1_000, 10**30, 100) == 0
    assert clipped_weight(1_000, 5, 0) == 0
    assert clipped_weight(1_000, 0, 0) == 1_000


@given(st.integers(1, 2**45), threshold_of)
def test_a_row_s_limit_is_four_thresholds_and_more_for_fewer_samples(samples: int, threshold: Threshold) -> None:
    found = limit_square(row(0, samples=samples), {0: threshold})
    if threshold.norm == 0:
        assert found is None  # a usual norm of nothing limits nobody
        return
    assert found is not None
    exact = (4 * threshold.norm) ** 2 * max(Fraction(1), Fraction(threshold.samples, samples))
    assert found == floor(exact)


def test_a_role_without_a_threshold_has_no_limit() -> None:
    thresholds = {0: Threshold(0, 100, 16), 2: Threshold(2, 1, 16)}
    assert limit_square(row(0, role=0), thresholds) == 160_000
    assert limit_square(row(0, role=1), thresholds) is None
    assert limit_square(row(0, role=2), thresholds) == 16
    assert limit_square(row(0), {}) is None


@given(st.integers(0, 2**30), st.integers(1, 2**40), st.integers(1, 2**20), st.integers(1, 2**20), st.integers(1, 65_535))
def test_an_honest_row_is_not_clipped_for_having_few_samples(signal: int, noise: int, samples: int, usual: int, weight: int) -> None:
    """A mean gradient's squared norm is what is the same in all samples, and the rest divided by their number."""

    def norm_square(count: int) -> int:
        return signal**2 + noise**2 // count

    threshold = Threshold(0, int(sqrt(norm_square(usual))), usual)
    if threshold.norm < 16:
        return  # rounding decides
    honest = row(0, samples=samples)
    assert clipped_weight(weight, norm_square(samples), limit_square(honest, {0: threshold})) == weight
    # and what is 16 times as large is clipped, to the limit
    limit = limit_square(honest, {0: threshold})
    assert limit is not None
    assert clipped_weight(weight, 256 * limit, limit) == weight // 16


# Medians and thresholds.


@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 9)), min_size=1, max_size=12))
def test_the_weighted_median_is_the_middle_of_as_many_values_as_they_weigh(pairs: list[tuple[int, int]]) -> None:
    spread = sorted(value for value, weight in pairs for _ in range(weight))
    assert weighted_median(pairs) == spread[(len(spread) - 1) // 2]


def test_the_weighted_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        weighted_median([])


@given(st.integers(0, 2**70), st.integers(-80, 80))
def test_shifted_is_times_a_power_of_two_rounded_down(value: int, places: int) -> None:
    assert shifted(value, places) == floor(value * Fraction(2) ** places)


@given(rows_of_roles, st.data())
def test_thresholds_are_the_weighted_medians_of_each_role_and_the_others_stay(rows: list[Weighing], data: st.DataObject) -> None:
    norms = data.draw(st.lists(st.integers(0, 2**50), min_size=len(rows), max_size=len(rows)))
    squares = [norm**2 + data.draw(st.integers(0, 2 * norm)) for norm in norms]  # rounded down, it is the norm again
    before = tuple(Threshold(role, data.draw(st.integers(0, 2**50)), role + 1) for role in sorted(data.draw(st.sets(st.integers(0, 4)))))
    raised = data.draw(st.sampled_from([-1, 0, 1]))
    found = next_thresholds(rows, squares, before, raised)
    expected = {}
    for one in before:
        expected[one.role] = (floor(one.norm / Fraction(2) ** raised), one.samples)
    for role in {each.role for each in rows}:
        of_role = [place for place, each in enumerate(rows) if each.role == role]
        weighs = weights(rows)
        expected[role] = (
            least_with_half([(norms[place], weighs[place]) for place in of_role]),
            least_with_half([(rows[place].samples, weighs[place]) for place in of_role]),
        )
    assert found == tuple(Threshold(role, *expected[role]) for role in sorted(expected))
    round_of(SEVEN, thresholds=found)  # and a round may have them


def least_with_half(pairs: list[tuple[int, int]]) -> int:
    total = sum(weight for _, weight in pairs)
    return min(value for value, _ in pairs if 2 * sum(weight for other, weight in pairs if other <= value) >= total)


def test_a_threshold_that_is_carried_on_while_the_min_exponent_falls_stays_in_range() -> None:
    thresholds: tuple[Threshold, ...] = (Threshold(1, 2**50, 16),)
    for _ in range(100):  # nobody trains role 1
        thresholds = next_thresholds([row(0)], [9], thresholds, -1)
    assert thresholds == (Threshold(0, 3, 16), Threshold(1, MAX_NORM, 16))
