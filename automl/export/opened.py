"""Exported networks, opened whatever their form: something that can be called, and what it is.

Files may be a stranger's: what is opened is read within bounds and strictly, and nothing in it is run but tensor operations.

Shapes: B batch, C channels of all inputs together, H and W height and width.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from manta_swarm.automl.export import onnx, pt2
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.export.folder import read_folder
from manta_swarm.automl.files import read_bounded
from manta_swarm.automl.forms import CONFIG, SUFFIXES, check_opens
from manta_swarm.automl.models.networks import Deployed
from manta_swarm.protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class ExportedNetwork:
    """An exported network on the CPU."""

    description: Description
    _run: Deployed = field(repr=False)

    @torch.inference_mode()
    def __call__(self, inputs_BCHW: Tensor) -> Tensor:
        """Return the probabilities (B, classes) or disparities (B, H, W) of inputs as a ``Batch`` has them (automl.data.dataset).

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
