import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets.utils import _read_pfm

from manta_swarm.automl.data.catalog import load_dataset, load_view
from manta_swarm.automl.data.pairs import PairFiles, disparity_size, pairs, read_disparity
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_pfm, write_picture

STEMS = [f"scene{number}" for number in range(11)]


@pytest.fixture
def values() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = np.random.default_rng(0).random((5, 7), dtype=np.float32) * 100
    values[1, 2], values[3, 4], values[0, 6], values[4, 0] = np.inf, np.nan, -3, 0
    return values


@pytest.mark.parametrize("big_endian", [False, True])
def test_pfm_is_read_bottom_up_in_either_byte_order_and_what_is_no_disparity_is_unknown(
    values: np.ndarray, tmp_path: Path, big_endian: bool
) -> None:
    path = write_pfm(tmp_path / "a.pfm", values, big_endian=big_endian)
    expected = values.copy()
    expected[[1, 3, 0], [2, 4, 6]] = -1
    assert np.array_equal(read_disparity(path), expected)
    assert np.array_equal(_read_pfm(path, slice_channels=1)[0], values, equal_nan=True)  # torchvision's reader as the oracle
    assert read_disparity(path).dtype == np.float32
    assert disparity_size(path) == (5, 7)


def test_middleburys_head_with_another_scale_is_read(values: np.ndarray, tmp_path: Path) -> None:
    path = write_pfm(tmp_path / "a.pfm", values)
    path.write_bytes(path.read_bytes().replace(b"\n-1.0\n", b"\n-0.003922\n", 1))
    assert read_disparity(path)[2, 2] == values[2, 2]


def test_png_of_16_bits_has_256_levels_a_pixel_unless_another_scale_is_given(tmp_path: Path) -> None:
    levels = np.array([[0, 1, 256], [640, 65535, 40000]], dtype=np.uint16)
    path = write_picture(tmp_path / "a.png", levels)
    assert read_disparity(path).tolist() == [[-1, 1 / 256, 1], [2.5, 65535 / 256, 156.25]]
    assert read_disparity(path, scale=64).tolist() == [[-1, 1 / 64, 4], [10, 1023.984375, 625]]
    assert disparity_size(path) == (2, 3)


def test_png_of_8_bits_needs_a_scale(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "a.png", np.array([[0, 3, 255], [6, 1, 2]], dtype=np.uint8))
    np.testing.assert_allclose(read_disparity(path, scale=3), [[-1, 1, 85], [2, 1 / 3, 2 / 3]], rtol=1e-7)
    with pytest.raises(UserError, match=r"a\.png has 8-bit disparities: .*scale"):
        read_disparity(path)


@pytest.mark.parametrize(
    "head",
    [
        b"PF\n7 5\n-1.0\n",
        b"Pf\n7\n-1.0\n",
        b"Pf\n7 5\nnan\n",
        b"Pf\n7 5\n0\n",
        b"Pf\n7 -5\n-1.0\n",
        b"Pf\n0 5\n-1.0\n",
        b"Pf\n6 5\n-1.0\n",
        b"Pf\n999999 999999\n-1.0\n",
        b"Pf\n99999999999 5\n-1.0\n",
        b"P5\n7 5\n255\n",
        b"",
    ],
)
def test_a_pfm_that_does_not_hold_what_it_says_is_refused_by_name(values: np.ndarray, tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "a.pfm"
    path.write_bytes(head + values.astype("<f4").tobytes())
    for read in (read_disparity, disparity_size):
        with pytest.raises(UserError, match=r"a\.pfm"):
            read(path)


def test_truncated_maps_are_refused_by_name(values: np.ndarray, tmp_path: Path) -> None:
    pfm, png = write_pfm(tmp_path / "a.pfm", values), write_picture(tmp_path / "b.png", noise(40, 40).astype(np.uint16) * 200)
    for path in (pfm, png):
        cut(path)
        with pytest.raises(UserError, match=rf"{path.name} is truncated"):
            read_disparity(path)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    write_picture(tmp_path / "colours.png", noise(4, 4, 3))
    (tmp_path / "text.png").write_text("disparity")
    for name, message in (
        ("colours.png", "not a grey picture"),
        ("text.png", "not a picture"),
        ("none.png", "missing"),
        ("none.pfm", "none.pfm"),
    ):
        with pytest.raises(UserError, match=message):
            read_disparity(tmp_path / name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Eleven pairs of two sizes in own/, their disparities in 8-bit PNGs of 4 levels a pixel."""
    for number, stem in enumerate(STEMS):
        size = (10, 24) if number % 2 else (16, 20)
        for seed, view in enumerate(("left", "right")):
            write_picture(tmp_path / "own" / view / f"{stem}.png", noise(*size, 3, seed=2 * number + seed))
        write_picture(tmp_path / "own" / "disparity" / f"{stem}.png", noise(*size, seed=number) // 8)
    (tmp_path / "own" / "stereo.json").write_text('{"scale": 4}')
    return tmp_path


def load(root: Path) -> StereoDataset:
    dataset = load_dataset("stereo-own", root)
    assert isinstance(dataset, StereoDataset)
    return dataset


def test_pairs_are_read_and_a_fixed_fifth_is_held_out(root: Path) -> None:
    dataset = load(root)
    assert (dataset.name, dataset.num_train, dataset.num_held_out) == ("stereo-own", 9, 2)
    everything = [*dataset.train, *dataset.held_out]
    assert sorted(one.left.tobytes() for one in everything) == sorted(
        noise(*((10, 24) if number % 2 else (16, 20)), 3, seed=2 * number).tobytes() for number in range(11)
    )
    levels = noise(16, 20, seed=0) // 8
    first = next(one for one in everything if np.array_equal(one.left, noise(16, 20, 3, seed=0)))
    assert np.array_equal(first.disparity, np.where(levels == 0, -1, levels / 4).astype(np.float32))
    assert np.array_equal(first.right, noise(16, 20, 3, seed=1))
    assert dataset.training_batch(range(9), 1, 8).inputs.shape == (9, 6, 8, 16)
    assert load(root).digest == dataset.digest


def test_the_owner_may_say_which_pairs_are_held_out(root: Path) -> None:
    (root / "own" / "stereo.json").write_text(json.dumps({"scale": 4, "held_out": ["scene3", "scene0", "scene8"]}))
    dataset = load(root)
    assert (dataset.num_train, dataset.num_held_out) == (8, 3)
    assert np.array_equal(dataset.held_out[1].left, noise(10, 24, 3, seed=6))
    assert dataset.digest != load_dataset("layers").digest


def test_disparities_may_be_pfm_files_without_any_settings(root: Path) -> None:
    (root / "own" / "stereo.json").unlink()
    for number, stem in enumerate(STEMS):
        path = root / "own" / "disparity" / f"{stem}.png"
        path.unlink()
        write_pfm(path.with_suffix(".pfm"), np.full((10, 24) if number % 2 else (16, 20), 2.5, dtype=np.float32))
    assert load(root).train[0].disparity.max() == 2.5


@pytest.mark.parametrize("view", ["left", "right", "disparity"])
def test_a_missing_partner_is_named(root: Path, view: str) -> None:
    (root / "own" / view / "scene4.png").unlink()
    with pytest.raises(UserError, match=rf"{view} has no file scene4\.\*"):
        load(root)


@pytest.mark.parametrize("view", ["right", "disparity"])
def test_a_pair_of_different_sizes_is_named(root: Path, view: str) -> None:
    write_picture(root / "own" / view / "scene4.png", noise(16, 21, 3) if view == "right" else noise(16, 21))
    with pytest.raises(UserError, match=rf"{view}/scene4\.png has 21 x 16 pixels, .*left/scene4\.png has 20 x 16"):
        load(root)


def test_a_truncated_file_is_named_at_the_latest_when_the_digest_is_made(root: Path) -> None:
    cut(root / "own" / "right" / "scene4.png")
    with pytest.raises(UserError, match=r"scene4\.png is truncated"):
        _ = load(root).digest


def test_a_missing_folder_is_named(root: Path) -> None:
    (root / "own" / "right").rename(root / "own" / "other")
    with pytest.raises(UserError, match=r"own/right is no folder"):
        load(root)
    with pytest.raises(UserError, match=r"none/left is no folder"):
        load_dataset("stereo-none", root)


def test_two_files_of_one_name_are_named(root: Path) -> None:
    write_picture(root / "own" / "left" / "scene4.bmp", noise(16, 20, 3))
    with pytest.raises(UserError, match=r"scene4\.bmp and .*scene4\.png have one name"):
        load(root)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{", "Invalid JSON"),
        ('{"scale": 0}', "scale"),
        ('{"scale": "four"}', "scale"),
        ('{"scale": NaN}', r"stereo\.json"),
        ('{"held_out": "scene1"}', "held_out"),
        ('{"scael": 4}', "scael"),
        ('{"scale": 4, "held_out": ["scene1", "scene99"]}', "holds out 'scene99'"),
        ('{"scale": 4, "held_out": ["scene1"]}', "at least 2"),
        (json.dumps({"held_out": STEMS}), "at least 2, and one to train with"),
        (" " * 2_000_000, "more than"),
    ],
)
def test_wrong_settings_are_told_in_one_line(root: Path, settings: str, message: str) -> None:
    (root / "own" / "stereo.json").write_text(settings)
    with pytest.raises(UserError, match=message) as caught:
        load(root)
    assert "\n" not in str(caught.value)


def test_eight_bits_without_a_scale_are_told(root: Path) -> None:
    (root / "own" / "stereo.json").unlink()
    with pytest.raises(UserError, match="8-bit"):
        _ = load(root).digest


def test_files_of_any_layout_make_pairs(root: Path) -> None:
    own = root / "own"
    files = [PairFiles(own / "left" / f"{stem}.png", own / "right" / f"{stem}.png", own / "disparity" / f"{stem}.png", 4) for stem in STEMS]
    some = pairs(files)
    assert len(some) == 11
    assert np.array_equal(some[3].left, noise(10, 24, 3, seed=6))
    with pytest.raises(UserError, match=r"gone\.png is missing"):
        pairs([PairFiles(own / "gone.png", files[0].right, files[0].disparity)])
    narrow = write_picture(root / "narrow.png", noise(9, 1))
    with pytest.raises(UserError, match="one pixel wide"):
        pairs([PairFiles(narrow, narrow, narrow)])


@pytest.mark.parametrize(("view", "moved"), [("left", ("right",)), ("right", ("left", "disparity"))])
def test_a_site_with_one_view_reads_what_it_has_and_sees_the_same_scenes(root: Path, view: str, moved: tuple[str, ...]) -> None:
    both = load(root)
    whole, digest = both.training_batch(range(9), 5, 8), both.digest
    for part in moved:
        (root / "own" / part).rename(root / part)
    dataset = load_view("stereo-own", view, root)
    assert dataset.scenes == both.scenes
    place = ("left", "right").index(view)
    own = dataset.training_batch(range(9), 5, 8)
    assert torch.equal(own.inputs.chunk(2, 1)[place], whole.inputs.chunk(2, 1)[place])
    assert torch.equal(own.targets, whole.targets) == (view == "left")
    known = ("left", "disparity") if view == "left" else ("right",)
    assert all(getattr(dataset.part_digests, part) == getattr(both.part_digests, part) for part in known)
    assert dataset.digest != digest
    assert dataset.digest_of(both.part_digests) == digest
    with pytest.raises(UserError, match=rf"own/{moved[0]} is no folder"):
        load(root)


def test_only_pairs_of_ones_own_come_with_one_view(root: Path) -> None:
    with pytest.raises(UserError, match="layers comes with both views: leave --view out"):
        load_view("layers", "left", root)
