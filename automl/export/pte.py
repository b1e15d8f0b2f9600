"""``.pte`` files: a network as a program of ExecuTorch, for phones and other small devices, one sample a run.

Convolutions go to XNNPACK, which folds the normalisations into them; what it has no operation for goes to ExecuTorch's own. The package
for it is an extra of this project. ExecuTorch trusts the programs that it runs, so nothing here opens a stranger's: only what was just
made is run, to compare it with the network.
"""

import importlib
import warnings
from types import ModuleType

import torch
from torch import Tensor, nn

from manta_swarm.automl.export.description import Description
from manta_swarm.automl.forms import missing_executorch
from manta_swarm.automl.models.networks import Deployed

_DESCRIPTION = "manta_json"  # a method of the program, without inputs: the bytes of the description's JSON


def pte_bytes(network: nn.Module, description: Description) -> bytes:
    """Return a network as ``automl.models.networks.deployed`` makes it, and its description, as a ``.pte`` file.

    Raises:
        UserError: ExecuTorch is not installed.
    """
    exir, partitioner = _package("executorch.exir"), _package("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    text = torch.frombuffer(bytearray(description.to_json().encode()), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library, about its own use of torch
        edge = exir.to_edge_transform_and_lower(
            _in_rows(network, description), partitioner=[partitioner.XnnpackPartitioner()], constant_methods={_DESCRIPTION: text}
        )
        return bytes(edge.to_executorch().buffer)


def _in_rows(network: nn.Module, description: Description) -> torch.export.ExportedProgram:
    """Return the graph of a network for one sample, whose numbers lie plane by plane: ExecuTorch's operations know no other layout."""
    inputs = tuple(torch.zeros(1, *description.input_shape) for _ in description.input_names)
    with torch.no_grad():
        module = torch.export.export(network, inputs).module()
        for node in list(module.graph.nodes):
            if node.target is torch.ops.aten.contiguous.default:
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
        module.recompile()
        return torch.export.export(module, inputs)


def own_pte(data: bytes) -> tuple[Deployed, Description]:
    """Return the network of a file that ``pte_bytes`` made in this process, run sample by sample, and its description."""
    program = _package("executorch.runtime").Runtime.get().load_program(data)
    (text,) = program.load_method(_DESCRIPTION).execute([])
    method = program.load_method("forward")

    def network(*inputs: Tensor) -> Tensor:
        outputs = [
            method.execute([each.contiguous() for each in sample])[0].clone()
            for sample in zip(*(part.split(1) for part in inputs), strict=True)
        ]
        return torch.cat(outputs)

    return network, Description.from_json(bytes(text.tolist()))


def _package(name: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise missing_executorch() from error
