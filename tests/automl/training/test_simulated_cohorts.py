"""Several cohorts in one process, against the rules that a swarm follows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.cohorts import CohortLearnt, ExchangeMemory, LocalCohort, LocalExchange, Vector, load_memory, save_memory
from manta_swarm.automl.training.coverage import coverage
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import CHUNK
from manta_swarm.protocol.records import MAX_NORM, Threshold

N = 2 * CHUNK + 100
SPARSE = "topk-256-4"
COHORTS = [LocalCohort.numbered(number) for number in range(3)]


def vectors(seed: int, count: int = 3, num_values: int = N) -> list[Vector]:
    generator = np.random.default_rng(seed)
    return [generator.normal(0, 0.01, num_values).astype(np.float32) for _ in range(count)]


def learnt(every: list[Vector], masks: list[np.ndarray] | None = None) -> list[CohortLearnt]:
    return [
        CohortLearnt(cohort, values, 64, 0, None if masks is None else masks[place])
        for place, (cohort, values) in enumerate(zip(COHORTS, every, strict=False))
    ]


def exchange(codec: str, percent: int = 100, num_values: int = N) -> LocalExchange:
    return LocalExchange(codec, percent, num_values, 3)


def test_cohorts_have_keys_and_names_of_their_own_and_begin_their_sweeps_at_different_places() -> None:
    cohorts = [LocalCohort.numbered(number) for number in range(1024)]
    assert len({cohort.key for cohort in cohorts}) == len({cohort.name for cohort in cohorts}) == 1024
    assert {len(cohort.key) for cohort in cohorts} == {32}
    assert [cohort.key[0] % 4 for cohort in cohorts[:4]] == [0, 1, 2, 3]


def test_densely_coded_the_mean_is_that_of_what_was_learnt_but_for_the_rounding() -> None:
    found, every = exchange("int16"), vectors(1)
    mean = found.mean(learnt(every))
    np.testing.assert_allclose(mean, np.mean(every, axis=0), atol=2e-6)
    assert found.memory.residuals == (None, None, None)
    assert found.contribution_bytes == 2 * N + 3


def test_what_a_sparse_mean_says_and_what_is_left_are_all_that_was_learnt() -> None:
    found, said, given = exchange(SPARSE), np.zeros(N), np.zeros(N)
    for round_ in range(6):
        every = vectors(round_)
        given += np.mean(np.asarray(every, np.float64), axis=0)
        said += found.mean(learnt(every))
        left = np.mean([np.asarray(residual, np.float64) for residual in found.memory.residuals if residual is not None], axis=0)
        np.testing.assert_allclose(said + left, given, atol=1e-6)
    assert np.abs(left).max() > 0.001


def test_a_part_of_the_residual_comes_with_the_next_contribution() -> None:
    found, silent = exchange(SPARSE, percent=50), [np.zeros(N, np.float32)] * 3
    found.mean(learnt(vectors(1)))
    before = found.memory.residuals
    mean = found.mean(learnt(silent))
    halves = [residual * np.float32(0.5) for residual in before if residual is not None]
    left = [residual for residual in found.memory.residuals if residual is not None]
    np.testing.assert_allclose(np.mean(halves, axis=0), mean + np.mean(left, axis=0), atol=1e-6)


def test_where_masks_cover_the_mean_is_that_of_who_covers_and_elsewhere_it_is_nothing() -> None:
    masks = [np.arange(N) < 3000, np.arange(N) < 6000, (np.arange(N) >= 1000) & (np.arange(N) < 5000)]
    every = vectors(3)
    mean = exchange("int16").mean(learnt(every, masks))
    for place in (500, 2000, 4000, 5500, 7000):
        who = [values[place] for values, mask in zip(every, masks, strict=True) if mask[place]]
        assert mean[place] == pytest.approx(np.mean(who) if who else 0.0, abs=2e-6)
    assert not mean[6000:].any()


def test_a_residual_outside_of_a_rounds_mask_waits_for_the_round_that_covers_it() -> None:
    found, half = exchange(SPARSE), np.arange(N) < CHUNK
    found.mean(learnt(vectors(1)))
    before = found.memory.residuals
    found.mean(learnt(vectors(2), [half] * 3))
    for one, other in zip(before, found.memory.residuals, strict=True):
        assert one is not None
        assert other is not None
        assert np.array_equal(one[CHUNK:], other[CHUNK:])
        assert not np.array_equal(one[:CHUNK], other[:CHUNK])


def test_a_sort_leaves_no_residuals_and_the_rest_as_it_was() -> None:
    found = exchange(SPARSE)
    found.mean(learnt(vectors(1)))
    before = found.memory
    found.sorted()
    assert found.memory == ExchangeMemory(before.min_exponent, before.thresholds, (None, None, None))


def test_who_learnt_what_is_no_finite_number_is_not_in_the_table_and_keeps_its_residual() -> None:
    every = vectors(2)
    every[1][7] = np.nan
    dense = exchange("int16").mean(learnt(every))
    np.testing.assert_allclose(dense, np.mean([every[0], every[2]], axis=0), atol=2e-6)
    found = exchange(SPARSE)
    found.mean(learnt(vectors(1)))
    before = found.memory
    found.mean(learnt(every))
    assert [one is other for one, other in zip(found.memory.residuals, before.residuals, strict=True)] == [False, True, False]
    for values in every:
        values[7] = np.inf
    after = found.memory
    assert not found.mean(learnt(every)).any()
    assert found.memory is after


@pytest.mark.parametrize("codec", ["int16", "int8", "topk-512-3", "topk-256-2"])
def test_a_first_exchange_cuts_nothing_off_what_is_usually_learnt(codec: str) -> None:
    values = np.full(N, 0.25, np.float32)
    values[::5] = -2.0
    found = LocalExchange(codec, 100, N, 1)
    mean = found.mean(learnt([values]))
    assert mean.min() == pytest.approx(-2.0, rel=0.3)


def test_what_an_exchange_leaves_survives_its_file(tmp_path: Path) -> None:
    found = exchange(SPARSE)
    found.mean(learnt(vectors(1)))
    partial = replace(found.memory, residuals=(found.memory.residuals[0], None, found.memory.residuals[2]))
    large = replace(partial, thresholds=(Threshold(0, MAX_NORM, 5), Threshold(2, 1, 2**40)), min_exponent=-77)
    for number, memory in enumerate((found.memory, partial, large, ExchangeMemory(-32, (), (None,)))):
        path = tmp_path / f"{number}.safetensors"
        save_memory(path, memory)
        again = load_memory(path, N)
        assert (again.min_exponent, again.thresholds, len(again.residuals)) == (
            memory.min_exponent,
            memory.thresholds,
            len(memory.residuals),
        )
        for one, other in zip(again.residuals, memory.residuals, strict=True):
            assert (one is None and other is None) or np.array_equal(one, other)


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "exchange.safetensors"
    with pytest.raises(UserError, match=r"exchange\.safetensors"):
        load_memory(path, N)
    path.write_bytes(b"torn")
    with pytest.raises(UserError, match=r"exchange\.safetensors"):
        load_memory(path, N)
    save_memory(path, ExchangeMemory(-32, (), (np.zeros(5, np.float32),)))
    with pytest.raises(UserError, match="supernet's length"):
        load_memory(path, N)


def test_masks_of_real_architectures_leave_no_coordinate_of_the_largest_alone_to_the_smallest() -> None:
    masks = [coverage(TINY, TINY.largest()), coverage(TINY, TINY.smallest())]
    count = len(masks[0])
    every = [np.full(count, 1.0, np.float32), np.full(count, 3.0, np.float32)]
    mean = torch.from_numpy(LocalExchange("int16", 100, count, 2).mean(learnt(every, masks)))
    both, only_largest = torch.from_numpy(masks[0] & masks[1]), torch.from_numpy(masks[0] & ~masks[1])
    assert torch.allclose(mean[both], torch.tensor(2.0), atol=1e-3)
    assert torch.allclose(mean[only_largest], torch.tensor(1.0), atol=1e-3)
    assert torch.allclose(mean[torch.from_numpy(~masks[0] & masks[1])], torch.tensor(3.0), atol=1e-3)
