"""Plain layers and whole networks as ONNX.

Layers are written node by node: torch's exporter takes seconds for each, and a space has hundreds of them. They have the operations that
the exporter finds, and compute the same (``tests/automl/latency/test_sessions.py``).

What networks of one resolution have besides their units the exporter makes once: a graph with the units' outputs as further inputs, and
the units' inputs as further outputs. Between these the layers of any network are put. That is what ``manta-search export`` writes, but for
the batch, which is fixed.

Shapes: B batch, C channels, H and W height and width.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from manta_swarm.automl.export.onnx import IR_VERSION, OPSET, exported_model, package
from manta_swarm.automl.models.networks import deployed
from manta_swarm.automl.spaces.space import SearchSpace
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


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """The graph."""

    model: Any  # of ONNX; its outputs are the network's, and what each unit reads
    image_shapes: list[Shape]  # of the inputs
    unit_shapes: list[Shape]  # of what the units make; two views are one batch

    def alone(self) -> Any:
        """Return the model that is told what the units make."""
        return self._model(list(self.model.graph.input), Nodes())

    def with_units(self, units: Sequence[nn.Sequential]) -> Any:
        """Return the model of a network with these units, layer by layer."""
        graph, nodes, num_images = self.model.graph, Nodes(), len(self.image_shapes)
        for unit, read, made in zip(units, graph.output[1:], graph.input[num_images:], strict=True):
            names = [read.name, *(f"{made.name}/{index}" for index in range(len(unit) - 1)), made.name]
            for layer, taken, handed_on in zip(unit, names[:-1], names[1:], strict=True):
                nodes.add(layer, taken, handed_on)
        return self._model(list(graph.input[:num_images]), nodes)

    def _model(self, inputs: list[Any], nodes: Nodes) -> Any:
        graph, helper = self.model.graph, package("onnx").helper
        weights = [*graph.initializer, *nodes.weights]
        known = {"", *(each.name for each in [*inputs, *weights])}
        operations = list(_in_order([*graph.node, *nodes.operations], known))
        whole = helper.make_graph(operations, "network", inputs, [graph.output[0]], weights)
        return helper.make_model(whole, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)


def rest_of(space: SearchSpace, plain: nn.Module, resolution: int, batch: int) -> Rest:
    """Return what a plain network of this resolution has besides its units, for so many samples; the network is no good afterwards.

    Raises:
        UserError: a package for ONNX is missing.
    """
    num_images = 2 if space.task == "stereo" else 1
    images = [torch.zeros(batch, space.image_channels, resolution, resolution * space.aspect) for _ in range(num_images)]
    whole = deployed(plain, space.task)
    made: list[Tensor] = []
    hooks = [unit.register_forward_hook(lambda _module, _inputs, output: made.append(output)) for unit in plain.units]  # type: ignore[union-attr]
    whole(*images)
    for hook in hooks:
        hook.remove()
    exchange = _Exchange()
    plain.units = nn.ModuleList(_Unit(exchange) for _ in made)
    inputs = [*images, *(torch.zeros(each.shape) for each in made)]
    program = torch.export.export(_WithoutUnits(whole, num_images, exchange).eval(), tuple(inputs))
    shapes = [tuple(each.shape) for each in inputs]
    return Rest(exported_model(program), shapes[:num_images], shapes[num_images:])


def _in_order(nodes: list[Any], known: set[str]) -> Iterator[Any]:
    """Yield the nodes, each after those that make what it reads."""
    while nodes:
        ready = [node for node in nodes if known.issuperset(node.input)]
        assert ready
        for node in ready:
            known.update(node.output)
        yield from ready
        nodes = [node for node in nodes if not known.issuperset(node.output)]


class _Exchange:
    """What units are given and hand on, in their order; no part of any module, for the exporter allows no change of one."""

    def __init__(self) -> None:
        self.made: Iterator[Tensor] = iter(())
        self.read: list[Tensor] = []


class _Unit(nn.Module):
    """Stands for a unit."""

    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def forward(self, x_BCHW: Tensor) -> Tensor:
        self._exchange.read.append(x_BCHW)
        return next(self._exchange.made)


class _WithoutUnits(nn.Module):
    """A network that is told what its units make, and tells what they read."""

    def __init__(self, network: nn.Module, num_images: int, exchange: _Exchange) -> None:
        super().__init__()
        self._network = network
        self._num_images = num_images
        self._exchange = exchange

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self._exchange.made, self._exchange.read = iter(inputs[self._num_images :]), []
        return self._network(*inputs[: self._num_images]), *self._exchange.read
