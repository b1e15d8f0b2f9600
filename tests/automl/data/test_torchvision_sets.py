import bz2
import gc
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.torchvision_sets import torchvision_image_names, torchvision_stereo_names
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_classes, write_idx, write_pfm, write_picture

SIZES = {"train": 30, "t10k": 12}

ROWS, COLUMNS = 12, 30


def write_mnist(root: Path, kind: str = "MNIST") -> Path:
    """Write a small set of the MNIST format, and return its folder of files."""
    folder = root / kind / "raw"
    for seed, (part, count) in enumerate(SIZES.items()):
        write_idx(folder / f"{part}-images-idx3-ubyte", noise(count, 28, 28, seed=seed))
        write_idx(folder / f"{part}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8))
    return folder


def load(name: str, root: Path) -> ImageDataset:
    dataset = load_dataset(name, root)
    assert isinstance(dataset, ImageDataset)
    return dataset


def test_the_sets_are_those_of_torchvision_that_are_labelled_images() -> None:
    names = torchvision_image_names()
    expected = "mnist fashionmnist kmnist qmnist cifar10 cifar100 svhn stl10 usps gtsrb oxfordiiitpet flowers102 food101 eurosat imagenet"
    assert {*expected.split(), "emnist-letters"} < set(names)
    other = "lsun emnist kitti kitti2015stereo sintel celeba cityscapes imagefolder fakedata vocdetection kinetics phototour visiondataset"
    assert not set(other.split()) & set(names)


def test_files_of_the_mnist_format_are_read_as_they_are(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    dataset = load("mnist", tmp_path)
    assert (dataset.name, dataset.task, dataset.num_classes, dataset.image_channels, dataset.flips) == (
        "mnist",
        "classification",
        10,
        1,
        False,
    )
    assert np.array_equal(dataset.train_images[:, 0], noise(30, 28, 28, seed=0))
    assert np.array_equal(dataset.held_out_images[:, 0], noise(12, 28, 28, seed=1))
    assert dataset.held_out_labels.tolist() == [*range(10), 0, 1]
    assert dataset.digest == load("mnist", tmp_path).digest
    assert dataset.class_titles[:2] == ("0 - zero", "1 - one")


def test_a_smaller_size_is_part_of_the_name(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    small = load("mnist-14px", tmp_path)
    assert (small.name, small.train_images.shape) == ("mnist-14px", (30, 1, 14, 14))
    blocks = noise(30, 28, 28, seed=0).reshape(30, 14, 2, 14, 2).sum((2, 4), dtype=np.int64)
    assert np.array_equal(small.train_images[:, 0], (blocks + 2) // 4)


def test_labels_are_numbered_from_zero(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_idx(tmp_path / "EMNIST" / "raw" / f"emnist-letters-{part}-images-idx3-ubyte", noise(26, 28, 28))
        write_idx(tmp_path / "EMNIST" / "raw" / f"emnist-letters-{part}-labels-idx1-ubyte", np.arange(1, 27, dtype=np.uint8))
    dataset = load("emnist-letters", tmp_path)
    assert dataset.num_classes == 26
    assert dataset.class_titles == tuple("abcdefghijklmnopqrstuvwxyz")
    assert dataset.class_names == tuple(map(str, range(26)))  # what a folder for each is called
    assert dataset.train_labels.tolist() == list(range(26))


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small CIFAR-10, with the MD5 sums that torchvision expects changed to its own; returns the folder of its files."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def written(name: str, value: object) -> list[str]:
        data = pickle.dumps(value)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data, usedforsecurity=False).hexdigest()]

    def batch(seed: int) -> dict[str, object]:
        return {"data": noise(20, 3, 32, 32, seed=seed).reshape(20, -1), "labels": [index % 10 for index in range(20)]}

    cifar10 = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar10, "train_list", [written("data_batch_1", batch(0)), written("data_batch_2", batch(1))])
    monkeypatch.setattr(cifar10, "test_list", [written("test_batch", batch(2))])
    name, md5 = written("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(cifar10, "meta", {"filename": name, "key": "label_names", "md5": md5})
    return folder


def test_colour_images_in_arrays_are_read_as_they_are(cifar: Path) -> None:
    dataset = load("cifar10", cifar.parent)
    assert (dataset.image_channels, dataset.flips) == (3, True)
    assert np.array_equal(dataset.train_images, np.concatenate([noise(20, 3, 32, 32, seed=seed) for seed in (0, 1)]))
    assert np.array_equal(dataset.held_out_images, noise(20, 3, 32, 32, seed=2))


class Bomb:
    """What runs code when it is unpickled: it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._path), "w")


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
def test_a_pickle_with_another_sum_is_never_loaded(cifar: Path, name: str) -> None:
    sign = cifar.parent / "exploded"
    (cifar / name).write_bytes(pickle.dumps(Bomb(sign)))
    with pytest.raises(UserError, match=r"cifar10|is truncated or damaged"):
        load("cifar10", cifar.parent)
    assert not sign.exists()


def test_a_damaged_batch_is_named(cifar: Path) -> None:
    cut(cifar / "data_batch_2")
    with pytest.raises(UserError, match=r"data_batch_2 is truncated or damaged: delete it and run manta-search data cifar10 --root"):
        load("cifar10", cifar.parent)


# torchvision's readers leave a broken file open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_pictures_of_different_sizes_are_read_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "gtsrb" / "GTSRB"
    for label in range(3):
        (folder / "Training" / f"{label:05}").mkdir(parents=True)
        for number, side in enumerate((20, 24, 40)):
            Image.fromarray(noise(side, side + 3, 3, seed=label)).save(folder / "Training" / f"{label:05}" / f"{number}.ppm")
    (folder / "Final_Test" / "Images").mkdir(parents=True)
    rows = []
    for label in range(3):
        Image.fromarray(noise(50, 50, 3, seed=label)).save(folder / "Final_Test" / "Images" / f"{label}.ppm")
        rows.append(f"{label}.ppm;{label}")
    (tmp_path / "gtsrb" / "GT-final_test.csv").write_text("\n".join(["Filename;ClassId", *rows]))
    dataset = load("gtsrb", tmp_path)
    assert (dataset.train_images.shape, dataset.held_out_images.shape) == ((9, 3, 24, 24), (3, 3, 24, 24))
    assert np.array_equal(dataset.train_images[1].transpose(1, 2, 0), noise(24, 27, 3, seed=0)[:, 1:25])
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    cut(folder / "Training" / "00001" / "2.ppm")
    with pytest.raises(UserError, match=r"00001/2\.ppm cannot be read \(.*\): delete it and unpack the set again"):
        load("gtsrb", tmp_path)
    gc.collect()  # of what is left open, while the warnings are ignored


def test_a_set_without_parts_has_a_fifth_held_out(tmp_path: Path) -> None:
    write_classes(tmp_path / "eurosat" / "2750", {"forest": 10, "lake": 10}, 16, 16, 3)
    dataset = load("eurosat", tmp_path)
    assert np.bincount(dataset.train_labels).tolist() == [8, 8]
    assert np.bincount(dataset.held_out_labels).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fashionmnist", "not, or not whole, in {root}.* run manta-search data fashionmnist --root {root} --download"),
        ("imagenet", "torchvision cannot download it"),
        ("kitti2015stereo", "not, or not whole, in {root} .*: unpack its files there by hand"),
        ("middlebury2014stereo", "run manta-search data middlebury2014stereo --root .* --download"),
    ],
)
def test_missing_files_are_told_with_the_folder_and_the_command(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said.format(root=tmp_path)):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("kept", [0.0, 0.001, 0.7])
def test_a_truncated_file_of_the_mnist_format_is_named(tmp_path: Path, name: str, kept: float) -> None:
    cut(write_mnist(tmp_path) / name, kept)
    with pytest.raises(UserError, match=rf"MNIST/raw/{name} is truncated or damaged: delete it and run manta-search data mnist"):
        load("mnist", tmp_path)


def test_a_truncated_archive_is_told(tmp_path: Path) -> None:
    lines = "".join(f"{label + 1} " + " ".join(f"{place + 1}:0.5" for place in range(256)) + "\n" for label in range(10))
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(lines.encode()))
    assert load("usps", tmp_path).train_images.shape == (10, 1, 16, 16)
    cut(tmp_path / "usps.t.bz2")
    with pytest.raises(UserError, match=r"usps\.t?\.?bz2 is truncated or damaged"):
        load("usps", tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train-labels-idx1-ubyte": np.arange(29, dtype=np.uint8) % 10}, "mnist has 30 images and 29 labels"),
        ({"t10k-images-idx3-ubyte": noise(0, 28, 28), "t10k-labels-idx1-ubyte": noise(0)}, "mnist"),
        ({"t10k-labels-idx1-ubyte": np.arange(12, dtype=np.uint8)}, "label 10 in its held-out part only"),
    ],
)
def test_a_set_that_is_empty_or_whose_labels_do_not_fit_is_told(changed: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    folder = write_mnist(tmp_path)
    for name, values in changed.items():
        write_idx(folder / name, values)
    with pytest.raises(UserError, match=said):
        load("mnist", tmp_path)


def test_nothing_is_downloaded_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[str] = []

    def download(dataset: torchvision.datasets.MNIST) -> None:
        roots.append(str(dataset.root))
        write_mnist(Path(dataset.root), type(dataset).__name__)

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    with pytest.raises(UserError):
        load_dataset("kmnist", tmp_path)
    assert not roots
    assert isinstance(load_dataset("kmnist", tmp_path / "new", download=True), ImageDataset)
    assert set(roots) == {str(tmp_path / "new")}


def test_a_failed_download_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(dataset: torchvision.datasets.MNIST) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    with pytest.raises(UserError, match=r"mnist could not be downloaded to .* \(no route to host\): try again"):
        load_dataset("mnist", tmp_path, download=True)
    for name in ("fer2013", "kitti2015stereo"):
        with pytest.raises(UserError, match=f"{name} cannot be downloaded by torchvision"):
            load_dataset(name, tmp_path, download=True)


@pytest.fixture
def kitti(tmp_path: Path) -> Path:
    """Ten small pairs laid out as KITTI 2015 is; returns the folder of its training part."""
    folder = tmp_path / "Kitti2015" / "training"
    for number in range(10):
        for seed, view in enumerate(("image_2", "image_3")):
            write_picture(folder / view / f"{number:06}_10.png", noise(ROWS, COLUMNS, 3, seed=2 * number + seed))
        for view in ("disp_occ_0", "disp_occ_1"):
            write_picture(folder / view / f"{number:06}_10.png", levels(number))
    return folder


def levels(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    disparity = noise(ROWS, COLUMNS, seed=100 + number).astype(np.uint16) * 40
    disparity[::3] = 0
    return disparity


def test_all_of_torchvisions_stereo_sets_have_a_name() -> None:
    names = "carlastereo crestereo eth3dstereo fallingthingsstereo instereo2k kitti2012stereo kitti2015stereo middlebury2014stereo"
    assert set(torchvision_stereo_names()) >= {*names.split(), "sceneflowstereo", "sintelstereo"}


def test_pairs_are_read_through_torchvision_and_every_fifth_is_held_out(kitti: Path) -> None:
    dataset = load_dataset("kitti2015stereo", kitti.parents[1])
    assert isinstance(dataset, StereoDataset)
    assert (dataset.name, dataset.num_train, dataset.num_held_out) == ("kitti2015stereo", 8, 2)
    for pairs, numbers in ((dataset.train, [0, 1, 2, 3, 5, 6, 7, 8]), (dataset.held_out, [4, 9])):
        for one, number in zip(pairs, numbers, strict=True):
            assert np.array_equal(one.left, noise(ROWS, COLUMNS, 3, seed=2 * number))
            assert np.array_equal(one.right, noise(ROWS, COLUMNS, 3, seed=2 * number + 1))
            expected = np.where(levels(number) == 0, -1, levels(number) / 256).astype(np.float32)
            assert np.array_equal(one.disparity, expected)
    assert dataset.digest == load_dataset("kitti2015stereo", kitti.parents[1]).digest
    assert dataset.training_batch(range(8), 1, 8).targets.shape == (8, 8, 16)


def test_parts_of_their_own_and_masks_are_heeded(tmp_path: Path) -> None:
    for part, scenes in (("train", ("Piano", "Pipes")), ("additional", ("Couch", "Mask"))):
        for seed, scene in enumerate(scenes):
            folder = tmp_path / "Middlebury2014" / part / f"{scene}-perfect"
            for view in (0, 1):
                write_picture(folder / f"im{view}.png", noise(ROWS, COLUMNS, 3, seed=seed))
                disparity = noise(ROWS, COLUMNS, seed=seed).astype(np.float32)
                disparity[3] = np.inf
                write_pfm(folder / f"disp{view}.pfm", disparity)
    dataset = load_dataset("middlebury2014stereo", tmp_path)
    assert isinstance(dataset, StereoDataset)
    assert (dataset.num_train, dataset.num_held_out) == (2, 2)
    known = dataset.train[1].disparity
    assert (known[3] == -1).all()
    written = noise(ROWS, COLUMNS, seed=1)
    assert np.array_equal(known[4:], np.where(written == 0, -1, written.astype(np.float32))[4:])


def test_a_missing_partner_is_told(kitti: Path) -> None:
    (kitti / "image_3" / "000004_10.png").unlink()
    with pytest.raises(UserError, match="10 left files but 9 right files"):
        load_dataset("kitti2015stereo", kitti.parents[1])


# torchvision's readers leave a broken file open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("view", ["image_2", "disp_occ_0"])
def test_a_truncated_file_is_told_when_its_pair_is_asked_for(kitti: Path, view: str) -> None:
    cut(kitti / view / "000004_10.png")
    dataset = load_dataset("kitti2015stereo", kitti.parents[1])
    with pytest.raises(UserError, match=r"image_2/000004_10\.png or what belongs to it cannot be read"):
        _ = dataset.digest
    gc.collect()  # of what is left open, while the warnings are ignored


def test_views_of_different_sizes_are_told(kitti: Path) -> None:
    write_picture(kitti / "image_3" / "000004_10.png", noise(ROWS, COLUMNS + 1, 3))
    with pytest.raises(UserError, match=r"image_2/000004_10\.png or what belongs to it cannot be read \(no stereo pair"):
        _ = load_dataset("kitti2015stereo", kitti.parents[1]).digest


def test_too_few_pairs_are_told(kitti: Path) -> None:
    for view in ("image_2", "image_3", "disp_occ_0", "disp_occ_1"):
        (kitti / view / "000004_10.png").unlink()
    with pytest.raises(UserError, match="kitti2015stereo has 9 pairs"):
        load_dataset("kitti2015stereo", kitti.parents[1])
