"""What networks of one resolution have besides their units, as ONNX, and whole networks made of it.

They are what ``manta-search export`` writes, but for the batch, which is fixed.

torch's exporter makes the rest once: a graph with the units' outputs as further inputs, and the units' inputs as further outputs. Between
these the layers of any network are put (``automl.latency.layer_graph``).

Shapes: B batch, C channels, H and W height and width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manta_swarm.automl.export.onnx import exported_model, package
from manta_swarm.automl.latency.layer_graph import Nodes
from manta_swarm.automl.models.plain import deployed
from manta_swarm.automl.spaces.space import SearchSpace

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
