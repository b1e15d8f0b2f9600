from pathlib import Path

import pytest
from click.testing import CliRunner

from automl.commands.data import data
from automl.data.digits import digits
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
