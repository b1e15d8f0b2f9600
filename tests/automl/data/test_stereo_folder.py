import json
from pathlib import Path

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.catalog import load_dataset, load_view
from manta_swarm.automl.data.pairs import PairFiles, pairs
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import cut, noise, write_pfm, write_picture

STEMS = [f"scene{number}" for number in range(11)]


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
