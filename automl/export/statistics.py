"""Running statistics of a snapshot's subnets, in a file beside it: with them a subnet is whole, and nobody needs the training data.

DIR/round-00000200.statistics: a safetensors file. Its metadata has the description of each subnet, which names the state that it was cut
out of; its tensors are the means and variances of the subnet's normalisations. No pickle; files of strangers are read within bounds.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from manta_swarm.automl.export.description import MAX_BYTES as MAX_DESCRIPTION_BYTES
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.export.subnet import Subnet
from manta_swarm.automl.files import write_whole
from manta_swarm.automl.forms import MAX_STORED
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.protocol.errors import UserError

FORMAT = "manta/statistics/v1"
MAX_BYTES = 64 << 20
_NETWORK = "network "  # and the architecture's id: the key of a description
_SUFFIXES = ("running_mean", "running_var")


def statistics_path(snapshot: Path) -> Path:
    """Return the file beside a snapshot."""
    return snapshot.with_suffix(".statistics")


def add_statistics(path: Path, subnets: Iterable[Subnet]) -> None:
    """Write the statistics of some subnets of one state beside those that the file has of it; of these some go when they are too many.

    Those of another state are not kept.

    Raises:
        UserError: the file is there and is something else, or the disk refuses.
    """
    new = {each.description.architecture.id: each for each in subnets}
    state = next(iter(new.values())).description.provenance.state
    descriptions, tensors = _read(path) if path.exists() else ({}, {})
    kept = [name for name, each in descriptions.items() if each.provenance.state == state and name not in new]
    kept = kept[max(0, len(kept) + len(new) - MAX_STORED) :]
    values = {key: tensor for key, tensor in tensors.items() if key.split("/", 1)[0] in kept}
    texts = {name: descriptions[name].to_json() for name in kept}
    for name, each in new.items():
        texts[name] = replace(each.description, weights={}, int8=None).to_json()
        values |= {f"{name}/{key}": tensor.contiguous() for key, tensor in _statistics(each.network).items()}
    metadata = {"format": FORMAT, **{f"{_NETWORK}{name}": text for name, text in texts.items()}}
    write_whole(path, safetensors.torch.save(values, metadata))


def stored_subnet(path: Path, supernet: Supernet, state: str, architecture_id: str) -> Subnet:
    """Return a subnet of a loaded supernet with the statistics of the file, and with the description that stands there.

    Args:
        path: of the file.
        supernet: with the snapshot's weights.
        state: digest of the snapshot's state, in hex.
        architecture_id: whose subnet.

    Raises:
        UserError: there is no such file, it is of another state, or it lacks the subnet or a part of it.
    """
    descriptions, tensors = _read(path)
    description = descriptions.get(architecture_id)
    if description is None:
        known = ", ".join(name[:8] for name in descriptions)
        raise UserError(
            f"{path} has no statistics of {architecture_id[:8]}, but of {known}: calibrate it with the data, or take one of these"
        )
    if (description.supernet, description.provenance.state) != (supernet.space.name, state):
        raise UserError(f"{path} is of another state than the snapshot: calibrate again with the data")
    network = supernet.extract(description.architecture).cpu()
    expected = _statistics(network)
    prefix = f"{architecture_id}/"
    found = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    if found.keys() != expected.keys() or any(not _fits(name, found[name], expected[name]) for name in expected):
        raise UserError(f"{path} does not hold the statistics of {architecture_id[:8]}: calibrate again with the data")
    network.load_state_dict(found, strict=False)
    return Subnet(network, description)


def _statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in network.state_dict().items() if name.endswith(_SUFFIXES)}


def _fits(name: str, tensor: Tensor, expected: Tensor) -> bool:
    is_right = tensor.shape == expected.shape and tensor.dtype == expected.dtype and bool(torch.isfinite(tensor).all())
    return is_right and (name.endswith("running_mean") or bool((tensor >= 0).all()))


def _read(path: Path) -> tuple[dict[str, Description], dict[str, Tensor]]:
    """Return the descriptions by the architectures' ids, in their order in the file, and all tensors by name.

    Raises:
        UserError: there is no such file, or it is something else.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            if metadata.pop("format", None) != FORMAT or len(metadata) > MAX_STORED:
                raise ValueError("it is of another format, or of too many subnets")
            descriptions = {}
            for key, text in metadata.items():
                if len(text) > MAX_DESCRIPTION_BYTES:
                    raise ValueError("it describes a subnet at too great length")
                description = Description.from_json(text)
                if key != f"{_NETWORK}{description.architecture.id}":
                    raise ValueError("it calls a subnet by another one's name")
                descriptions[description.architecture.id] = description
            return descriptions, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; write it with manta-search calibrate") from error
    except (ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} holds no statistics of subnets: {error}; remove it, and calibrate again") from error
