"""Folders as model hubs have them: ``config.json``, ``model.safetensors`` and a model card. No pickle and no code in them."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from manta_swarm.automl.export.card import card
from manta_swarm.automl.export.description import MAX_BYTES as MAX_DESCRIPTION_BYTES
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.files import read_bounded
from manta_swarm.automl.forms import CARD, CONFIG, WEIGHTS
from manta_swarm.automl.models.networks import deployed, plain_network
from manta_swarm.protocol.errors import UserError

_MAX_HEADER_BYTES = 1 << 20  # of a safetensors file: the names and the shapes


def folder_files(network: nn.Module, description: Description) -> dict[str, bytes]:
    """Return the files of a plain network's folder by their names."""
    weights = safetensors.torch.save({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, {"format": "pt"})
    described = replace(description, weights={WEIGHTS: hashlib.sha256(weights).hexdigest()})
    return {CONFIG: (described.to_json(indent=2) + "\n").encode(), WEIGHTS: weights, CARD: card(described).encode()}


def load_folder(path: Path) -> nn.Module:
    """Return the network of an exported folder as ``automl.models.networks.deployed`` makes it: frozen, in evaluation mode, on the CPU.

    Raises:
        UserError: the folder is not one that was exported, or not whole: something is missing, left over, too large, of another shape,
            not the file that ``config.json`` names by its digest, or not finite.
    """
    return read_folder(path)[0]


def read_folder(path: Path) -> tuple[nn.Module, Description]:
    """Return the network of ``load_folder``, and its description.

    Raises:
        UserError: as ``load_folder``.
    """
    config = read_bounded(path / CONFIG, MAX_DESCRIPTION_BYTES)
    try:
        description = Description.from_json(config)
    except ValueError as error:
        raise UserError(f"{path / CONFIG} describes no network: {error}; export it again") from error
    network = plain_network(description.space, description.architecture)
    expected = network.state_dict()
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
    weights = read_bounded(path / WEIGHTS, num_bytes + _MAX_HEADER_BYTES)
    try:
        if description.weights != {WEIGHTS: hashlib.sha256(weights).hexdigest()}:
            raise ValueError(f"its digest is not the one in {CONFIG}")
        tensors = safetensors.torch.load(weights)
        _check(tensors, expected)
    except (ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"{path / WEIGHTS} does not hold the weights of that network: {error}; export it again") from error
    network.load_state_dict(tensors)
    return deployed(network, description.space.task), description


def _check(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Check that every tensor is there, of its shape and kind, with finite numbers, and no other.

    Raises:
        ValueError: it is not so.
    """
    if tensors.keys() != expected.keys():
        raise ValueError(f"tensors are missing or too many: {', '.join(sorted(tensors.keys() ^ expected.keys())[:3])}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise ValueError(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has numbers that are not finite")
