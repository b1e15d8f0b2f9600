import json
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner, Result

from manta_swarm.automl.cli import main
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.snapshot import save_snapshot
from manta_swarm.automl.training.update import State, state_digest
from tests.automl.commands.mistakes import assert_one_line
from tests.automl.export.exports import put

METADATA = {"run": "ab" * 32, "supernet": "classifier-tiny", "dataset": "digits"}
SMALLEST = TINY.smallest()


@pytest.fixture
def folder(tmp_path: Path, supernet: Supernet, monkeypatch: pytest.MonkeyPatch, few_by_name: None) -> Path:
    """A folder to work in, with a snapshot and a search's result; few digits."""
    monkeypatch.chdir(tmp_path)
    state = State(5, supernet.flat_weights_N.clone(), (torch.zeros(supernet.num_weights),))
    save_snapshot(tmp_path / "round-00000005.safetensors", state, {**METADATA, "state": state_digest(state).hex()})
    (tmp_path / "round-00000005.json").write_text(json.dumps({"ledger_size": 9, "ledger_root": "cd" * 32, "tree_head": "a note"}))
    save_snapshot(tmp_path / "no-data.safetensors", state, {"supernet": "classifier-tiny"})
    save_snapshot(tmp_path / "no-supernet.safetensors", state, {"dataset": "digits"})
    safetensors.torch.save_file({"parameters": state.parameters}, tmp_path / "no-format.safetensors", {**METADATA, "round": "5"})
    (tmp_path / "found").mkdir()
    found = {"best": {"text": SMALLEST.text, "id": SMALLEST.id}, "front": [{"text": TINY.largest().text}, {"text": SMALLEST.text}]}
    (tmp_path / "found" / "result.json").write_text(json.dumps(found))
    (tmp_path / "found" / "best.json").write_text(SMALLEST.to_json())
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--threads", "1"])


def test_evaluate_prints_how_good_a_snapshots_subnets_are(folder: Path) -> None:
    for named in (["round-00000005.safetensors"], ["--snapshot", "round-00000005.safetensors"]):
        result = call("evaluate", *named, "--random", "1")
        assert result.exit_code == 0, result.output
        assert "classifier-tiny after round 5, 70 held-out images of digits" in result.output
        assert [line.split()[0] for line in result.output.splitlines()[1:]] == ["largest", "smallest", "random"]
        assert f"{TINY.name}" in result.output


def test_figures_of_a_gpu_say_what_they_were_computed_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.automl.training.snapshot.checked_device", lambda name: "cpu")  # this computer may have no GPU
    named = ("evaluate", "round-00000005.safetensors", "--random", "0")
    lines = [call(*named, *typed).output.splitlines() for typed in ((), ("--device", "cuda"), ("--device", "cuda", "--precision", "bf16"))]
    said = "classifier-tiny after round 5, 70 held-out images of digits"
    assert [each[0] for each in lines] == [said, f"{said}, computed in fp32 on cuda", f"{said}, computed in bf16 on cuda"]
    assert lines[0][1:] == lines[1][1:]


def test_an_export_is_measured_on_the_cpu(folder: Path) -> None:
    assert_one_line(call("evaluate", "found", "--device", "cuda"), "is an export, which is measured on the CPU")


def test_data_that_a_snapshot_does_not_name_is_named_by_the_person(folder: Path) -> None:
    expected = call("evaluate", "round-00000005.safetensors", "--random", "0")
    result = call("evaluate", "no-data.safetensors", "--random", "0", "--data", "digits")
    assert result.exit_code == 0, result.output
    assert result.output == expected.output


@pytest.mark.parametrize(
    "architecture",
    [["smallest"], [SMALLEST.text], ["found/best.json"], [SMALLEST.id[:8], "--search", "found"], [SMALLEST.id, "--search", "found"]],
)
def test_evaluate_takes_one_subnet_by_any_of_its_names(architecture: list[str], folder: Path) -> None:
    result = call("evaluate", "round-00000005.safetensors", "--part", "test", "--arch", *architecture)
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()[1:]] == [SMALLEST.id[:8]]
    assert 'part "test" of 70 held-out images' in result.output


@pytest.mark.parametrize(("task", "name"), [("classification", "net.pt2"), ("classification", "net.onnx"), ("stereo", "net")])
def test_evaluate_prints_how_good_an_exported_network_is(task: str, name: str, tmp_path: Path) -> None:
    result = call("evaluate", str(put(task, tmp_path, name)))
    assert result.exit_code == 0, result.output
    assert ("held-out pairs of layers" if task == "stereo" else "held-out images of digits") in result.output
    assert ("file says  EPE 4.500 px" if task == "stereo" else "file says  accuracy 12.50% on 177") in result.output
    assert "other samples than the data set that the file was made with" in result.output  # its digest is made up


def test_an_export_is_evaluated_to_what_it_says(folder: Path) -> None:
    result = call("export", "--snapshot", "round-00000005.safetensors", "--arch", "found/best.json", "--out", "out", "--format", "folder")
    assert result.exit_code == 0, result.output
    name = f"classifier-tiny-{SMALLEST.id[:8]}"
    assert [path.name for path in (folder / "out").iterdir()] == [name]
    description = Description.from_json((folder / "out" / name / "config.json").read_text())
    assert description.architecture == SMALLEST
    assert (description.provenance.run, description.provenance.round) == ("ab" * 32, 5)
    assert (description.provenance.ledger_root, description.provenance.ledger_size) == ("cd" * 32, 9)
    evaluated = call("evaluate", f"out/{name}").output.splitlines()
    measured, says = (line.split("accuracy ")[1].split("%")[0] for line in evaluated[1:3])
    assert measured == says == f"{description.metrics['accuracy']:.2%}"[:-1]
    again = call("export", "--snapshot", "round-00000005.safetensors", "--arch", "smallest", "--out", "out", "--format", "folder")
    assert again.exit_code == 2
    assert "--force" in again.stderr
    forced = call(
        "export", "--snapshot", "round-00000005.safetensors", "--arch", "smallest", "--out", "out", "--format", "folder", "--force"
    )
    assert forced.exit_code == 0, forced.output


def test_a_calibrated_snapshot_is_exported_without_data_to_the_same_weights(folder: Path) -> None:
    start = ["--snapshot", "round-00000005.safetensors"]
    without = [*start, "--arch", "largest", "--out", "out", "--format", "folder", "--stored"]
    assert "manta-search calibrate" in call("export", *without, "--name", "early").stderr
    result = call("calibrate", *start)
    assert result.exit_code == 0, result.output
    assert (folder / "round-00000005.statistics").is_file()
    stored = call("export", *without, "--name", "stored", "--data-root", "nowhere")
    assert stored.exit_code == 0, stored.output
    measured = call("export", *without[:-1], "--name", "measured")
    assert measured.exit_code == 0, measured.output
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (folder / "out" / "stored" / name).read_bytes() == (folder / "out" / "measured" / name).read_bytes()


EXPORT = ["export", "--snapshot", "round-00000005.safetensors", "--out", "out"]
EVALUATE = ["evaluate", "round-00000005.safetensors"]
MANY = [word for seed in range(65) for word in ("--arch", TINY.sample(random.Random(seed)).text)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["evaluate"], "name one"),
        (["evaluate", "missing.pt2"], "no missing.pt2"),
        (["evaluate", "found/best.json"], "no snapshot"),
        (["evaluate", "found"], "config.json"),
        ([*EVALUATE, "--snapshot", "round-00000005.safetensors"], "name one"),
        ([*EVALUATE, "--data", "layers"], "does not fit"),
        ([*EVALUATE, "--data", "faces"], "unknown data set"),
        ([*EVALUATE, "--arch", "huge"], "neither a file"),
        ([*EVALUATE, "--arch", "r32"], "no architecture of classifier-tiny"),
        ([*EVALUATE, "--arch", "0" * 8], "--search DIR"),
        ([*EVALUATE, "--arch", "0" * 8, "--search", "found"], "give the first 8 or more of the 64 hexadecimal digits"),
        (
            [*EVALUATE, "--arch", SMALLEST.id[:7], "--search", "found"],
            f"an id that begins with {SMALLEST.id[:7]}; give the first 8 or more",
        ),
        ([*EVALUATE, "--arch", "huge", "--search", "found"], "neither a file nor an id of found; give the first 8 or more"),
        ([*EVALUATE, "--arch", SMALLEST.id[:8], "--search", "nowhere"], "cannot read"),
        ([*EVALUATE, "--arch", "found/result.json"], "holds 2 architectures"),
        ([*EVALUATE, "--arch", "round-00000005.json"], "holds no architectures"),
        ([*EVALUATE, "--arch", "round-00000005.safetensors"], "as JSON"),
        (["evaluate", "no-data.safetensors"], "name it with --data"),
        (["evaluate", "no-supernet.safetensors"], "which supernet"),
        (["evaluate", "no-format.safetensors"], "it names no format"),
        (["export", "--snapshot", "no-data.safetensors", "--arch", "largest", "--out", "out"], "name it with --data"),
        ([*EXPORT, "--arch", "largest", "--format", "pt3"], "'pt3' is none of pt2, onnx, folder, int8"),
        ([*EXPORT, "--arch", "largest", "--name", "../up"], "no plain name"),
        ([*EXPORT, "--arch", "largest", "--stored", "--format", "int8"], "--stored reads no data"),
        ([*EXPORT, "--arch", "largest", "--stored", "--data", "digits"], "--stored reads no data"),
        ([*EXPORT, "--arch", "largest", "--licence", "MIT (mine)"], "no short name of a licence"),
        ([*EXPORT, "--arch", "largest", "--data-licence", "?"], "no short name of a licence"),
        ([*EXPORT, "--arch", "largest", "--data", "layers"], "does not fit"),
        ([*EXPORT, "--arch", "largest", "--format", "folder", "--name", "x", "--out", "round-00000005.json/out"], "cannot write"),
        (["export", "--snapshot", "missing.safetensors", "--arch", "largest", "--out", "out"], "no snapshot"),
        (["calibrate", "--snapshot", "round-00000005.safetensors", *MANY], "67 subnets, and beside a snapshot is place for 64"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_two(arguments: list[str], reason: str, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert_one_line(call(*arguments), reason)
    assert sorted(folder.rglob("*")) == before
