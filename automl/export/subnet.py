"""A subnet ready to be exported, cut out of a snapshot, with its statistics and its quality; and the file of statistics beside a snapshot.

With stored statistics a subnet is whole, and nobody needs the training data. DIR/round-00000200.statistics is a safetensors file. Its
metadata has the description of each subnet, which names the state that it was cut out of; its tensors are the means and variances of the
subnet's normalisations. No pickle; files of strangers are read within bounds. Nothing is fine-tuned.
"""

import importlib.metadata
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from manta_swarm.automl.data.dataset import TEST, Dataset
from manta_swarm.automl.data.names import UNKNOWN
from manta_swarm.automl.evaluation.held_out import CALIBRATION_SAMPLES, calibrate, check_fit, measure
from manta_swarm.automl.export.description import MAX_BYTES as MAX_DESCRIPTION_BYTES
from manta_swarm.automl.export.description import Description, Presentation, Provenance, presentation_of
from manta_swarm.automl.files import read_bounded, write_whole
from manta_swarm.automl.forms import MAX_STORED
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.protocol.errors import UserError

_MAX_LEDGER_BYTES = 64 << 10
_HEX = re.compile(r"[0-9a-f]{64}")

FORMAT = "manta/statistics/v1"
MAX_BYTES = 64 << 20
_NETWORK = "network "  # and the architecture's id: the key of a description
_SUFFIXES = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class Subnet:
    """A plain network, in evaluation mode on the CPU, and what it is."""

    network: nn.Module
    description: Description
    onnx_model: bytes = b""  # what it is in ONNX, without its description, where that was needed already
    int8_model: bytes = b""  # what ``automl.export.quantised`` made, without its description


def cut(
    supernet: Supernet, architecture: Architecture, dataset: Dataset, provenance: Provenance, presentation: Presentation | None = None
) -> Subnet:
    """Return the subnet of a loaded supernet; its running statistics are of ``dataset``'s training samples, its metrics of the part "test".

    ``presentation``: how it is presented, where more is known than the data set tells by itself.

    Raises:
        UserError: the data is for another network.
    """
    check_fit(dataset, supernet.space)
    calibrate(supernet, dataset, architecture)
    network = supernet.extract(architecture).cpu()
    samples = 0

    def counted(inputs: Tensor) -> Tensor:
        nonlocal samples
        samples += len(inputs)
        return cast("Tensor", network(inputs))

    metrics = measure(counted, dataset, architecture.resolution, part=TEST)
    description = Description(
        supernet=supernet.space.name,
        architecture=architecture,
        provenance=provenance,
        dataset=dataset.name,
        dataset_digest=dataset.digest.hex(),
        calibration_samples=min(CALIBRATION_SAMPLES[dataset.task], dataset.num_train),
        test_samples=samples,
        metrics=metrics,
        made_with=f"manta-swarm {importlib.metadata.version('manta-swarm')}, torch {torch.__version__}",
        presentation=presentation or presentation_of(dataset),
    )
    return Subnet(network, description)


def provenance_of(snapshot: Path, state: State, metadata: dict[str, str]) -> Provenance:
    """Return where a snapshot's state comes from: what its metadata says, and the log's root from the file beside it, if there is one.

    Raises:
        UserError: the snapshot holds another state than it says, or the file beside it cannot be read.
    """
    digest = state_digest(state).hex()
    if metadata.get("state", digest) != digest:
        raise UserError(f"{snapshot} is damaged: it holds the state {digest[:16]}, not {metadata['state'][:16]} as it says; take another")
    root, size = _ledger(snapshot.with_suffix(".json"))
    return Provenance(run=metadata.get("run", UNKNOWN), round=state.round, state=digest, ledger_root=root, ledger_size=size)


def _ledger(path: Path) -> tuple[str, int]:
    """Return root and size of the log that had committed a snapshot's round."""
    if not path.is_file():
        return UNKNOWN, 0
    try:
        value = json.loads(read_bounded(path, _MAX_LEDGER_BYTES))
        root, size = value["ledger_root"], value["ledger_size"]
        if not isinstance(root, str) or _HEX.fullmatch(root) is None or type(size) is not int or size < 0:
            raise ValueError("its root or its size is none")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path} does not say at which root of the log the snapshot was made: {error!r}; remove or restore it") from error
    return root, size


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
