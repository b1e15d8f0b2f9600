"""The best subnet for this machine: which commands of manta-search are typed for it, and what is refused before."""

from pathlib import Path
from typing import Any

import click
import pytest
import torch

from manta_swarm.automl.latency.table import LatencyTable
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.snapshot import save_snapshot
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.peer.commands import specialise
from manta_swarm.peer.commands.specialise import Specialisation
from manta_swarm.peer.config import load_config
from manta_swarm.protocol.errors import UserError
from tests.latency_table import table_of


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "round-7.safetensors"
    weights = torch.zeros(build(TINY, "meta").num_weights)
    save_snapshot(path, State(7, weights, (weights.clone(),)), {"supernet": TINY.name, "dataset": "digits"})
    return path


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The commands that are typed, each read by itself as it would be, and not done."""
    found: list[tuple[str, dict[str, Any]]] = []

    def read(command: click.Command, *arguments: str) -> None:
        assert command.name is not None
        found.append((command.name, command.make_context(command.name, list(arguments)).params))

    monkeypatch.setattr(specialise, "_run", read)
    return found


def test_a_state_is_profiled_searched_exported_and_evaluated(tmp_path: Path, snapshot: Path, typed: list[tuple[str, Any]]) -> None:
    out = tmp_path / "out"
    config = load_config({"dir": tmp_path, "cpu_threads": "1", "data_root": tmp_path})
    specialise.specialise(Specialisation("2.5", out, snapshot, "cpu", is_quick=False), config)
    assert [name for name, _ in typed] == ["profile", "find", "export", "evaluate"]
    profile, find, export, evaluate = (params for _, params in typed)
    assert (profile["supernet"], profile["out"], profile["threads"]) == (TINY.name, out / "latency.json", 1)
    assert (find["snapshot"], find["latency_ms"], find["latency_table"]) == (snapshot, "2.5", out / "latency.json")
    assert (export["architecture"], export["name"]) == (str(find["out"] / "best.json"), "best-2.5ms-cpu")
    assert evaluate["path"] == export["out"] / export["name"]
    assert find["data_root"] == export["data_root"] == evaluate["data_root"] == tmp_path


def test_a_state_that_lies_there_is_taken_only_where_it_is_the_one_that_the_log_has(tmp_path: Path) -> None:
    path, says = tmp_path / "state.safetensors", {"run": "aa", "supernet": TINY.name}
    weights = torch.zeros(build(TINY, "meta").num_weights)
    of_log = State(7, weights, (weights.clone(),))
    digest = state_digest(of_log)
    assert not specialise.holds_state(path, digest, says)  # nothing is there
    save_snapshot(path, of_log, {**says, "state": digest.hex()})
    assert specialise.holds_state(path, digest, says)
    assert not specialise.holds_state(path, digest, {**says, "run": "bb"})
    save_snapshot(path, State(7, weights + 1, (weights,)), {**says, "state": digest.hex()})  # it says that it is, and is not
    assert not specialise.holds_state(path, digest, says)
    path.write_bytes(path.read_bytes()[:-1])
    assert not specialise.holds_state(path, digest, says)


def test_a_table_of_this_machine_is_measured_once(tmp_path: Path, snapshot: Path, typed: list[tuple[str, Any]]) -> None:
    table: LatencyTable = table_of()
    table.save(tmp_path / "latency.json")
    specialisation = Specialisation("5", tmp_path, snapshot, table.conditions.device, is_quick=True)
    specialise.specialise(specialisation, load_config({"dir": tmp_path}))
    assert [name for name, _ in typed] == ["find", "export", "evaluate"]


@pytest.mark.parametrize("latency_ms", ["0", "-5", "fast", "1e3", ""])
def test_what_is_no_time(tmp_path: Path, latency_ms: str) -> None:
    with pytest.raises(UserError, match="no time above zero"):
        Specialisation(latency_ms, tmp_path, None, "cpu", is_quick=False).check()


def test_what_else_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("garbage")
    with pytest.raises(UserError, match="no device"):
        Specialisation("5", tmp_path, None, "toaster", is_quick=False).check()
    with pytest.raises(UserError, match="no folder"):
        Specialisation("5", tmp_path / "file", None, "cpu", is_quick=False).check()
    with pytest.raises(UserError, match="no snapshot"):
        Specialisation("5", tmp_path, tmp_path / "file", "cpu", is_quick=False).check()


def test_a_mistake_on_the_way_is_told_by_the_program_that_was_typed(
    tmp_path: Path, snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table: LatencyTable = table_of()
    table.save(tmp_path / "latency.json")
    specialisation = Specialisation("0.000001", tmp_path, snapshot, table.conditions.device, is_quick=True)
    with pytest.raises(SystemExit) as caught:
        specialise.specialise(specialisation, load_config({"dir": tmp_path, "cpu_threads": "1"}))
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("manta-peer: ")
    assert "manta-search:" not in told
