"""Exported networks as files: a subnet written in one or several forms, each read back and compared, and any form opened again.

A file that is opened may be a stranger's: it is read within bounds and strictly, and nothing in it is run but tensor operations.

Shapes: B batch, C channels of all inputs together, H and W height and width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from manta_swarm.automl.export import onnx, pt2
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.export.folder import folder_files, read_folder
from manta_swarm.automl.export.onnx import onnx_bytes, onnx_model, read_onnx
from manta_swarm.automl.export.pt2 import own_pte, pt2_bytes, pte_bytes, read_pt2, traced
from manta_swarm.automl.export.quantised import quantised_bytes
from manta_swarm.automl.export.subnet import Subnet
from manta_swarm.automl.files import read_bounded, staged
from manta_swarm.automl.forms import CONFIG, FOLDER, INT8, ONNX, PT2, PTE, SUFFIXES, check_opens, check_targets
from manta_swarm.automl.models.networks import Deployed, deployed
from manta_swarm.protocol.errors import OwnFault, UserError

TOLERANCE = 1e-4  # of the largest output, or of 1 where that is less: fp32 sums in another order
_BATCH = 3
_READERS = {PT2: read_pt2, ONNX: read_onnx, INT8: read_onnx, PTE: own_pte}


@dataclass(frozen=True, slots=True)
class Written:
    """A file or folder that was written."""

    path: Path
    difference: float  # largest of any output to the network's own, on random inputs


def write(subnet: Subnet, folder: Path, name: str, formats: Sequence[str], overwrite: bool = False) -> list[Written]:
    """Write ``folder/name.pt2``, ``.onnx``, ``.int8.onnx`` and ``.pte`` and ``folder/name/``, or some of them: all or none.

    Raises:
        UserError: something has such a name already (and ``overwrite`` is False, or it is not an export); a package for ONNX or
            ExecuTorch is missing; the disk refuses.
        OwnFault: a file does not compute what the network computes.
    """
    targets = check_targets(folder, name, formats, overwrite)
    files, differences = exported_files(subnet, targets)
    with staged(folder, list(targets.values())) as stage:
        for path, data in files.items():
            (stage / path).parent.mkdir(exist_ok=True)
            (stage / path).write_bytes(data)
    return [Written(folder / target, differences.get(form, 0.0)) for form, target in targets.items()]


def exported_files(subnet: Subnet, targets: Mapping[str, str]) -> tuple[dict[str, bytes], dict[str, float]]:
    """Return the files by their paths, and by format by how much its outputs differ from the network's at most.

    Args:
        subnet: what to export.
        targets: by format, what the file or folder is called.

    Raises:
        UserError: a package for ONNX or ExecuTorch is missing.
        OwnFault: a file does not compute what the network computes.
    """
    description = subnet.description
    network = deployed(subnet.network, description.space.task)
    files: dict[str, bytes] = {}
    differences: dict[str, float] = {}
    if FOLDER in targets:
        files = {f"{targets[FOLDER]}/{name}": data for name, data in folder_files(subnet.network, description).items()}
    program = traced(network, description) if PT2 in targets or (ONNX in targets and not subnet.onnx_model) else None
    if PT2 in targets and program is not None:
        files[targets[PT2]] = pt2_bytes(program, description)
        differences[PT2] = _difference(network, PT2, files[targets[PT2]], description)
    if ONNX in targets:
        model = onnx_model(program, description) if program is not None and not subnet.onnx_model else subnet.onnx_model
        files[targets[ONNX]] = onnx_bytes(model, description)
        differences[ONNX] = _difference(network, ONNX, files[targets[ONNX]], description)
    if PTE in targets:
        files[targets[PTE]] = pte_bytes(network, description)
        differences[PTE] = _difference(network, PTE, files[targets[PTE]], description)
    if INT8 in targets:
        of_int8 = replace(description, is_int8=True)
        files[targets[INT8]] = quantised_bytes(subnet)
        differences[INT8] = _difference(network, INT8, files[targets[INT8]], of_int8, tolerance=None)
    return files, differences


@torch.inference_mode()
def _difference(
    network: nn.Module,
    form: str,
    data: bytes,
    description: Description,
    tolerance: float | None = TOLERANCE,
) -> float:
    """Return by how much a file's outputs differ from the network's at most; without a tolerance it may be any finite number.

    Raises:
        OwnFault: by too much, or the file cannot be read.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(_BATCH, *description.input_shape, generator=generator) for _ in description.input_names]
    expected = network(*inputs)
    try:
        run, described = _READERS[form](data)
    except ValueError as error:
        raise OwnFault(f"the exported file cannot be read back with torch {torch.__version__}: {error}; leave out this --format") from error
    difference = float((run(*inputs) - expected).abs().max())
    most = math.inf if tolerance is None else tolerance * max(1.0, expected.abs().max().item())
    if described != description or not (difference <= most and math.isfinite(difference)):
        raise OwnFault(f"the exported file computes something else than the network, by {difference:g}; leave out this --format")
    return difference


@dataclass(frozen=True, slots=True)
class ExportedNetwork:
    """An exported network on the CPU."""

    description: Description
    _run: Deployed = field(repr=False)

    @torch.inference_mode()
    def __call__(self, inputs_BCHW: Tensor) -> Tensor:
        """Return the probabilities (B, classes) or disparities (B, H, W) of inputs as ``automl.data.dataset.Batch`` has them.

        Raises:
            ValueError: the inputs are of another shape than the network's.
            UserError: the network makes something of another shape than it says.
        """
        description = self.description
        channels, height, width = description.input_shape
        batch = len(inputs_BCHW)
        if inputs_BCHW.shape != (batch, channels * len(description.input_names), height, width):
            raise ValueError(f"the inputs have the shape {tuple(inputs_BCHW.shape)}, not (B, {channels}, {height}, {width}) each")
        views = [view.contiguous() for view in inputs_BCHW.chunk(len(description.input_names), 1)]
        outputs = self._run(*views)
        if not isinstance(outputs, Tensor) or outputs.shape != (batch, *description.output_shape) or outputs.dtype != torch.float32:
            raise UserError("the exported network does not make what it says that it makes; export it again")
        return outputs


def _in_it(folder: Path) -> str:
    """Return where else a person may have meant: export writes a network's folder, and its files, into the one that --out names."""
    found = sorted(each for each in folder.iterdir() if each.suffix in SUFFIXES or (each / CONFIG).exists())
    return f"; did you mean {found[0]}?" if found else ""


def open_exported(path: Path | str) -> ExportedNetwork:
    """Return the network of a ``.pt2``, an ``.onnx``, or a folder that ``manta-search export`` wrote.

    Raises:
        UserError: it is none of these, broken, or made by something else; or the packages to read an ``.onnx`` are missing.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / CONFIG).exists():
            raise UserError(f"{path} is no exported network: a folder of one holds {CONFIG}{_in_it(path)}")
        network, description = read_folder(path)
        return ExportedNetwork(description, network)
    check_opens(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} is no exported network: give a .pt2, an .onnx, or a folder with a config.json")
    form = pt2 if path.suffix == ".pt2" else onnx
    data = read_bounded(path, form.MAX_BYTES)
    try:
        run, description = pt2.read_pt2(data) if form is pt2 else onnx.read_onnx(data)
    except ValueError as error:
        raise UserError(f"{path} is no network that manta-search exported: {error}; export it again") from error
    return ExportedNetwork(description, run)
