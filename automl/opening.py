"""What people name is opened: a device, a data set, a snapshot and its supernet."""

from collections.abc import Mapping
from pathlib import Path

import torch

from automl.data.catalog import load_dataset
from automl.data.dataset import Dataset
from automl.models.networks import build
from automl.models.supernet import Supernet
from automl.spaces.space import space_named
from automl.training.snapshot import load_snapshot
from automl.training.update import State
from protocol.errors import UserError


def checked_device(name: str) -> str:
    """Return the name of a device that is here.

    Raises:
        UserError: it is not.
    """
    if name != "cpu" and not (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise UserError(f"there is no device {name!r} here; use --device cpu")
    return name


def dataset_of(metadata: Mapping[str, str], given: str | None, root: Path | None) -> Dataset:
    """Return the data set that the person named, or the one that a snapshot was trained on.

    Raises:
        UserError: neither is named, or it cannot be loaded.
    """
    name = given or metadata.get("dataset")
    if name is None:
        raise UserError("the snapshot does not say what it was trained on: name it with --data")
    return load_dataset(name, root)


def opened_snapshot(path: Path, device: str = "cpu") -> tuple[Supernet, State, dict[str, str]]:
    """Return the supernet with a snapshot's weights, the snapshot's state, and its metadata.

    Raises:
        UserError: the file is no snapshot, or not one of the supernet that it names.
    """
    state, metadata = load_snapshot(path)
    if "supernet" not in metadata:
        raise UserError(f"{path} does not say which supernet it is of; give the snapshot of a run")
    supernet = build(space_named(metadata["supernet"]), device)
    try:
        supernet.load(state.parameters)
    except ValueError as error:
        raise UserError(f"{path} does not fit the supernet that it names: {error}; give the snapshot of a run") from error
    return supernet, state, metadata
