"""A subnet ready to be exported: cut out of a snapshot, its statistics measured, its quality too. Nothing is fine-tuned."""

import importlib.metadata
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from manta_swarm.automl.data.dataset import TEST, Dataset
from manta_swarm.automl.evaluation.held_out import CALIBRATION_SAMPLES, calibrate, check_fit, measure
from manta_swarm.automl.export.description import UNKNOWN, Description, Provenance
from manta_swarm.automl.export.presentation import Presentation, presentation_of
from manta_swarm.automl.files import read_bounded
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.protocol.errors import UserError

_MAX_LEDGER_BYTES = 64 << 10
_HEX = re.compile(r"[0-9a-f]{64}")


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
