"""What a table comes to against fractions; what a liar, a peer with few samples and a body of zeros can do to it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.codec.coding import encode, parse
from manta_swarm.codec.mean import TableMean, table_mean
from manta_swarm.protocol.exchange import CHUNK, CLIP, GREATEST_MIN_EXPONENT, LEAST_MIN_EXPONENT, MAX_AGE
from manta_swarm.protocol.records import Round, Threshold
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.table import Weighing
from tests.codec import reference
from tests.codec.reference import two_to

Floats = np.ndarray
MIN_EXPONENT = -30


@dataclass(frozen=True)
class Given:
    """One contribution as a test makes it: ``chunks`` on ``min_exponent``, its base's."""

    chunks: list[reference.Chunk]
    min_exponent: int
    samples: int = 16
    age: int = 0
    role: int = 0
    mask: tuple[bool, ...] | None = None

    @property
    def values(self) -> list[Fraction]:
        return reference.decoded(self.chunks, self.min_exponent)

    @property
    def norm_square(self) -> Fraction:
        return sum((value * value for value in self.values), Fraction(0))

    @property
    def top(self) -> int:
        return self.min_exponent + max(exponent for exponent, _ in self.chunks)


def clipped_in(result: TableMean) -> list[int]:
    """The places of those that counted with less than their norm."""
    return [at for at, (weight, less) in enumerate(zip(result.weights, result.clipped, strict=True)) if less < weight]


def row_of(samples: int, age: int = 0, role: int = 0) -> Weighing:
    return Weighing(age, role, samples)


def found(codec: str, table: Sequence[Given], thresholds: Sequence[Threshold] = (), min_exponent: int = MIN_EXPONENT) -> TableMean:
    rows = [row_of(one.samples, one.age, one.role) for one in table]
    count = sum(len(integers) for _, integers in table[0].chunks)
    bodies = [parse(codec, reference.body_bytes(codec, one.chunks), count) for one in table]
    masks = [None if one.mask is None else np.array(one.mask, np.bool_) for one in table]
    return table_mean(
        rows,
        bodies,
        [one.min_exponent for one in table],
        thresholds,
        min_exponent,
        count,
        masks if any(one.mask is not None for one in table) else None,
    )


def median(pairs: Iterable[tuple[int, int]]) -> int:
    """The least value that has half of the weight at or below it."""
    kept = list(pairs)
    total = sum(weight for _, weight in kept)
    return min(value for value, _ in kept if 2 * sum(weight for other, weight in kept if other <= value) >= total)


def root(square: Fraction) -> int:
    """The largest integer whose square is not above ``square``."""
    return math.isqrt(math.floor(square))


def expected_weights(table: Sequence[Given]) -> list[int]:
    kept = [one.samples * Fraction(9, 10) ** one.age for one in table]
    return [max(1, math.floor(one * 65535 / max(kept))) for one in kept]


def expected_clipped(one: Given, weight: int, threshold: Threshold | None, min_exponent: int) -> int:
    if threshold is None or threshold.norm == 0:
        return weight
    few = max(Fraction(1), Fraction(threshold.samples, one.samples))
    limit_square = math.floor((4 * threshold.norm) ** 2 * few) * two_to(2 * min_exponent)
    return weight if one.norm_square <= limit_square else root(weight**2 * limit_square / one.norm_square)


def expected_min_exponent(codec: str, table: Sequence[Given], weights: Sequence[int], min_exponent: int) -> int:
    tops = [(one.top, weight) for one, weight in zip(table, weights, strict=True) if one.norm_square]
    wanted = median(tops) - (16 if reference.is_sparse(codec) else 12) if tops else min_exponent - 1
    return min(max(wanted, min_exponent - 1, LEAST_MIN_EXPONENT), min_exponent + 1, GREATEST_MIN_EXPONENT)


def expected_thresholds(
    table: Sequence[Given], weights: Sequence[int], before: Sequence[Threshold], min_exponent: int, new_min_exponent: int
) -> list[Threshold]:
    after = {one.role: Threshold(one.role, math.floor(one.norm * two_to(min_exponent - new_min_exponent)), one.samples) for one in before}
    for role in {one.role for one in table}:
        of_role = [(one, weight) for one, weight in zip(table, weights, strict=True) if one.role == role]
        norm = median((root(one.norm_square / two_to(2 * new_min_exponent)), weight) for one, weight in of_role)
        after[role] = Threshold(role, norm, median((one.samples, weight) for one, weight in of_role))
    return [after[role] for role in sorted(after)]


def check(codec: str, table: Sequence[Given], thresholds: Sequence[Threshold], min_exponent: int) -> TableMean:
    """Compare a table's mean with what fractions say, and return it."""
    weights = expected_weights(table)
    by_role = {one.role: one for one in thresholds}
    clipped = [expected_clipped(one, weight, by_role.get(one.role), min_exponent) for one, weight in zip(table, weights, strict=True)]
    least = min(one.min_exponent for one in table)
    rows = [(one.chunks, one.min_exponent - least, weight, one.mask) for one, weight in zip(table, clipped, strict=True)]
    totals = [
        sum(weight for one, weight in zip(table, weights, strict=True) if one.mask is None or one.mask[place])
        for place in range(len(table[0].values))
    ]
    new_min_exponent = expected_min_exponent(codec, table, weights, min_exponent)
    is_less = [counted < weight for counted, weight in zip(clipped, weights, strict=True)]
    result = found(codec, table, thresholds, min_exponent)
    assert result.mean.dtype == np.float32
    assert result.mean.tobytes() == np.array(reference.masked_mean(rows, totals, least), np.float32).tobytes()
    assert (result.weights, result.clipped) == (tuple(weights), tuple(clipped))
    assert result.min_exponent == new_min_exponent
    assert list(result.thresholds) == expected_thresholds(table, weights, thresholds, min_exponent, new_min_exponent)
    assert clipped_in(result) == [at for at, less in enumerate(is_less) if less]
    digest = sha256(b"any")  # a round entry has room for it
    Round(digest, 1, digest, 0, 1, digest, digest, digest, result.thresholds, result.min_exponent, open_ms=1)
    return result


@st.composite
def tables(draw: st.DrawFn, codec: str) -> tuple[list[Given], list[Threshold], int]:
    """A table, the thresholds before it and the min exponent before it; some thresholds are near what clips one of the rows."""
    min_exponents = [draw(reference.MIN_EXPONENTS)]  # of the bases, by age
    for _ in range(MAX_AGE):
        min_exponents.append(min(max(min_exponents[-1] + draw(st.integers(-1, 1)), LEAST_MIN_EXPONENT), GREATEST_MIN_EXPONENT))
    count = draw(st.integers(1, 5))
    samples = st.one_of(st.integers(1, 40), st.sampled_from([1, 16, 2**40, 2**44]))
    table, masks = [], draw(st.sampled_from([st.none(), st.none() | st.lists(st.booleans(), min_size=count, max_size=count).map(tuple)]))
    for _ in range(draw(st.integers(1, 6))):
        age = draw(st.integers(0, MAX_AGE))
        role = draw(st.sampled_from([0, 0, 0, 1, 2]))
        table.append(Given(draw(reference.chunks_of(codec, count)), min_exponents[age], draw(samples), age, role, draw(masks)))
    thresholds = []
    for role in draw(st.sampled_from([(), (0,), (0, 1), (0, 1, 2), (1, 2, 3)])):
        one = draw(st.sampled_from([one for one in table if one.role == role] or table))
        usual = one.samples * draw(st.sampled_from([1, 1, 2, 3, 7, 16]))
        near = root(one.norm_square / two_to(2 * min_exponents[0]) * one.samples / usual / draw(st.sampled_from([16, 16, 17, 30, 400])))
        norm = draw(st.one_of(st.just(max(near + draw(st.integers(-2, 2)), 0)), st.integers(0, 2**60)))
        thresholds.append(Threshold(role, norm, draw(st.one_of(st.just(usual), samples))))
    return table, thresholds, min_exponents[0]


@given(st.data(), reference.CODECS)
def test_an_outcome_is_what_fractions_say(data: st.DataObject, codec: str) -> None:
    check(codec, *data.draw(tables(codec)))


def coded(values: Floats, samples: int = 16, *, min_exponent: int = MIN_EXPONENT, **changes: int) -> Given:
    body = parse("int16", encode("int16", values, min_exponent), values.size)
    blocks = [(block.exponents.tolist(), block.integers.tolist()) for block in body.blocks()]
    return Given([chunk for block in blocks for chunk in zip(*block, strict=True)], min_exponent, samples, **changes)


def noise(seed: int, count: int = 500) -> Floats:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def length(values: Floats) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


def after(table: Sequence[Given], min_exponent: int = MIN_EXPONENT) -> tuple[tuple[Threshold, ...], int]:
    """The thresholds and the min exponent that a table leaves, with none before it."""
    result = found("int16", table, (), min_exponent)
    return result.thresholds, result.min_exponent


def test_an_outcome_of_several_chunks_ages_and_roles_is_what_fractions_say() -> None:
    count = CHUNK + 3
    palette = noise(1, 9)
    vectors = [np.tile(palette * scale, count // 9 + 1)[:count] for scale in (1.0, 3.0, 0.25, 40.0)]
    table = [
        coded(vectors[0], 64),
        coded(vectors[1], 32, min_exponent=MIN_EXPONENT + 1, age=2, role=1),
        coded(vectors[2], 16, min_exponent=MIN_EXPONENT - 1, age=4),
        coded(vectors[3], 1, min_exponent=MIN_EXPONENT + 1, age=1),
    ]
    norm = root(table[0].norm_square / two_to(2 * MIN_EXPONENT))
    result = check("int16", table, [Threshold(0, norm, 64), Threshold(1, norm // 10, 64), Threshold(2, norm, 8)], MIN_EXPONENT)
    assert clipped_in(result) == [1, 3]  # 3 where 0.4 * sqrt(2) are usual, 40 where 4 * 8 are
    assert [one.role for one in result.thresholds] == [0, 1, 2]


@pytest.mark.parametrize("samples", [1, 4, 16, 64, 1024])
@pytest.mark.parametrize("size", [5.0, 100.0, 1e30])
def test_a_liar_among_ten_moves_the_mean_by_no_more_than_the_clip_allows(size: float, samples: int) -> None:
    signal = noise(100)
    honest = [coded(signal + noise(seed)) for seed in range(9)]
    thresholds, min_exponent = after(honest)
    (usual,) = thresholds
    usual_norm = usual.norm * 2.0**min_exponent
    honest = [coded(signal + noise(seed), min_exponent=min_exponent) for seed in range(9)]
    lie = coded(-size * signal, samples, min_exponent=min_exponent)
    without = coded(0 * signal, samples, min_exponent=min_exponent)
    moved = length(
        found("int16", [*honest, lie], thresholds, min_exponent).mean - found("int16", [*honest, without], thresholds, min_exponent).mean
    )
    part = samples / (9 * 16 + samples)
    allowed = part * CLIP * usual_norm * max(1.0, math.sqrt(16 / samples))
    assert moved <= allowed * (1 + 1e-3)
    if math.sqrt(float(lie.norm_square)) > allowed / part:
        assert clipped_in(found("int16", [*honest, lie], thresholds, min_exponent)) == [9]
        assert moved >= allowed * (1 - 1e-3)  # it counts with its limit, not with nothing
        assert length(found("int16", [*honest, lie], (), min_exponent).mean) > allowed
    if samples <= 16:  # fewer samples make it no stronger: the limit grows by less than the weight falls
        assert moved <= 16 / 160 * CLIP * usual_norm * (1 + 1e-3)


def test_one_liar_among_ten_moves_no_threshold_and_no_min_exponent_by_much() -> None:
    honest = [coded(noise(seed)) for seed in range(10)]
    (usual,), min_exponent = after(honest)
    (lied,), min_exponent_after_lie = after([*honest[:9], coded(noise(9) * 1e20)])
    assert min_exponent_after_lie == min_exponent
    assert usual.norm <= lied.norm <= max(root(one.norm_square / two_to(2 * min_exponent)) for one in honest)


def test_honest_rows_with_few_samples_are_not_clipped_though_their_norm_is_large() -> None:
    def honest(seed: int, samples: int, min_exponent: int) -> Given:  # all of it noise: the norm grows as 1 / sqrt(samples)
        return coded(noise(seed) / np.float32(math.sqrt(samples)), samples, min_exponent=min_exponent)

    many = [256] * 6
    thresholds, min_exponent = after([honest(seed, samples, MIN_EXPONENT) for seed, samples in enumerate(many)])
    table = [honest(10 + seed, samples, min_exponent) for seed, samples in enumerate([*many, 1, 2, 4, 8, 9, 32, 128])]
    norms = [math.sqrt(float(one.norm_square)) for one in table]
    assert norms[6] > 15 * norms[0]
    assert found("int16", table, thresholds, min_exponent).num_clipped == 0
    same = [replace(one, samples=256) for one in table]  # were their samples as many, they would be
    assert clipped_in(found("int16", same, thresholds, min_exponent)) == [6, 7, 8, 9, 10]


def test_a_row_of_more_samples_than_usual_has_the_usual_limit() -> None:
    thresholds, min_exponent = after([coded(noise(seed)) for seed in range(5)])
    large = coded(noise(1) * np.float32(4.5), 16_384, min_exponent=min_exponent)
    assert clipped_in(found("int16", [large, coded(noise(2), min_exponent=min_exponent)], thresholds, min_exponent)) == [0]


def test_a_role_is_clipped_by_its_own_threshold_and_one_that_is_new_by_none() -> None:
    small, large = [noise(seed) for seed in range(5)], [noise(seed) * np.float32(100) for seed in range(5)]
    thresholds, min_exponent = after([*(coded(one) for one in small), *(coded(one, role=1) for one in large)])
    assert [one.role for one in thresholds] == [0, 1]
    table = [coded(large[0], min_exponent=min_exponent, role=role) for role in (0, 1, 2)]
    assert clipped_in(found("int16", table, thresholds, min_exponent)) == [0]


@pytest.mark.parametrize(("scale", "move", "norm"), [(1.0, 0, 1001), (1e6, 1, 500), (1e-6, -1, 2002)])
def test_a_role_without_a_row_keeps_its_threshold_in_the_units_of_the_new_min_exponent(scale: float, move: int, norm: int) -> None:
    vectors = [noise(seed) * np.float32(scale) for seed in range(3)]
    result = found("int16", [coded(one, min_exponent=-25) for one in vectors], [Threshold(1, 1001, 7)], -25)
    assert result.min_exponent == -25 + move
    assert [one.role for one in result.thresholds] == [0, 1]
    assert result.thresholds[1] == Threshold(1, norm, 7)


@pytest.mark.parametrize("min_exponent", [MIN_EXPONENT, LEAST_MIN_EXPONENT, GREATEST_MIN_EXPONENT])
def test_a_table_of_zeros_lowers_the_min_exponent_which_may_be_too_high_for_all_values(min_exponent: int) -> None:
    result = found("int16", [coded(0 * noise(seed), min_exponent=min_exponent) for seed in range(3)], (), min_exponent)
    assert result.min_exponent == max(min_exponent - 1, LEAST_MIN_EXPONENT)
    assert not result.mean.any()
    assert result.thresholds == (Threshold(0, 0, 16),)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_bodies_of_zeros_have_no_say_about_the_min_exponent(scale: float) -> None:
    real = coded(noise(1) * np.float32(scale), 1)
    zeros = [coded(0 * noise(1), 1000) for _ in range(5)]
    assert found("int16", [*zeros, real]).min_exponent == found("int16", [real]).min_exponent == MIN_EXPONENT + (1 if scale > 1 else -1)


def test_after_a_table_of_zeros_rows_count_as_without_a_threshold() -> None:
    thresholds, min_exponent = after([coded(0 * noise(1)), coded(noise(2), 4)])
    assert thresholds[0].norm == 0
    table = [coded(noise(seed), min_exponent=min_exponent) for seed in range(3)]
    assert found("int16", table, thresholds, min_exponent).num_clipped == 0


def test_a_body_is_coded_and_counted_alike_in_every_codec() -> None:
    values = noise(1)
    for codec, error in (("int16", 1e-4), ("int8", 2e-2), ("topk-2048-8", 0.25), ("topk-256-4", 0.6)):
        body = parse(codec, encode(codec, values, -20), values.size)
        result = table_mean([row_of(16)], [body], [-20], (), -20, values.size)
        assert result.mean.tobytes() == body.values(-20).tobytes()
        np.testing.assert_allclose(result.mean, values, atol=error * float(np.abs(values).max()))


def test_a_hundred_free_keys_move_the_mean_by_no_more_than_the_cap() -> None:
    """Three proven keys say 1, a hundred that nobody knows say -8, with as many samples each: together these are a fifth of the mean."""
    honest, free = np.ones(8, np.float32), np.full(8, -8, np.float32)
    rows = [row_of(64) for _ in range(3)] + [replace(row_of(640), unproven=640) for _ in range(3, 103)]
    bodies = [parse("int16", encode("int16", honest if place < 3 else free, -20), 8) for place in range(103)]
    alone = table_mean(rows[:3], bodies[:3], [-20] * 3, (), -20, 8).mean
    assert alone.tolist() == [1.0] * 8
    mean = table_mean(rows, bodies, [-20] * 103, (), -20, 8).mean
    assert np.all(mean >= (1 * 4 - 8 * 1) / 5 - 1e-3)
    assert np.all(mean < alone)
    without = table_mean([replace(row, unproven=0) for row in rows], bodies, [-20] * 103, (), -20, 8).mean
    assert np.all(without < -7)
    usual = Threshold(0, 3 << 20, 64)  # in units of 2^-20: a norm of 3, that of the honest ones is 2.83
    clipped = table_mean(rows, bodies, [-20] * 103, (usual,), -20, 8)
    assert np.all(clipped.mean > mean)  # and they are clipped besides
    assert clipped.thresholds[0].norm * 2.0**clipped.min_exponent < 3  # whose size they do not set


def test_a_mask_that_only_rows_without_weight_cover_leaves_zeros() -> None:
    body = parse("int16", encode("int16", np.ones(8, np.float32), -20), 8)
    rows = [row_of(1), replace(row_of(1), unproven=1), replace(row_of(2**40), unproven=2**40)]
    first, last = np.arange(8) < 4, np.arange(8) >= 4
    result = table_mean(rows, [body] * 3, [-20] * 3, (), -20, 8, [first, last, first])
    assert result.weights[1] == 0
    assert result.mean.tolist() == [1.0] * 4 + [0.0] * 4
