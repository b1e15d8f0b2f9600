"""A plain network as one graph of tensor operations, with a batch of any size: what ``.pt2`` and ``.onnx`` are made of."""

import torch
from torch import nn

from manta_swarm.automl.export.description import Description

_EXAMPLE_BATCH = 2  # 1 would be taken for a constant


def traced(network: nn.Module, description: Description) -> torch.export.ExportedProgram:
    """Return the graph of a network as ``automl.models.plain.deployed`` makes it: nothing of this machine in it, and no example inputs."""
    batch = torch.export.Dim("batch", min=1)
    inputs = tuple(torch.zeros(_EXAMPLE_BATCH, *description.input_shape) for _ in description.input_names)
    with torch.no_grad():
        program = torch.export.export(network, inputs, dynamic_shapes={name: {0: batch} for name in description.input_names})
    program.example_inputs = None  # torch would pickle them into the file
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names this machine's folders
        node.meta.pop("nn_module_stack", None)
    return program
