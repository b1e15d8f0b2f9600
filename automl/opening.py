"""What people name is opened: a device, a snapshot and its supernet."""

from pathlib import Path

import torch

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.automl.training.update import State
from manta_swarm.protocol.errors import UserError


def checked_device(name: str) -> str:
    """Return the name of a device, which is the CPU or a GPU (``automl.commands.check_device``).

    Raises:
        UserError: it is a GPU, and torch can use none here.
    """
    if name != "cpu" and not torch.cuda.is_available():
        raise UserError(f"there is no device {name!r} here; use --device cpu")
    return name


def opened_snapshot(path: Path, device: str = "cpu") -> tuple[Supernet, State, dict[str, str]]:
    """Return the supernet with a snapshot's weights, the snapshot's state, and its metadata.

    Raises:
        UserError: the file is no snapshot, or not one of the supernet that it names (``automl.commands.described``).
    """
    state, metadata = load_snapshot(path)
    supernet = build(space_named(metadata["supernet"]), device)
    try:
        supernet.load(state.parameters)
    except ValueError as error:
        raise UserError(f"{path} does not fit the supernet that it names: {error}; give the snapshot of a run") from error
    return supernet, state, metadata
