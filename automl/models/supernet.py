"""What every supernet is: searchable units of elastic layers, and all weights in one flat vector.

All weights live in one flat vector, and all gradients in another, so that loading a state or taking a gradient is one copy. Weights are
uninitialised until ``initialise`` or ``load``. What a network has besides its units is its subclass's affair (``automl.models.classifier``,
``automl.models.stereo``).

Shapes: B batch, C channels, H and W height and width, N all weights.
"""

import math
from abc import ABC, abstractmethod
from itertools import groupby

import torch
from torch import Tensor, nn

from manta_swarm.automl.models.bottleneck import ElasticBottleneck, ElasticGate, PlainBottleneck
from manta_swarm.automl.models.layers import ElasticBatchNorm, ElasticLayer, ElasticSpatial, PlainLayer, is_residual
from manta_swarm.automl.spaces.shapes import BottleneckShape, LayerShape, active_shapes, layer_shapes, unit_read
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.spaces.units import Layer, UnitSpace

_ALIGNED = 16  # weights: 64 bytes
SCALE_OF_UNIT = ".project_norm.weight"  # how the name of what scales a layer's output ends

Outputs = Tensor | tuple[Tensor, ...]


Elastic = ElasticLayer | ElasticBottleneck
Plain = PlainLayer | PlainBottleneck


def elastic_layer(shape: LayerShape, unit: UnitSpace) -> Elastic:
    """Return the elastic layer with the choices of its unit."""
    if isinstance(shape, BottleneckShape):
        return ElasticBottleneck(shape, unit.kernels, unit.expansions)
    return ElasticLayer(shape, unit.kernels, unit.expansions)


def plain_layer(shape: LayerShape, layer: Layer) -> Plain:
    """Return one choice as a plain layer, with memory for its weights and nothing in it yet."""
    return PlainBottleneck(shape, layer) if isinstance(shape, BottleneckShape) else PlainLayer(shape, layer)


class Supernet(nn.Module, ABC):
    """The shared weights of every architecture of a search space."""

    flat_weights_N: Tensor
    flat_gradient_N: Tensor

    def __init__(self, space: SearchSpace) -> None:
        """Build the units. A subclass adds its own parts, and then calls ``_flatten``."""
        super().__init__()
        self.space = space
        self.units = nn.ModuleList()
        for unit, shapes in groupby(layer_shapes(space), key=lambda shape: shape.unit):
            self.units.append(nn.ModuleList(elastic_layer(shape, space.units[unit]) for shape in shapes))

    @abstractmethod
    def forward(self, x_BCHW: Tensor, architecture: Architecture) -> Outputs:
        """Return what the subnet that ``architecture`` cuts out makes of a batch."""

    @abstractmethod
    def extract(self, architecture: Architecture) -> nn.Module:
        """Return the subnet as a plain network in evaluation mode, with copies of its weights and running statistics."""

    @abstractmethod
    def _initialise_fixed(self, generator: torch.Generator) -> None:
        """Draw the first weights of what is not a searchable layer."""

    def _flatten(self, device: torch.device | str) -> None:
        """Make every weight and gradient a view into two flat vectors."""
        self.to(device)
        count = sum(parameter.numel() for parameter in self.parameters())
        self.flat_gradient_N = torch.zeros(count, device=device)
        self._view(torch.zeros(count, device=device))
        parameters = dict(self.named_parameters())
        for name, (start, stop) in self.slices().items():
            parameters[name].grad = self.flat_gradient_N[start:stop].view(parameters[name].shape)

    def _view(self, weights_N: Tensor) -> None:
        self.flat_weights_N = weights_N
        parameters = dict(self.named_parameters())
        for name, (start, stop) in self.slices().items():
            parameters[name].data = weights_N[start:stop].view(parameters[name].shape)

    def slices(self) -> dict[str, tuple[int, int]]:
        """Return name -> (start, stop) in the flat vector, for every parameter, in the order of the state.

        That is the order of ``parameters()``, but those whose number of weights is a multiple of 16 come first, then those of 8, 4 and 2:
        so a convolution's weights are aligned to 64 bytes, or to as many as they fill. Kernels add in another order where they are not,
        and a subnet that was extracted, whose weights are, would differ in its last bits.
        """
        slices, start = {}, 0
        for name, parameter in sorted(self.named_parameters(), key=lambda pair: -min(_ALIGNED, pair[1].numel() & -pair[1].numel())):
            slices[name] = (start, start + parameter.numel())
            start += parameter.numel()
        return slices

    @property
    def num_weights(self) -> int:
        """N: the length of a state's parameters."""
        return self.flat_weights_N.numel()

    def load(self, weights_N: Tensor) -> None:
        """Copy a state's parameters in."""
        self._check(weights_N)
        self.flat_weights_N.copy_(weights_N)

    def adopt(self, weights_N: Tensor) -> None:
        """Use a state's parameters where they lie, without a copy: whoever changes them, changes this network.

        They lie on its device, aligned to 64 bytes, and may be read-only.

        Raises:
            ValueError: they do not, or are another number of weights.
        """
        self._check(weights_N)
        if weights_N.device != self.flat_weights_N.device or weights_N.data_ptr() % (4 * _ALIGNED):
            raise ValueError("weights are adopted on the network's own device, and aligned")
        self._view(weights_N)

    def _check(self, weights_N: Tensor) -> None:
        if weights_N.shape != self.flat_weights_N.shape:
            raise ValueError(f"{self.space.name} has {self.num_weights} weights, not {tuple(weights_N.shape)}")

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw first weights. Not the same bits on every machine: only the maker of a run's first state may call it.

        All choices begin nearly as one: most of a kernel is in the centre that they share, and residual layers add nothing.
        """
        for module in self.modules():
            if isinstance(module, ElasticBatchNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()
            elif isinstance(module, ElasticSpatial):
                draw(module.weight, generator)
                module.weight.mul_(bell(module.kernels[0]))
                for transform in module.transforms:
                    transform.copy_(torch.eye(transform.shape[0]))
            elif isinstance(module, ElasticLayer):
                draw(module.expand, generator)
                draw(module.project, generator)
            elif isinstance(module, ElasticBottleneck):
                if module.shape.expands_apart:
                    draw(module.expand, generator)
                draw(module.project, generator)
            elif isinstance(module, ElasticGate):  # begins at one half for all channels, whatever goes in
                draw(module.squeeze, generator)
                for parameter in (module.squeeze_bias, module.excite, module.excite_bias):
                    parameter.zero_()
        for module in self.modules():  # a residual layer begins as what its input is (arXiv:1706.02677, section 5.1): all depths as one
            if isinstance(module, Elastic) and is_residual(module.shape):
                module.project_norm.weight.zero_()
        self._initialise_fixed(generator)

    def run_unit(self, unit: int, x_BCHW: Tensor, architecture: Architecture) -> Tensor:
        """Return what the active layers of a unit make of ``x_BCHW``."""
        width = architecture.width(unit)
        for index, layer in enumerate(architecture.units[unit]):
            module = self._layer(unit, index)
            x_BCHW = module(x_BCHW, module.shape.narrowed(x_BCHW.shape[1], width or module.shape.width), layer)
        return x_BCHW

    def extract_unit(self, unit: int, architecture: Architecture) -> nn.Sequential:
        """Return the active layers of a unit as plain ones."""
        return nn.Sequential(
            *(
                self._layer(unit, shape.index).extract(shape, layer)  # type: ignore[arg-type]  # the kind of shape that it has itself
                for shape, layer in active_shapes(architecture, self.space)
                if shape.unit == unit
            )
        )

    def handed_parts(self, unit: int) -> tuple[list[str], list[str]]:
        """Return the names of the parameters that have a row, or several, for each channel that a unit hands on, and of those with columns.

        They are of its own layers, and of the layer or the head that reads what it hands on.
        """
        rows, columns = [], list(self._head_columns()) if unit == len(self.units) - 1 else []
        for name, layer in self.named_modules():
            if isinstance(layer, Elastic):
                if layer.shape.unit == unit:
                    rows += [f"{name}.project", f"{name}{SCALE_OF_UNIT}", f"{name}.project_norm.bias"]
                if unit_read(layer.shape) == unit:
                    reading = layer.reading_parts()
                    rows += [f"{name}.{part}" for part in reading[0]]
                    columns += [f"{name}.{part}" for part in reading[1]]
        return rows, columns

    def _head_columns(self) -> tuple[str, ...]:
        """Return the names of the parameters after the units that have a column for each channel of the last one; only of a classifier."""
        return ()

    def searchable_weights_for(self, architecture: Architecture) -> tuple[Tensor, ...]:
        """Return all weights of the active layers as the subnet uses them: slices, and kernels through their transforms.

        And of what follows them the slices, where its weights are not the same in all architectures.
        """
        return tuple(
            weight
            for shape, layer in active_shapes(architecture, self.space)
            for weight in self._layer(shape.unit, shape.index).weights_for(shape, layer)  # type: ignore[arg-type]
        )

    def _layer(self, unit: int, index: int) -> Elastic:
        layers = self.units[unit]
        assert isinstance(layers, nn.ModuleList)
        layer = layers[index]
        assert isinstance(layer, Elastic)
        return layer


def draw(weight: Tensor, generator: torch.Generator) -> None:
    """Fill ``weight`` with normal numbers of the variance that suits a ReLU after it (arXiv:1502.01852)."""
    weight.normal_(0.0, math.sqrt(2.0 / weight[0].numel()), generator=generator)


def bell(kernel: int) -> Tensor:
    """Return a Gaussian (K, K) of one pixel's width, with the energy of as many ones: what the first weights of a kernel are multiplied by.

    What smaller kernels leave out is small then, and they begin as nearly the same as the large one that they are cut out of.
    """
    bell_K = torch.exp(-((torch.arange(kernel) - kernel // 2) ** 2) / 2)
    bell_KK: Tensor = bell_K[:, None] * bell_K[None, :]
    return bell_KK.mul_(kernel / bell_KK.norm())


def plain_units(space: SearchSpace, architecture: Architecture) -> nn.ModuleList:
    """Return the active layers of every unit as plain ones, with memory for their weights and nothing in it yet."""
    units: list[list[Plain]] = [[] for _ in architecture.units]
    for shape, layer in active_shapes(architecture, space):
        units[shape.unit].append(plain_layer(shape, layer))
    return nn.ModuleList(nn.Sequential(*layers) for layers in units)
