"""Elastic bottlenecks: layers whose spatial convolution works on the expanded channels, with squeeze and excitation where their shape says.

As in ``automl.models.layers``, ``*_for`` methods return the weights of one choice, and there is no other way to them. Of a unit's first
layer, where each channel in has filters of its own, fewer channels in are fewer blocks of what is expanded.

Shapes: B batch, C channels in, E expanded channels, S squeezed channels, O channels out, H and W height and width, K side of a kernel.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from manta_swarm.automl.models.gradients import convolve
from manta_swarm.automl.models.layers import BATCH_NORM_EPSILON, ElasticBatchNorm, ElasticSpatial, first, first_of_blocks, is_residual
from manta_swarm.automl.spaces.shapes import BottleneckShape
from manta_swarm.automl.spaces.units import Activation, Layer


class ElasticGate(nn.Module):
    """Squeeze and excitation (arXiv:1709.01507): a weight from 0 to 1 for each expanded channel, made of the means of all of them."""

    def __init__(self, channels: int, squeezed: int, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.squeeze = nn.Parameter(torch.empty(squeezed, channels, 1, 1))
        self.squeeze_bias = nn.Parameter(torch.empty(squeezed))
        self.excite = nn.Parameter(torch.empty(channels, squeezed, 1, 1))
        self.excite_bias = nn.Parameter(torch.empty(channels))

    def weights_for(self, shape: BottleneckShape, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return squeezing weights and biases, and exciting ones, of so many expanded channels."""
        active, squeezed = shape.blocks, shape.squeezed
        squeeze = first_of_blocks(first(self.squeeze, squeezed), channels, self.blocks, dim=1, active=active)
        excite = first(first_of_blocks(self.excite, channels, self.blocks, active=active), squeezed, dim=1)
        excite_bias = first_of_blocks(self.excite_bias, channels, self.blocks, active=active)
        return squeeze, first(self.squeeze_bias, squeezed), excite, excite_bias

    def forward(self, x_BEHW: Tensor, shape: BottleneckShape) -> Tensor:
        """Return the expanded channels of a layer of this shape weighed."""
        squeeze, squeeze_bias, excite, excite_bias = self.weights_for(shape, x_BEHW.shape[1])
        y_BS11 = F.relu(F.conv2d(x_BEHW.mean((2, 3), keepdim=True), squeeze, squeeze_bias))
        return x_BEHW * F.hardsigmoid(F.conv2d(y_BS11, excite, excite_bias))


class PlainGate(nn.Module):
    """The gate of one choice, of torch's own modules."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = skip_init(nn.Conv2d, channels, squeezed, 1)
        self.excite = skip_init(nn.Conv2d, squeezed, channels, 1)

    def forward(self, x_BEHW: Tensor) -> Tensor:
        """Return the channels of ``x_BEHW`` weighed."""
        y_BS11 = F.relu(self.squeeze(x_BEHW.mean((2, 3), keepdim=True)))
        return x_BEHW * F.hardsigmoid(self.excite(y_BS11))


class ElasticBottleneck(nn.Module):
    """Expand 1 x 1, spatial K x K, gate, project 1 x 1; with a residual where the shape stays.

    In a unit's first layer the spatial convolution expands and strides at once; see ``BottleneckShape``.
    """

    def __init__(self, shape: BottleneckShape, kernels: tuple[int, ...], expansions: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        widest = shape.hidden(expansions[-1])
        if shape.expands_apart:
            self.expand = nn.Parameter(torch.empty(widest, shape.channels_in, 1, 1))
            self.expand_norm = ElasticBatchNorm(widest)
        spatial_in = widest if shape.expands_apart else shape.channels_in
        self.spatial = ElasticSpatial(widest, spatial_in // shape.groups(widest), kernels)
        self.spatial_norm = ElasticBatchNorm(widest, shape.blocks)
        self.gate = ElasticGate(widest, shape.squeezed, shape.blocks) if shape.squeezed else None
        self.project = nn.Parameter(torch.empty(shape.width, widest, 1, 1))
        self.project_norm = ElasticBatchNorm(shape.width)

    def expand_for(self, shape: BottleneckShape, expansion: int) -> Tensor:
        """Return the expanding weights of the first expanded channels; only of a layer that expands apart."""
        return first(first(self.expand, shape.hidden(expansion)), shape.channels_in, dim=1)

    def spatial_for(self, shape: BottleneckShape, layer: Layer) -> Tensor:
        """Return the spatial weights of the expanded channels."""
        hidden = shape.hidden(layer.expansion)
        return self.spatial.weight_for(layer.kernel, first_of_blocks(self.spatial.weight, hidden, self.shape.blocks, active=shape.blocks))

    def project_for(self, shape: BottleneckShape, expansion: int) -> Tensor:
        """Return the projecting weights of the expanded channels."""
        rows = first(self.project, shape.width)
        return first_of_blocks(rows, shape.hidden(expansion), self.shape.blocks, dim=1, active=shape.blocks)

    def expanded_parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the parameters that have a row for each expanded channel, and of those that have a column."""
        rows: tuple[str, ...] = ("spatial.weight", "spatial_norm.weight", "spatial_norm.bias")
        columns: tuple[str, ...] = ("project",)
        if self.shape.expands_apart:
            rows += ("expand", "expand_norm.weight", "expand_norm.bias")
        if self.gate is not None:
            rows += ("gate.excite", "gate.excite_bias")
            columns += ("gate.squeeze",)
        return rows, columns

    def reading_parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See ``automl.models.layers.ElasticLayer``; a channel that has filters of its own has several rows or columns, side by side."""
        return ((), ("expand",)) if self.shape.expands_apart else self.expanded_parts()

    def weights_for(self, shape: BottleneckShape, layer: Layer) -> tuple[Tensor, ...]:
        """Return all weights that the layer has with this shape, kernel and expansion, its normalisations' among them."""
        hidden = shape.hidden(layer.expansion)
        weights = [self.spatial_for(shape, layer), self.project_for(shape, layer.expansion)]
        weights += [*self.spatial_norm.affine_for(hidden, shape.blocks), *self.project_norm.affine_for(shape.width)]
        if shape.expands_apart:
            weights += [self.expand_for(shape, layer.expansion), *self.expand_norm.affine_for(hidden)]
        if self.gate is not None:
            weights += self.gate.weights_for(shape, hidden)
        return tuple(weights)

    def forward(self, x_BCHW: Tensor, shape: BottleneckShape, layer: Layer) -> Tensor:
        """Return the layer's output with the active shape, kernel and expansion."""
        y_BEHW = x_BCHW
        if shape.expands_apart:
            y_BEHW = activated(self.expand_norm(F.conv2d(x_BCHW, self.expand_for(shape, layer.expansion))), shape.activation)
        groups = shape.groups(shape.hidden(layer.expansion))
        y_BEHW = convolve(y_BEHW, self.spatial_for(shape, layer), shape.stride, groups).contiguous(memory_format=torch.channels_last)
        y_BEHW = activated(self.spatial_norm(y_BEHW, shape.blocks), shape.activation)
        if self.gate is not None:
            y_BEHW = self.gate(y_BEHW, shape)
        y_BOHW: Tensor = self.project_norm(F.conv2d(y_BEHW, self.project_for(shape, layer.expansion)))
        return x_BCHW + y_BOHW if is_residual(shape) else y_BOHW

    @torch.no_grad()
    def extract(self, shape: BottleneckShape, layer: Layer) -> "PlainBottleneck":
        """Return the layer with the active shape, kernel and expansion as a plain one that computes the same bits in evaluation mode."""
        plain = PlainBottleneck(shape, layer).to(self.project.device)
        if shape.expands_apart:
            plain.expand.weight.copy_(self.expand_for(shape, layer.expansion))
            self.expand_norm.copy_to(plain.expand_norm)
        plain.spatial.weight.copy_(self.spatial_for(shape, layer))
        self.spatial_norm.copy_to(plain.spatial_norm, shape.blocks)
        if self.gate is not None:
            assert plain.gate is not None
            parameters = (plain.gate.squeeze.weight, plain.gate.squeeze.bias, plain.gate.excite.weight, plain.gate.excite.bias)
            for parameter, weight in zip(parameters, self.gate.weights_for(shape, shape.hidden(layer.expansion)), strict=True):
                parameter.copy_(weight)
        plain.project.weight.copy_(self.project_for(shape, layer.expansion))
        self.project_norm.copy_to(plain.project_norm)
        return plain.eval()


class PlainBottleneck(nn.Module):
    """One choice of an elastic bottleneck, of torch's own modules."""

    def __init__(self, shape: BottleneckShape, layer: Layer) -> None:
        super().__init__()
        hidden, kernel = shape.hidden(layer.expansion), layer.kernel
        # Without torch's own first weights, which would come from the global generator.
        if shape.expands_apart:
            self.expand = skip_init(nn.Conv2d, shape.channels_in, hidden, 1, bias=False)
            self.expand_norm = nn.BatchNorm2d(hidden, eps=BATCH_NORM_EPSILON)
        self.spatial = skip_init(
            nn.Conv2d,
            hidden if shape.expands_apart else shape.channels_in,
            hidden,
            kernel,
            shape.stride,
            kernel // 2,
            groups=shape.groups(hidden),
            bias=False,
        )
        self.spatial_norm = nn.BatchNorm2d(hidden, eps=BATCH_NORM_EPSILON)
        self.gate = PlainGate(hidden, shape.squeezed) if shape.squeezed else None
        self.project = skip_init(nn.Conv2d, hidden, shape.width, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(shape.width, eps=BATCH_NORM_EPSILON)
        self.expands_apart, self.is_residual, self.activation = shape.expands_apart, is_residual(shape), shape.activation

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return what the elastic layer returns for this choice."""
        y_BEHW = activated(self.expand_norm(self.expand(x_BCHW)), self.activation) if self.expands_apart else x_BCHW
        y_BEHW = self.spatial(y_BEHW).contiguous(memory_format=torch.channels_last)
        y_BEHW = activated(self.spatial_norm(y_BEHW), self.activation)
        if self.gate is not None:
            y_BEHW = self.gate(y_BEHW)
        y_BOHW: Tensor = self.project_norm(self.project(y_BEHW))
        return x_BCHW + y_BOHW if self.is_residual else y_BOHW


def activated(x_BCHW: Tensor, activation: Activation) -> Tensor:
    """Return an activation's values."""
    return F.hardswish(x_BCHW) if activation == "hard-swish" else F.relu(x_BCHW)
