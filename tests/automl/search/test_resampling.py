import hashlib

import numpy as np
import pytest

from manta_swarm.automl.search.resampling import REPLICATES, halves, interval, resampled


def test_the_spread_of_resampled_means_is_the_standard_error() -> None:
    losses = np.random.default_rng(0).integers(0, 20_000, (2, 400))
    sums = resampled(losses, seed=3)
    assert sums.shape == (2, REPLICATES)
    expected = losses.std(axis=1) * np.sqrt(400)
    assert sums.std(axis=1) == pytest.approx(expected, rel=0.1)
    assert sums.mean(axis=1) == pytest.approx(losses.sum(axis=1), abs=0.3 * expected.max())


def test_architectures_share_their_replicates_and_the_seed_decides_them() -> None:
    losses = np.random.default_rng(0).integers(0, 20_000, (2, 50))
    both = np.stack([losses[0], losses[1], losses[0] + losses[1]])
    sums = resampled(both, seed=3)
    assert np.array_equal(sums[2], sums[0] + sums[1])
    assert np.array_equal(resampled(both, seed=3), sums)
    assert not np.array_equal(resampled(both, seed=4), sums)


def test_the_replicates_are_the_same_on_every_machine() -> None:
    sums = resampled(np.arange(30).reshape(2, 15), seed=1)
    assert hashlib.sha256(sums.astype("<i8").tobytes()).hexdigest() == "8f143b803217c8d2732709ef8dd43e5d779bca6b72c4bc1901222bf8b41da2c6"


def test_many_samples_are_drawn_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = np.random.default_rng(0).integers(0, 20_000, (2, 50))
    whole = resampled(losses, seed=3)
    monkeypatch.setattr("manta_swarm.automl.search.resampling._CHUNK", 333)
    assert np.array_equal(resampled(losses, seed=3), whole)


def test_an_interval_leaves_out_a_fortieth_on_either_side() -> None:
    found = interval(10.0, np.arange(REPLICATES, dtype=np.float64)[::-1], 2.0)
    assert (found.value, found.low, found.high) == (5.0, 12.5, 487.0)


def test_intervals_have_the_true_mean_about_as_often_as_they_say() -> None:
    rng, hits = np.random.default_rng(5), 0
    for seed in range(60):
        losses = rng.exponential(1000.0, (1, 80)).round().astype(np.int64)
        found = interval(float(losses.sum()), resampled(losses, seed)[0], 80)
        hits += found.low <= 1000.0 <= found.high
    assert 50 <= hits <= 60


@pytest.mark.parametrize("count", [4, 5, 100])
def test_halves_share_no_sample_and_have_them_all(count: int) -> None:
    splits = list(halves(count, 0, 5))
    for first, second in splits:
        assert sorted([*first.tolist(), *second.tolist()]) == list(range(count))
        assert len(second) - len(first) == count % 2
    assert len({tuple(first.tolist()) for first, _ in splits}) > 1
