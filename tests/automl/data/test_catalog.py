from pathlib import Path

import pytest

from manta_swarm.automl.data.catalog import load_dataset
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
