"""Images of one's own for a run with private data: the run's labels, the same images held out for ever, and clear refusals."""

from pathlib import Path

import numpy as np
import pytest

from manta_swarm.automl.data.image_folder import private_folder
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_picture

CLASSES = ("dog", "apple", "cat", "eel")  # the run's order, not that of the names


def write(folder: Path, label: str, count: int, *shape: int, first: int = 0) -> None:
    for number in range(count):
        write_picture(folder / label / f"{number:02}.png", noise(*shape, seed=first + number))


def load(folder: Path, *, channels: int = 3, side: int = 16, least: int = 2) -> ImageDataset:
    return private_folder(folder, CLASSES, channels=channels, side=side, mirrored=False, least=least)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    write(tmp_path, "cat", 20, 12, 12, 3)
    write(tmp_path, "dog", 10, 12, 12, 3, first=100)
    return tmp_path


def images(dataset: ImageDataset) -> tuple[set[bytes], set[bytes]]:
    """The images to train with, and those held out."""
    return {each.tobytes() for each in dataset.train_images}, {each.tobytes() for each in dataset.held_out_images}


def test_folders_have_the_runs_labels_and_some_classes_may_be_missing(own: Path) -> None:
    dataset = load(own)
    assert (dataset.num_classes, dataset.class_names, dataset.image_channels, dataset.flips) == (4, CLASSES, 3, False)
    labels = np.concatenate([dataset.train_labels, dataset.held_out_labels])
    assert np.bincount(labels, minlength=4).tolist() == [10, 0, 20, 0]
    for image, label in zip(dataset.train_images, dataset.train_labels, strict=True):
        first = {0: 100, 2: 0}[int(label)]
        assert image.transpose(1, 2, 0).tobytes() in [noise(12, 12, 3, seed=first + number).tobytes() for number in range(20)]


def test_an_image_stays_on_its_side_whatever_is_added_later_and_so_do_its_copies(own: Path) -> None:
    train, held_out = images(load(own))
    assert train
    assert held_out
    write(own, "eel", 30, 12, 12, 3, first=200)
    for number in range(20):
        write_picture(own / "cat" / f"copy-{number:02}.png", noise(12, 12, 3, seed=number))
    more_train, more_held_out = images(load(own))
    assert train < more_train
    assert held_out < more_held_out
    assert not more_train & more_held_out


def test_what_is_grey_is_fed_to_networks_that_see_colours_and_not_the_other_way_round(tmp_path: Path) -> None:
    write(tmp_path, "cat", 10, 12, 12)
    assert load(tmp_path).image_channels == 3
    assert load(tmp_path, channels=1).image_channels == 1
    write(tmp_path, "dog", 1, 12, 12, 3)
    with pytest.raises(UserError, match=r"dog/00\.png has colours, and the networks of this run see grey images"):
        load(tmp_path, channels=1)


def test_no_image_is_kept_larger_than_the_networks_see(own: Path) -> None:
    assert load(own, side=8).train_images.shape[1:] == (3, 8, 8)


def test_what_does_not_fit_is_said_in_one_line(own: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is no folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"images to train with, beside .* a microbatch of this run has 40: add images"):
        load(own, least=40)
    (own / "horse").mkdir()
    with pytest.raises(UserError, match="horse is empty"):
        load(own)
    write(own, "horse", 1, 12, 12, 3)
    with pytest.raises(UserError, match="horse is no class of this run, which has dog, apple, cat, eel: rename the folder"):
        load(own)


def test_a_folder_without_classes_and_files_that_are_no_images_are_refused(tmp_path: Path, own: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="0 class folders: at least 1 is needed"):
        load(empty)
    empty.rmdir()
    cut(own / "cat" / "00.png")
    with pytest.raises(UserError, match=r"cat/00\.png is truncated or damaged"):
        load(own)


def test_a_folders_name_is_the_classs_however_a_disk_writes_its_letters(tmp_path: Path) -> None:
    write(tmp_path, "u\u0308ber", 10, 12, 12)
    dataset = private_folder(tmp_path, ("unter", "\u00fcber"), channels=1, side=16, mirrored=False, least=2)
    assert set(dataset.train_labels.tolist()) == {1}
