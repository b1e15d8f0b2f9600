from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from automl.classifier import Supernet
from automl.cli import main
from automl.snapshot import save_snapshot
from automl.update import State


def test_space_says_how_many_architectures_there_are() -> None:
    result = CliRunner().invoke(main, ["space"])
    assert result.exit_code == 0
    assert "5904900000 architectures" in result.output


def test_evaluate_prints_the_accuracy_of_the_subnets(tmp_path: Path, supernet: Supernet) -> None:
    path = tmp_path / "round.safetensors"
    save_snapshot(path, State(5, supernet.flat_weights_N, (torch.zeros(supernet.num_weights),)), {"supernet": "classifier-tiny"})
    result = CliRunner().invoke(main, ["evaluate", "--snapshot", str(path), "--random", "1"])
    assert result.exit_code == 0, result.output
    assert "classifier-tiny after round 5, 355 held-out images of digits" in result.output
    assert [line.split()[0] for line in result.output.splitlines()[1:]] == ["largest", "smallest", "random"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--snapshot", "missing.safetensors"],
        ["evaluate", "--snapshot", "short.safetensors"],
        ["evaluate", "--snapshot", "other.safetensors"],
        ["evaluate", "--snapshot", "good.safetensors", "--data", "faces"],
        ["space", "--supernet", "huge"],
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_two(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, supernet in (("short", "classifier-tiny"), ("other", "huge"), ("good", "classifier-tiny")):
        save_snapshot(tmp_path / f"{name}.safetensors", State(1, torch.zeros(3), ()), {"supernet": supernet})
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("manta-search: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
