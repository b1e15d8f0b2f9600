import errno
from pathlib import Path

import pytest
import safetensors.torch
import torch

from manta_swarm.automl.training.snapshot import load_snapshot, save_snapshot
from manta_swarm.automl.training.snapshot_header import FORMAT
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.protocol.errors import StorageError, UserError

STATE = State(12, torch.tensor([1.0, 2.0, 3.0]), (torch.tensor([0.5, 2.0**-149, -0.0]), torch.tensor([4.0, 5.0, 6.0])), bytes(range(32)))


def test_a_snapshot_gives_back_the_state_to_the_bit_and_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "round.safetensors"
    save_snapshot(path, STATE, {"run": "ab"})
    state, metadata = load_snapshot(path)
    assert state_digest(state) == state_digest(STATE)
    assert metadata == {"run": "ab", "format": "manta/state/v3", "round": "12", "teacher": bytes(range(32)).hex()}
    assert [file.name for file in tmp_path.iterdir()] == ["round.safetensors"]


def test_a_full_disk_leaves_the_snapshot_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "round.safetensors"
    save_snapshot(path, STATE, {})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        save_snapshot(path, State(13, STATE.parameters * 2, STATE.moments), {})
    assert load_snapshot(path)[0].round == 12


def test_a_file_that_is_no_snapshot_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no snapshot"):
        load_snapshot(tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    vector = torch.zeros(3)
    start = {"format": FORMAT, "round": "1", "teacher": ""}
    for name, tensors, metadata in (
        ("unnamed", {"weights": vector}, start),
        ("wrong-round", {"parameters": vector}, start | {"round": "one"}),
        ("lengths", {"parameters": vector, "moment0": torch.zeros(2)}, start),
        ("half", {"parameters": vector.half()}, start),
        ("matrix", {"parameters": torch.zeros(3, 1)}, start),
        ("teacher", {"parameters": vector}, start | {"teacher": "xy"}),
        ("short-teacher", {"parameters": vector}, start | {"teacher": "00"}),
    ):
        safetensors.torch.save_file(tensors, tmp_path / f"{name}.safetensors", metadata)
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(UserError, match="no snapshot"):
            load_snapshot(path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"round": "1"}, f"it names no format, not '{FORMAT}'; .* use the version that wrote it"),  # of 0.1.0
        ({"format": "manta/state/v9", "round": "1", "teacher": ""}, f"the format 'manta/state/v9', not '{FORMAT}'"),
        ({"format": "pt"}, "the format 'pt', .* give the snapshot of a run"),  # an exported network, or anybody's file
        ({"format": FORMAT, "teacher": ""}, "lacks 'round'"),
        ({"format": FORMAT, "round": "1"}, "lacks 'teacher'"),
    ],
)
def test_a_snapshot_that_lacks_what_it_has_to_say_is_refused_in_one_line(metadata: dict[str, str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "round.safetensors"
    safetensors.torch.save_file({"parameters": torch.zeros(3)}, path, metadata)
    with pytest.raises(UserError, match=rf"^{path} is no snapshot .*{words}[^\n]*$"):
        load_snapshot(path)
