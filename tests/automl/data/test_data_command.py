from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.automl.commands.data import data
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.shards.reading import open_shards
from manta_swarm.automl.data.shards.writing import shard_images
from tests.automl.data.files import noise, write_picture


def test_it_prints_what_labelled_images_hold_and_their_digest() -> None:
    result = CliRunner().invoke(data, ["digits"])
    assert result.exit_code == 0, result.output
    lines = [line.split(maxsplit=1) for line in result.output.splitlines()]
    assert lines == [
        ["digits"],
        ["task", "classification"],
        ["images", "1,442 to train with, 355 held out"],
        ["channels", "1"],
        ["classes", "10"],
        ["digest", digits().digest.hex()],
    ]


def test_it_prints_what_stereo_pairs_hold() -> None:
    result = CliRunner().invoke(data, ["layers"])
    assert result.exit_code == 0, result.output
    assert "pairs      4,096 to train with, 64 held out" in result.output
    assert "classes" not in result.output


def test_it_reads_data_of_ones_own(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for number in range(3):
            write_picture(tmp_path / "pets" / label / f"{number}.png", noise(8, 8, 3, seed=number + len(label)))
    result = CliRunner().invoke(data, ["folder-pets", "--root", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "images     4 to train with, 2 held out" in result.output


def test_it_names_the_shards_that_are_missing_those_held_out_too(tmp_path: Path) -> None:
    for number in range(40):
        write_picture(tmp_path / "own" / ("a", "b")[number % 2] / f"{number}.png", noise(40, 40, 3, seed=number))
    shard_images(tmp_path / "own", tmp_path / "noise", lambda _done, _total: None, shard_bytes=20_000)
    shards = open_shards(tmp_path / "noise")
    train, held_out = shards.list.num_train_shards, len(shards.list.shards) - shards.list.num_train_shards
    shards.path(1).unlink()
    shards.path(train).write_bytes(b"cut")
    result = CliRunner().invoke(data, ["shards-noise", "--root", str(tmp_path)])
    assert result.exit_code == 0, result.output
    missing = [line.strip() for line in result.output.splitlines() if "missing" in line]
    assert missing == [
        f"missing    1 of the {train} to train with, or of another size; the first: {shards.path(1)}",
        f"missing    1 of the {held_out} held out, or of another size; the first: {shards.path(train)}",
    ]


@pytest.mark.parametrize(
    "arguments", [["faces"], ["cifar10"], ["cifar10", "--root", "."], ["folder-pets", "--root", "."], ["stereo-x", "--root", "."]]
)
def test_a_users_mistake_is_one_line_and_exit_code_two(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(data, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("manta-search: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
