"""Snapshots: a run's state as a safetensors file, with where it comes from in its metadata. No pickle."""

from pathlib import Path

import safetensors
import safetensors.torch
import torch

from automl.files import replace_whole
from automl.update import FORMAT, State
from protocol.errors import StorageError, UserError


def save_snapshot(path: Path, state: State, metadata: dict[str, str]) -> None:
    """Write the state; the file is there whole after a crash, or not at all.

    Raises:
        StorageError: the disk refuses.
    """
    tensors = {"parameters": state.parameters} | {f"moment{index}": moment for index, moment in enumerate(state.moments)}
    data = safetensors.torch.save(tensors, {**metadata, "format": FORMAT, "round": str(state.round), "teacher": state.teacher.hex()})
    try:
        replace_whole(path, data)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; make room or mend the disk, then start again") from error


def load_snapshot(path: Path) -> tuple[State, dict[str, str]]:
    """Return the state and the metadata of a snapshot.

    Raises:
        UserError: there is no such file, or it is no snapshot.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            _check_format(path, metadata.get("format"))
            moments = tuple(file.get_tensor(f"moment{index}") for index in range(len(list(file.keys())) - 1))
            teacher = bytes.fromhex(metadata["teacher"])
            state = State(int(metadata["round"]), file.get_tensor("parameters"), moments, teacher)
    except KeyError as error:
        raise UserError(f"{path} is no snapshot of a run: its metadata lacks {error}") from error
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} is no snapshot of a run: {error}") from error
    if len(state.teacher) not in (0, 32):
        raise UserError(f"{path} is no snapshot of a run: the digest of its teacher has {len(state.teacher)} bytes")
    shape = (state.parameters.numel(),)
    if any(vector.shape != shape or vector.dtype != torch.float32 for vector in (state.parameters, *state.moments)):
        raise UserError(f"{path} is no snapshot of a run: its tensors are not fp32 vectors of one length")
    return state, metadata


def _check_format(path: Path, found: str | None) -> None:
    """Refuse what is not of this version's format: an earlier one named none and had its weights in another order."""
    if found != FORMAT:
        named = "no format" if found is None else f"the format {found[:40]!r}"
        raise UserError(
            f"{path} is no snapshot that this version reads: it names {named}, not {FORMAT!r}; "
            "give the snapshot of a run, or use the version that wrote it"
        )
