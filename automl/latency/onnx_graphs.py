"""Layers and whole networks as ONNX graphs, run by onnxruntime, and how long each takes.

Layers are written node by node: torch's exporter takes seconds for each, and a space has hundreds of them. They have the operations that
the exporter finds, and compute the same (``tests/automl/latency/test_sessions.py``).

What networks of one resolution have besides their units the exporter makes once: a graph with the units' outputs as further inputs, and
the units' inputs as further outputs. Between these the layers of any network are put. That is what ``manta-search export`` writes, but for
the batch, which is fixed.

Sessions of onnxruntime share their memory and rest after each run, so that one does not disturb the next.

Shapes: B batch, C channels, H and W height and width.
"""

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from manta_swarm.automl.export.onnx import IR_VERSION, OPSET, exported_model, package
from manta_swarm.automl.latency.profiler import FixedPart, LayerPart, Part, draw, fixed_of
from manta_swarm.automl.latency.visits import MeasuringEffort, Stopwatch, TimedSubject, Told
from manta_swarm.automl.models.networks import deployed, plain_network
from manta_swarm.automl.models.supernet import plain_layer
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
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

Shape = tuple[int, ...]

_LEAST = 0.05  # of the time of a part that is computed, whatever its call takes


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


@dataclass(frozen=True, slots=True)
class Rest:
    """A network without its units, as an ONNX graph."""

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


def version() -> str:
    """Return the version of onnxruntime."""
    return str(package("onnxruntime").__version__)


def median_ms(space: SearchSpace, subjects: Sequence[Part | Architecture], batch: int, effort: MeasuringEffort, told: Told) -> list[float]:
    """Return the milliseconds of one run of each subject, on the CPU in fp32 with as many threads as torch has.

    What a call takes that computes nothing is taken off those of parts: a network is called once, not layer by layer.

    Raises:
        UserError: a package for ONNX is missing.
    """
    inputs: dict[Shape, npt.NDArray[np.float32]] = {}  # shared, for they would fill the memory
    models = Models(space, batch)
    made = [models.of(subject) for subject in subjects]
    for shape in (shape for _, shapes in made for shape in shapes):
        if shape not in inputs:
            inputs[shape] = torch.rand(shape, generator=models.generator).numpy()
    runs = [_run(model, [inputs[shape] for shape in shapes]) for model, shapes in made]
    nothing = _run(layer_model(nn.Sequential(), (1, 1, 1)), [np.zeros((1, 1, 1, 1), np.float32)])
    *times_ms, call_ms = Stopwatch().median_ms([*runs, nothing], effort, told)
    return [
        time_ms if isinstance(subject, Architecture) else max(time_ms - call_ms, _LEAST * time_ms)
        for subject, time_ms in zip(subjects, times_ms, strict=True)
    ]


class Models:
    """Makes ONNX models with random weights."""

    def __init__(self, space: SearchSpace, batch: int) -> None:
        self._space = space
        self._batch = batch
        self._rests: dict[FixedPart, Rest] = {}
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def of(self, subject: Part | Architecture) -> tuple[Any, list[Shape]]:
        """Return the model of a subject and the shapes of its inputs."""
        if isinstance(subject, LayerPart):
            layer, shape = plain_layer(subject.shape, subject.layer).eval(), subject.shape
            draw(layer, self.generator)
            of_one = (shape.channels_in, subject.height, subject.width)
            return layer_model(layer, of_one), [(self._batch * shape.views, *of_one)]
        if isinstance(subject, FixedPart):
            rest = self._rest(subject)
            return rest.alone(), rest.image_shapes + rest.unit_shapes
        rest = self._rest(FixedPart(subject.resolution, self._space.widths_of(subject)[-1]))
        network = plain_network(self._space, subject)
        draw(network, self.generator)
        return rest.with_units(list(network.units)), rest.image_shapes  # type: ignore[arg-type]

    def _rest(self, part: FixedPart) -> Rest:
        if part not in self._rests:
            network = plain_network(self._space, fixed_of(self._space, part))
            draw(network, self.generator)
            self._rests[part] = rest_of(self._space, network, part.resolution, self._batch)
        return self._rests[part]


def _run(model: Any, inputs: Sequence[npt.NDArray[np.float32]]) -> TimedSubject:
    onnxruntime = package("onnxruntime")
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its errors are raised as well
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    named = {each.name: values for each, values in zip(session.get_inputs(), inputs, strict=True)}
    return _Session(session, named)


@dataclass(frozen=True, slots=True)
class _Session:
    """A model that onnxruntime runs on the same inputs each time."""

    session: Any
    inputs: dict[str, npt.NDArray[np.float32]]

    def run(self) -> object:
        return self.session.run(None, self.inputs)


@functools.cache
def _share_memory() -> None:
    """Let the sessions that wish so take their memory from one arena: hundreds of them would each keep as much as they ever needed."""
    onnxruntime = package("onnxruntime")
    kind = onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(kind, None)
