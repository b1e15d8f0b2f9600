"""A labelled set in parts by class: all of it, each sample once, and what is written is what a peer reads."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.automl.cli import main
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.image_folder import dirichlet_split, part_of, private_folder, write_class_folders
from manta_swarm.protocol.errors import UserError


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
