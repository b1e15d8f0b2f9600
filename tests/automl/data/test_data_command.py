from pathlib import Path

from click.testing import CliRunner

from manta_swarm.automl.commands.data import data
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.shards.reading import open_shards
from manta_swarm.automl.data.shards.writing import shard_images
from tests.automl.data.files import nothing, write_classes


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
    write_classes(tmp_path / "pets", {"cat": 3, "dog": 3}, 8, 8, 3)
    result = CliRunner().invoke(data, ["folder-pets", "--root", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "images     4 to train with, 2 held out" in result.output


def test_it_names_the_shards_that_are_missing_those_held_out_too(tmp_path: Path) -> None:
    shard_images(write_classes(tmp_path / "own", {"a": 20, "b": 20}, 40, 40, 3), tmp_path / "noise", nothing, shard_bytes=20_000)
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
