"""Snapshots: a run's state as a safetensors file, with where it comes from in its metadata. No pickle."""

import os
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from automl.update import State
from protocol.errors import StorageError, UserError


def save_snapshot(path: Path, state: State, metadata: dict[str, str]) -> None:
    """Write the state; the file is there whole after a crash, or not at all.

    Raises:
        StorageError: the disk refuses.
    """
    tensors = {"parameters": state.parameters} | {f"moment{index}": moment for index, moment in enumerate(state.moments)}
    data = safetensors.torch.save(tensors, {**metadata, "round": str(state.round), "teacher": state.teacher.hex()})
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
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
            moments = tuple(file.get_tensor(f"moment{index}") for index in range(len(list(file.keys())) - 1))
            teacher = bytes.fromhex(metadata.get("teacher", ""))
            state = State(int(metadata["round"]), file.get_tensor("parameters"), moments, teacher)
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} is no snapshot of a run: {error}") from error
    if len(state.teacher) not in (0, 32):
        raise UserError(f"{path} is no snapshot of a run: the digest of its teacher has {len(state.teacher)} bytes")
    shape = (state.parameters.numel(),)
    if any(vector.shape != shape or vector.dtype != torch.float32 for vector in (state.parameters, *state.moments)):
        raise UserError(f"{path} is no snapshot of a run: its tensors are not fp32 vectors of one length")
    return state, metadata
