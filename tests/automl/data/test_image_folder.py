"""Labelled images of one's own: as a data set, for a run with private data, as one long test set, and in parts by class."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.automl.cli import main
from manta_swarm.automl.data.catalog import digits, load_dataset
from manta_swarm.automl.data.image_folder import WholeFolder, dirichlet_split, image_folder, part_of, private_folder, write_class_folders
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_classes, write_picture

PETS = {"cat": 5, "emu": 5}
OWN_CLASSES = ("dog", "apple", "cat", "eel")  # the run's order, not that of the names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Class folders in own/, and parts of their own in parts/."""
    write_classes(tmp_path / "own", {"apple": 11, "cat": 5, "dog": 2}, 12, 12, 3)
    write_classes(tmp_path / "parts" / "train", {"apple": 4, "cat": 3, "dog": 3}, 12, 12, 3)
    write_classes(tmp_path / "parts" / "val", {"apple": 2, "cat": 1, "dog": 2}, 12, 12, 3, first=1000)
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
    write_classes(root / "parts" / "test", {"apple": 1, "cat": 1, "dog": 1}, 12, 12, 3, first=2000)
    assert load("folder-parts", root).num_held_out == 3


def test_images_of_all_sizes_come_to_one_and_grey_ones_stay_grey(root: Path) -> None:
    write_classes(root / "grey", {"apple": 4, "cat": 4, "dog": 4}, 20, 30)
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


def load_own(folder: Path, *, channels: int = 3, side: int = 16, least: int = 2) -> ImageDataset:
    return private_folder(folder, OWN_CLASSES, channels=channels, side=side, mirrored=False, least=least)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_classes(tmp_path, {"cat": 20, "dog": 10}, 12, 12, 3)


def images(dataset: ImageDataset) -> tuple[set[bytes], set[bytes]]:
    """The images to train with, and those held out."""
    return {each.tobytes() for each in dataset.train_images}, {each.tobytes() for each in dataset.held_out_images}


def test_folders_have_the_runs_labels_and_some_classes_may_be_missing(own: Path) -> None:
    dataset = load_own(own)
    assert (dataset.num_classes, dataset.class_names, dataset.image_channels, dataset.flips) == (4, OWN_CLASSES, 3, False)
    labels = np.concatenate([dataset.train_labels, dataset.held_out_labels])
    assert np.bincount(labels, minlength=4).tolist() == [10, 0, 20, 0]
    for image, label in zip(dataset.train_images, dataset.train_labels, strict=True):
        first = {0: 100, 2: 0}[int(label)]
        assert image.transpose(1, 2, 0).tobytes() in [noise(12, 12, 3, seed=first + number).tobytes() for number in range(20)]


def test_an_image_stays_on_its_side_whatever_is_added_later_and_so_do_its_copies(own: Path) -> None:
    train, held_out = images(load_own(own))
    assert train
    assert held_out
    write_classes(own, {"eel": 30}, 12, 12, 3, first=200)
    for number in range(20):
        write_picture(own / "cat" / f"copy-{number:02}.png", noise(12, 12, 3, seed=number))
    more_train, more_held_out = images(load_own(own))
    assert train < more_train
    assert held_out < more_held_out
    assert not more_train & more_held_out


def test_what_is_grey_is_fed_to_networks_that_see_colours_and_not_the_other_way_round(tmp_path: Path) -> None:
    write_classes(tmp_path, {"cat": 10}, 12, 12)
    assert load_own(tmp_path).image_channels == 3
    assert load_own(tmp_path, channels=1).image_channels == 1
    write_classes(tmp_path, {"dog": 1}, 12, 12, 3)
    with pytest.raises(UserError, match=r"dog/00\.png has colours, and the networks of this run see grey images"):
        load_own(tmp_path, channels=1)


def test_no_image_is_kept_larger_than_the_networks_see(own: Path) -> None:
    assert load_own(own, side=8).train_images.shape[1:] == (3, 8, 8)


def test_what_does_not_fit_is_said_in_one_line(own: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is no folder"):
        load_own(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"images to train with, beside .* a microbatch of this run has 40: add images"):
        load_own(own, least=40)
    (own / "horse").mkdir()
    with pytest.raises(UserError, match="horse is empty"):
        load_own(own)
    write_classes(own, {"horse": 1}, 12, 12, 3)
    with pytest.raises(UserError, match="horse is no class of this run, which has dog, apple, cat, eel: rename the folder"):
        load_own(own)


def test_a_folder_without_classes_and_files_that_are_no_images_are_refused(tmp_path: Path, own: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="0 class folders: at least 1 is needed"):
        load_own(empty)
    empty.rmdir()
    cut(own / "cat" / "00.png")
    with pytest.raises(UserError, match=r"cat/00\.png is truncated or damaged"):
        load_own(own)


def test_a_folders_name_is_the_classs_however_a_disk_writes_its_letters(tmp_path: Path) -> None:
    write_classes(tmp_path, {"u\u0308ber": 10}, 12, 12)
    dataset = private_folder(tmp_path, ("unter", "\u00fcber"), channels=1, side=16, mirrored=False, least=2)
    assert set(dataset.train_labels.tolist()) == {1}


def test_all_images_of_a_folder_are_seen_under_the_labels_of_the_network(tmp_path: Path) -> None:
    tested = WholeFolder(write_classes(tmp_path, PETS, 20, 30, 3), ("ant", "cat", "dog", "emu"), 3, None)
    batches = list(tested.held_out_batches(16, 4))
    assert [batch.targets.tolist() for batch in batches] == [[1, 1, 1, 1], [1, 3, 3, 3], [3, 3]]
    assert [tuple(batch.inputs.shape) for batch in batches] == [(4, 3, 16, 16), (4, 3, 16, 16), (2, 3, 16, 16)]
    assert len(tested) == 10


def test_its_inputs_are_those_of_the_folder_as_a_data_set(tmp_path: Path) -> None:
    dataset = image_folder("folder-x", write_classes(tmp_path, PETS, 20, 30, 3), side=18)
    tested = WholeFolder(tmp_path, dataset.class_titles, 3, dataset.preparation.kept_side)
    (everything,) = tested.held_out_batches(16, 10)
    for held_out in dataset.held_out_batches(16, 1):
        same = [torch.equal(image, held_out.inputs[0]) for image in everything.inputs]
        assert everything.targets[same.index(True)] == held_out.targets[0]


def test_statistics_are_of_another_sets_training_images(tmp_path: Path) -> None:
    tested = WholeFolder(write_classes(tmp_path, PETS, 20, 30), ("cat", "emu"), 1, None, digits())
    (first, *_) = tested.calibration_batches(16, 8, 16)
    assert torch.equal(first, next(iter(digits().calibration_batches(16, 8, 16))))


def test_a_class_that_the_network_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="emu is no class of the network, which has ant, cat: rename"):
        WholeFolder(write_classes(tmp_path, PETS, 20, 30, 3), ("ant", "cat"), 3, None)
    with pytest.raises(UserError, match="is no folder"):
        WholeFolder(tmp_path / "none", ("ant", "cat"), 3, None)


def test_colours_are_refused_where_the_network_sees_none(tmp_path: Path) -> None:
    tested = WholeFolder(write_classes(tmp_path, PETS, 20, 30, 3), ("cat", "emu"), 1, None)
    with pytest.raises(UserError, match="has colours, and the network sees grey images"):
        list(tested.held_out_batches(16, 4))


@given(
    st.integers(1, 6), st.floats(0.05, 100), st.integers(0, 2**32), st.lists(st.integers(0, 4), min_size=60, max_size=80), st.integers(0, 3)
)
def test_every_sample_is_in_one_part(parts: int, alpha: float, seed: int, labels: list[int], least: int) -> None:
    split = dirichlet_split(np.array(labels), parts, alpha, seed, least)
    assert len(split) == parts
    assert np.sort(np.concatenate(split)).tolist() == list(range(len(labels)))
    assert min(map(len, split)) >= least
    assert [part.tolist() for part in dirichlet_split(np.array(labels), parts, alpha, seed, least)] == [part.tolist() for part in split]


def test_a_small_alpha_gives_unlike_parts_and_a_large_one_like_ones() -> None:
    labels = np.repeat(np.arange(10), 200)

    def largest_share(alpha: float) -> float:
        """Of a part's samples those of its commonest class, the mean over the parts."""
        split = dirichlet_split(labels, 8, alpha, seed=1)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in split]))

    assert largest_share(0.1) > 0.4
    assert largest_share(100) < 0.15


def test_what_cannot_be_split_is_refused() -> None:
    for parts, alpha, least in ((0, 1, 1), (2, 0, 1), (3, 1, 2)):
        with pytest.raises(UserError, match="cannot be split"):
            dirichlet_split(np.zeros(5, np.int64), parts, alpha, 0, least)
    with pytest.raises(UserError, match="no split"):
        dirichlet_split(np.zeros(10, np.int64), 10, 0.01, 0, 1)


def test_a_part_has_what_it_was_given_and_holds_out_nothing_of_the_others() -> None:
    whole = digits()
    part = part_of(whole, np.array([3, 5]), np.array([7]))
    assert (part.num_train, part.num_held_out) == (2, 1)
    assert part.train_images.tobytes() == whole.train_images[[3, 5]].tobytes()
    assert part.held_out_labels.tolist() == [whole.train_labels[7]]


def test_what_is_written_is_what_a_peer_reads(tmp_path: Path) -> None:
    whole = digits()
    chosen = list(range(200))
    write_class_folders(whole, chosen, tmp_path)
    read = private_folder(tmp_path, whole.class_names, channels=1, side=32, mirrored=False, least=2)
    images = np.concatenate([read.train_images, read.held_out_images])
    labels = np.concatenate([read.train_labels, read.held_out_labels])
    expected = {
        ((255 * image.astype(int) + 8) // 16).astype(np.uint8).tobytes(): label
        for image, label in zip(whole.train_images[chosen], whole.train_labels[chosen], strict=True)
    }
    assert {image.tobytes(): label for image, label in zip(images, labels, strict=True)} == expected


def test_the_command_makes_a_folder_for_each_part_and_leaves_what_is_there_alone(tmp_path: Path) -> None:
    out = tmp_path / "parts"
    found = CliRunner().invoke(main, ["split", "digits", "--parts", "3", "--alpha", "1", "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert sorted(path.name for path in out.iterdir()) == ["part-0", "part-1", "part-2"]
    assert len(list(out.glob("part-*/*/*.png"))) == digits().num_train
    again = CliRunner().invoke(main, ["split", "digits", "--out", str(out)])
    assert (again.exit_code, "is there already" in again.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["layers"], "layers is a set for stereo"),
        (["digits", "--alpha", "0"], "--alpha takes a number above 0"),
        (["digits", "--alpha", "inf"], "--alpha takes a number above 0, not inf"),
        (["digits", "--parts", "100"], "cannot be split into 100 parts of at least 50"),
        (["imaginary"], "unknown data set"),
    ],
)
def test_the_command_says_what_it_cannot_do(arguments: list[str], says: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["split", *arguments, "--out", str(tmp_path / "parts")])
    assert found.exit_code == 2
    assert says in found.output
    assert not (tmp_path / "parts").exists()
