from pathlib import Path

import numpy as np
import pytest

from manta_swarm.automl.data.catalog import load_dataset, motorcycle
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.protocol.errors import UserError


@pytest.mark.parametrize(("name", "task"), [("digits", "classification"), ("layers", "stereo"), ("motorcycle", "stereo")])
def test_what_comes_with_a_library_needs_no_folder(name: str, task: str) -> None:
    dataset = load_dataset(name)
    assert (dataset.name, dataset.task) == (name, task)


def test_an_unknown_data_set_is_the_users_error_and_a_similar_name_is_offered() -> None:
    with pytest.raises(UserError, match="unknown data set 'faces': this version knows digits, layers, motorcycle, folder-NAME"):
        load_dataset("faces")
    with pytest.raises(UserError, match="like fashionmnist"):
        load_dataset("fashion-mnist")
    with pytest.raises(UserError, match="like emnist-letters"):
        load_dataset("emnist-leters")


@pytest.mark.parametrize("name", ["", "Digits", "folder-../../etc", "folder-/etc", "stereo-..\\x", "a" * 64, "digits\n", ".."])
def test_a_name_that_could_be_a_path_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no name of a data set"):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("name", ["folder-..", "folder-.", "folder-", "stereo-..", "stereo-.hidden", "folder-..-64px"])
def test_data_of_ones_own_is_never_above_the_root(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no folder"):
        load_dataset(name, tmp_path / "root")


@pytest.mark.parametrize("name", ["cifar10", "folder-own", "stereo-own", "kitti2015stereo", "food101-128px"])
def test_other_data_needs_a_folder_that_is_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{name} is in no library: name the folder"):
        load_dataset(name)
    with pytest.raises(UserError, match="gone is no folder"):
        load_dataset(name, tmp_path / "gone")


def test_a_size_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 8px"):
        load_dataset("cifar10-4px", tmp_path)


@pytest.fixture(scope="module")
def dataset() -> StereoDataset:
    return motorcycle()


def test_the_pair_and_its_split_are_fixed(dataset: StereoDataset) -> None:
    assert dataset.digest.hex() == "aec648efd25ad51ca117ddee238620d5a23ce252378bdf7d096c62ae1958d9e6"
    assert [one.disparity.shape for one in dataset.train] == [(315, 740)]
    assert [one.disparity.shape for one in dataset.held_out] == [(185, 370), (185, 370)]
    assert [len(one.windows) for one in dataset.held_out] == [1, 1]


def test_no_row_is_in_both_parts(dataset: StereoDataset) -> None:
    rows = {row.tobytes() for row in dataset.train[0].left[:, :370]}
    assert not rows & {row.tobytes() for row in dataset.held_out[0].left}


def test_the_right_view_warped_by_the_disparity_looks_like_the_left_one(dataset: StereoDataset) -> None:
    for one in (*dataset.train, *dataset.held_out):
        column = np.arange(one.disparity.shape[1]) - np.rint(one.disparity).astype(int)
        known = (one.disparity >= 0) & (column >= 0)
        assert known.mean() > 0.7
        warped = np.take_along_axis(one.right, np.clip(column, 0, one.disparity.shape[1] - 1)[..., None], axis=1).astype(float)
        error = abs(warped - one.left)[known].mean()
        assert 2.5 * error < abs(one.right.astype(float) - one.left)[known].mean()


def test_disparities_run_up_to_sixty_pixels_and_some_are_unknown(dataset: StereoDataset) -> None:
    disparity = dataset.train[0].disparity
    assert 0.02 < (disparity < 0).mean() < 0.15
    assert 50 < disparity.max() < 61
    assert set(np.unique(disparity[disparity < 0])) == {-1.0}


def test_the_one_pair_gives_different_windows_of_a_batch(dataset: StereoDataset) -> None:
    batch = dataset.training_batch([0] * 8, 1, 32)
    assert len({one.numpy().tobytes() for one in batch.inputs}) == 8
