"""Snapshots, a run's state as a safetensors file, and what people name, opened: a device, a snapshot and its supernet. No pickle."""

from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.precisions import check_device
from manta_swarm.automl.spaces.choice import chosen
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.training.snapshot_header import FORMAT, PARAMETERS, described, moment, read_header
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


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A run's state from a file, in a supernet that is ready to compute."""

    path: Path
    supernet: Supernet = field(repr=False)  # has the state's weights
    state: State = field(repr=False)
    metadata: dict[str, str]  # what the file says of itself: supernet, schedule, data set, run

    @property
    def space(self) -> SearchSpace:
        """The search space of the supernet."""
        return self.supernet.space

    def architecture(self, text: str, search: Path | str | None = None) -> Architecture:
        """Return the architecture of the space that a text stands for, as the option ``--arch`` of manta-search.

        Args:
            text: "largest", "smallest", an architecture's text, the name of a file that holds one, or an id.
            search: the folder of a search, in whose result ids are looked up.

        Raises:
            UserError: it stands for none, or for several.
        """
        return chosen(text, self.space, None if search is None else Path(search))


def checked_device(name: str) -> str:
    """Return the name of a device, which is the CPU or a GPU (``automl.precisions.check_device``).

    Raises:
        UserError: it is neither, or torch can use no GPU here.
    """
    check_device(name)
    if name != "cpu" and not torch.cuda.is_available():
        raise UserError(f"there is no device {name!r} here; use --device cpu")
    return name


def open_snapshot(path: Path | str, device: str = "cpu") -> Snapshot:
    """Return a snapshot of a run: its state, and its supernet with the state's weights on a device.

    Args:
        path: a .safetensors file that an aggregator or ``manta-search train`` wrote.
        device: "cpu", or "cuda" for a GPU.

    Raises:
        UserError: the file is no snapshot, or not one of the supernet that it names; or there is no such device.
    """
    path = Path(path)
    space, metadata = described(path)
    device = checked_device(device)
    state, _ = load_snapshot(path)
    supernet = build(space, device)
    try:
        supernet.load(state.parameters)
    except ValueError as error:
        raise UserError(f"{path} does not fit the supernet that it names: {error}; give the snapshot of a run") from error
    return Snapshot(path, supernet, state, metadata)
