import numpy as np
import pytest

from manta_swarm.automl.data.dataset import calibration_indices, part_indices


@pytest.mark.parametrize(("num_train", "batch", "limit"), [(1442, 256, 1024), (1442, 100, 5000), (10, 64, 1024), (1, 8, 8), (4096, 7, 50)])
def test_calibration_batches_are_equal_and_each_is_spread_over_the_whole_set(num_train: int, batch: int, limit: int) -> None:
    batches = calibration_indices(num_train, batch, limit)
    size = min(batch, limit, num_train)
    assert {len(one) for one in batches} == {size}
    everything = np.concatenate(batches)
    assert len(set(everything.tolist())) == len(everything) <= min(limit, num_train)
    assert len(everything) + size > min(limit, num_train)
    for one in batches:
        assert np.diff(one).max(initial=0) <= -(-num_train // size) + 1
        assert one[0] <= num_train // size
        assert one[-1] >= num_train - 1 - num_train // size - 1


@pytest.mark.parametrize(("batch", "limit"), [(0, 10), (10, 0), (-1, 5)])
def test_calibration_without_samples_is_refused(batch: int, limit: int) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        calibration_indices(100, batch, limit)


def test_the_halves_of_the_held_out_part_share_out_every_class_evenly() -> None:
    classes = np.random.default_rng(0).integers(0, 7, 333)
    search, test = part_indices(classes, "search"), part_indices(classes, "test")
    assert sorted([*search, *test]) == list(range(333)) == part_indices(classes, "all").tolist()
    assert len(search) - len(test) == 1
    for label in range(7):
        assert abs(np.sum(classes[search] == label) - np.sum(classes[test] == label)) <= 1


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="'train' is no part"):
        part_indices(np.zeros(4, dtype=np.int64), "train")
