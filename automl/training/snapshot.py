"""Snapshots: a run's state as a safetensors file, with where it comes from in its metadata. No pickle."""

from pathlib import Path

import safetensors
import safetensors.torch

from manta_swarm.automl.training.snapshot_header import FORMAT, PARAMETERS, moment, read_header
from manta_swarm.automl.training.update import State
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.disk import write_durably


def save_snapshot(path: Path, state: State, metadata: dict[str, str]) -> None:
    """Write the state; the file is there whole after a crash, or not at all.

    Raises:
        StorageError: the disk refuses.
    """
    tensors = {PARAMETERS: state.parameters} | {moment(index): vector for index, vector in enumerate(state.moments)}
    data = safetensors.torch.save(tensors, {**metadata, "format": FORMAT, "round": str(state.round), "teacher": state.teacher.hex()})
    write_durably(path, data)


def load_snapshot(path: Path) -> tuple[State, dict[str, str]]:
    """Return the state and the metadata of a snapshot.

    Raises:
        UserError: there is no such file, or it is no snapshot.
    """
    metadata = read_header(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            moments = tuple(file.get_tensor(moment(index)) for index in range(len(list(file.keys())) - 1))
            state = State(int(metadata["round"]), file.get_tensor(PARAMETERS), moments, bytes.fromhex(metadata["teacher"]))
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} is no snapshot of a run: {error}") from error
    return state, metadata
