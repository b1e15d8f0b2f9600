from pathlib import Path

import numpy as np
import pytest

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_picture

CLASSES = ("apple", "cat", "dog")


def write_classes(folder: Path, counts: tuple[int, ...], *shape: int, first: int = 0) -> None:
    for label, (name, count) in enumerate(zip(CLASSES, counts, strict=True)):
        for number in range(count):
            write_picture(folder / name / f"{number:02}.png", noise(*shape, seed=first + 100 * label + number))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Class folders in own/, and parts of their own in parts/."""
    write_classes(tmp_path / "own", (11, 5, 2), 12, 12, 3)
    write_classes(tmp_path / "parts" / "train", (4, 3, 3), 12, 12, 3)
    write_classes(tmp_path / "parts" / "val", (2, 1, 2), 12, 12, 3, first=1000)
    return tmp_path


def load(name: str, root: Path) -> ImageDataset:
    dataset = load_dataset(name, root)
    assert isinstance(dataset, ImageDataset)
    return dataset


def test_class_folders_are_read_in_order_and_a_fifth_of_each_is_held_out(root: Path) -> None:
    dataset = load("folder-own", root)
    assert (dataset.name, dataset.num_classes, dataset.image_channels, dataset.flips) == ("folder-own", 3, 3, True)
    assert np.bincount(dataset.train_labels).tolist() == [9, 4, 1]
    assert np.bincount(dataset.held_out_labels).tolist() == [2, 1, 1]
    for images, labels in ((dataset.train_images, dataset.train_labels), (dataset.held_out_images, dataset.held_out_labels)):
        for image, label in zip(images, labels, strict=True):
            written = [noise(12, 12, 3, seed=100 * label + number).tobytes() for number in range(11)]
            assert image.transpose(1, 2, 0).tobytes() in written
    assert dataset.digest == load("folder-own", root).digest


def test_files_that_are_copied_anew_under_the_same_names_change_nothing(root: Path, tmp_path: Path) -> None:
    before = load("folder-own", root).digest
    for path in sorted((root / "own").glob("*/*.png"), reverse=True):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    (root / "own" / ".hidden").mkdir()
    (root / "own" / "cat" / ".DS_Store").touch()
    (root / "own" / "labels.txt").touch()
    assert load("folder-own", root).digest == before


def test_parts_of_their_own_stay_as_they_are(root: Path) -> None:
    dataset = load("folder-parts", root)
    assert dataset.train_labels.tolist() == [0] * 4 + [1] * 3 + [2] * 3
    assert dataset.held_out_labels.tolist() == [0, 0, 1, 2, 2]
    assert np.array_equal(dataset.held_out_images[4].transpose(1, 2, 0), noise(12, 12, 3, seed=1201))


def test_test_goes_before_val(root: Path) -> None:
    write_classes(root / "parts" / "test", (1, 1, 1), 12, 12, 3, first=2000)
    assert load("folder-parts", root).num_held_out == 3


def test_images_of_all_sizes_come_to_one_and_grey_ones_stay_grey(root: Path) -> None:
    write_classes(root / "grey", (4, 4, 4), 20, 30)
    write_picture(root / "grey" / "cat" / "00.png", noise(400, 300))
    dataset = load("folder-grey", root)
    assert (dataset.train_images.shape[1:], dataset.flips) == ((1, 20, 20), False)
    assert load("folder-grey-9px", root).train_images.shape[1:] == (1, 9, 9)
    assert load("folder-grey-9px", root).name == "folder-grey-9px"
    write_picture(root / "grey" / "cat" / "01.png", noise(20, 20, 3))
    assert load("folder-grey", root).train_images.shape[1:] == (3, 20, 20)


def test_an_empty_class_is_named(root: Path) -> None:
    (root / "own" / "bear").mkdir()
    with pytest.raises(UserError, match=r"own/bear is empty"):
        load("folder-own", root)


def test_a_class_of_one_image_is_named(root: Path) -> None:
    (root / "own" / "dog" / "00.png").unlink()
    with pytest.raises(UserError, match=r"own/dog has one image"):
        load("folder-own", root)


@pytest.mark.parametrize(("part", "other"), [("train", "val"), ("val", "train")])
def test_a_class_that_is_in_one_part_only_is_named(root: Path, part: str, other: str) -> None:
    write_picture(root / "parts" / part / "eel" / "0.png", noise(12, 12, 3))
    with pytest.raises(UserError, match=rf"'eel' is in .*{part} and not in .*{other}"):
        load("folder-parts", root)


@pytest.mark.parametrize(("damage", "message"), [("text", "is not a picture"), ("cut", "is truncated"), ("folder", "is a folder inside")])
def test_a_file_that_is_no_image_is_named(root: Path, damage: str, message: str) -> None:
    path = root / "own" / "cat" / "03.png"
    if damage == "cut":
        cut(path)
    else:
        path.unlink()
        path.mkdir() if damage == "folder" else path.write_text("cat")
    with pytest.raises(UserError, match=rf"cat/03\.png {message}"):
        load("folder-own", root)


def test_no_classes_are_told(root: Path) -> None:
    (root / "flat").mkdir()
    with pytest.raises(UserError, match=r"flat has 0 class folders"):
        load("folder-flat", root)
    with pytest.raises(UserError, match=r"none is no folder"):
        load("folder-none", root)
