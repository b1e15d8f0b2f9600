"""Plain layers as ONNX, node by node: torch's exporter takes seconds for each, and a space has hundreds of them.

They have the operations that the exporter finds, and compute the same (``tests/automl/latency/test_sessions.py``).
"""

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional as F

from manta_swarm.automl.export.onnx import IR_VERSION, OPSET, package
from manta_swarm.protocol.errors import OwnFault

_ELEMENTWISE: dict[Any, tuple[str, dict[str, float]]] = {
    F.relu: ("Relu", {}),
    F.hardswish: ("HardSwish", {}),
    F.hardsigmoid: ("HardSigmoid", {"alpha": 1 / 6}),
    operator.add: ("Add", {}),
    operator.mul: ("Mul", {}),
}
_OVER_THE_MAP = ((2, 3),)  # what is left of a mean's arguments, and its others
_KEPT = {"keepdim": True}
_SAME = ("contiguous",)  # methods that change no number


@dataclass(frozen=True, slots=True)
class Nodes:
    """A part of an ONNX graph."""

    operations: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def add(self, layer: nn.Module, taken: str, made: str) -> None:
        """Add what a layer makes of the value called ``taken``, as ``made``.

        Raises:
            UserError: a package for ONNX is missing.
            OwnFault: the layer does something that no line here translates.
        """
        helper, numbers = package("onnx").helper, package("onnx").numpy_helper
        names: dict[fx.Node, str] = {}
        for node in fx.symbolic_trace(layer).graph.nodes:
            given = [names[each] for each in node.args if isinstance(each, fx.Node)]
            names[node] = own = f"{made}/{node.name}"
            if node.op == "placeholder":
                names[node] = taken
            elif node.op == "call_method" and node.target in _SAME:
                names[node] = given[0]
            elif node.op == "call_function" and node.target in _ELEMENTWISE:
                operation, attributes = _ELEMENTWISE[node.target]
                self.operations.append(helper.make_node(operation, given, [own], **attributes))
            elif node.op == "call_method" and node.target == "mean" and (node.args[1:], node.kwargs) == (_OVER_THE_MAP, _KEPT):
                self.weights.append(numbers.from_array(np.array(_OVER_THE_MAP[0]), f"{own}.axes"))
                self.operations.append(helper.make_node("ReduceMean", [*given, f"{own}.axes"], [own]))
            elif node.op == "call_module":
                operation, attributes, tensors = _translated(layer.get_submodule(node.target))
                held = {f"{own}.{name}": tensor for name, tensor in tensors.items()}
                self.operations.append(helper.make_node(operation, [*given, *held], [own], **attributes))
                self.weights.extend(numbers.from_array(tensor.detach().numpy(), name) for name, tensor in held.items())
            elif node.op == "output":
                self.operations.append(helper.make_node("Identity", given, [made]))
            else:
                raise OwnFault(f"nobody has said what {node.target} of a layer is in ONNX; measure with --runtime torch")


def layer_model(layer: nn.Module, shape: tuple[int, int, int]) -> Any:
    """Return a layer as a whole ONNX model, for inputs (B, *shape) of any batch.

    Raises:
        UserError, OwnFault: see ``Nodes.add``.
    """
    nodes, helper = Nodes(), package("onnx").helper
    nodes.add(layer, "x", "y")
    free = ("batch", *shape)
    given, made = (
        helper.make_tensor_value_info(name, package("onnx").TensorProto.FLOAT, dims) for name, dims in (("x", free), ("y", None))
    )
    graph = helper.make_graph(nodes.operations, "layer", [given], [made], nodes.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _translated(module: nn.Module) -> tuple[str, dict[str, Any], dict[str, torch.Tensor]]:
    """Return operation, attributes and weights in their order."""
    if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
        tensors = {"weight": module.weight, "bias": module.bias, "mean": module.running_mean, "variance": module.running_var}
        return "BatchNormalization", {"epsilon": module.eps}, tensors
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        pads = (*module.padding, *module.padding)
        attributes = {"strides": module.stride, "pads": pads, "group": module.groups, "dilations": module.dilation}
        return "Conv", attributes, {"weight": module.weight} | ({} if module.bias is None else {"bias": module.bias})
    raise OwnFault(f"nobody has said what {type(module).__name__} of a layer is in ONNX; measure with --runtime torch")
