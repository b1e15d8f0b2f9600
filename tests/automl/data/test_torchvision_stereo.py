import gc
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.torchvision_sets import torchvision_stereo_names
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_pfm, write_picture

ROWS, COLUMNS = 12, 30


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


def test_missing_files_are_told_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"kitti2015stereo is not, or not whole, in {tmp_path} .*: unpack its files there by hand"):
        load_dataset("kitti2015stereo", tmp_path)
    with pytest.raises(UserError, match=r"run manta-search data middlebury2014stereo --root .* --download"):
        load_dataset("middlebury2014stereo", tmp_path)
    with pytest.raises(UserError, match="cannot be downloaded by torchvision"):
        load_dataset("kitti2015stereo", tmp_path, download=True)


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
