import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.automl.cli import main
from manta_swarm.automl.training.snapshot import load_snapshot
from tests.automl.commands.mistakes import assert_one_line

SNAPSHOT = str(Path(__file__).parents[2] / "formats" / "0.1.0" / "state.safetensors")


@pytest.mark.parametrize(
    ("supernet", "expected"),
    [
        ("classifier-tiny", "10,668,672 architectures"),
        ("stereo-tiny", "128,024,064 architectures"),
        ("classifier-base", "unit 5       128, 144, 160 channels; depths 2, 3, 4; kernels 3, 5, 7; expansions 3, 4, 6"),
        ("classifier-base", "all               47.16 to     507.18 M MACs,  1,390,544 to  3,985,496 weights"),
    ],
)
def test_space_says_how_many_architectures_there_are(supernet: str, expected: str) -> None:
    result = CliRunner().invoke(main, ["space", "--supernet", supernet])
    assert result.exit_code == 0
    assert expected in result.output


def test_train_leaves_a_snapshot_and_the_same_command_goes_on_from_it(tmp_path: Path) -> None:
    arguments = f"train --out {tmp_path / 'out'} --rounds 2 --microbatch-samples 4 --target-batch 8 --threads 1".split()
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "round 2 of 2" in result.output
    state, metadata = load_snapshot(tmp_path / "out" / "round-00000002.safetensors")
    assert (state.round, metadata["supernet"], metadata["dataset"], metadata["schedule"]) == (2, "classifier-tiny", "digits", "sandwich")
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert_one_line(CliRunner().invoke(main, [*arguments, "--seed", "9"]), "seed")


@pytest.mark.parametrize(
    "arguments",
    [
        ["space", "--supernet", "huge"],
        ["train", "--out", "out", "--data", "faces"],
        ["train", "--out", "out", "--supernet", "huge"],
        ["train", "--out", "out", "--supernet", "stereo-tiny"],
        ["train", "--out", "out", "--supernet", "classifier-tiny-3x10"],
        ["train", "--out", "out", "--learning-rate", "fast"],
        ["train", "--out", "out", "--device", "toaster"],
        ["data", "faces"],
        ["data", "cifar10"],
        ["data", "cifar10", "--root", "."],
        ["data", "folder-pets", "--root", "."],
        ["data", "stereo-x", "--root", "."],
        ["profile", "--supernet", "huge", "--out", "table.json"],
        ["profile", "--device", "tpu", "--out", "table.json"],
        ["profile", "--runtime", "onnxruntime", "--dtype", "bf16", "--out", "table.json"],
        ["profile", "--runtime", "onnxruntime", "--device", "cuda", "--out", "table.json"],
        ["profile", "--runtime", "cuda-graphs", "--out", "table.json"],
        ["profile", "--out", "missing/table.json"],
        ["profile", "--out", "."],
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_two(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(CliRunner().invoke(main, arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("at_work", "typed"),
    [
        ("manta_swarm.automl.data.catalog.load_dataset", ["data", "digits"]),
        ("manta_swarm.automl.data.catalog.load_dataset", ["split", "digits", "--out", "parts"]),
        ("manta_swarm.automl.data.catalog.load_dataset", ["train", "--out", "out"]),
        ("manta_swarm.automl.api.open_snapshot", ["evaluate", SNAPSHOT]),
        ("manta_swarm.automl.latency.profiler.profile", ["profile", "--out", "table.json"]),
        ("manta_swarm.automl.training.snapshot.open_snapshot", ["find", "--snapshot", SNAPSHOT]),
        ("manta_swarm.automl.api.open_snapshot", ["export", "--snapshot", SNAPSHOT, "--arch", "largest", "--out", "out"]),
    ],
)
def test_ctrl_c_ends_every_command_with_one_line(at_work: str, typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(at_work, lambda *_args, **_options: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(main, typed)
    assert (result.exit_code, result.stderr) == (130, "manta-search: ended by Ctrl-C\n")
