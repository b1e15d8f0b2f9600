"""Elastic bottlenecks: layers whose spatial convolution works on the expanded channels, with squeeze and excitation where their shape says.

As in ``automl.models.layers``, ``*_for`` methods return the weights of one choice, and there is no other way to them.

Shapes: B batch, C channels in, E expanded channels, S squeezed channels, O channels out, H and W height and width, K side of a kernel.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from automl.models.depthwise import convolve
from automl.models.layers import BATCH_NORM_EPSILON, ElasticBatchNorm, ElasticSpatial, first_of_blocks, is_residual
from automl.spaces.shapes import BottleneckShape
from automl.spaces.units import Activation, Layer


class ElasticGate(nn.Module):
    """Squeeze and excitation (arXiv:1709.01507): a weight from 0 to 1 for each expanded channel, made of the means of all of them."""

    def __init__(self, channels: int, squeezed: int, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.squeeze = nn.Parameter(torch.empty(squeezed, channels, 1, 1))
        self.squeeze_bias = nn.Parameter(torch.empty(squeezed))
        self.excite = nn.Parameter(torch.empty(channels, squeezed, 1, 1))
        self.excite_bias = nn.Parameter(torch.empty(channels))

    def weights_for(self, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return squeezing weights and biases, and exciting ones, of the active channels."""
        squeeze = first_of_blocks(self.squeeze, channels, self.blocks, dim=1)
        excite, bias = (first_of_blocks(each, channels, self.blocks) for each in (self.excite, self.excite_bias))
        return squeeze, self.squeeze_bias, excite, bias

    def forward(self, x_BEHW: Tensor) -> Tensor:
        """Return the channels of ``x_BEHW`` weighed."""
        squeeze, squeeze_bias, excite, excite_bias = self.weights_for(x_BEHW.shape[1])
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
        self.spatial = ElasticSpatial(spatial_in, widest, kernels, shape.stride, shape.groups(widest))
        self.spatial_norm = ElasticBatchNorm(widest, shape.blocks)
        self.gate = ElasticGate(widest, shape.squeezed, shape.blocks) if shape.squeezed else None
        self.project = nn.Parameter(torch.empty(shape.width, widest, 1, 1))
        self.project_norm = ElasticBatchNorm(shape.width)

    def expand_for(self, expansion: int) -> Tensor:
        """Return the first ``expansion`` parts of the expanding weights; only of a layer that expands apart."""
        return self.expand[: self.shape.hidden(expansion)]

    def spatial_for(self, layer: Layer) -> Tensor:
        """Return the spatial weights of the expanded channels."""
        filters = first_of_blocks(self.spatial.weight, self.shape.hidden(layer.expansion), self.shape.blocks)
        return self.spatial.weight_for(layer.kernel, filters)

    def project_for(self, expansion: int) -> Tensor:
        """Return the projecting weights of the expanded channels."""
        return first_of_blocks(self.project, self.shape.hidden(expansion), self.shape.blocks, dim=1)

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

    def weights_for(self, layer: Layer) -> tuple[Tensor, ...]:
        """Return all weights that the layer has with this kernel and expansion, its normalisations' among them."""
        hidden = self.shape.hidden(layer.expansion)
        weights = [self.spatial_for(layer), self.project_for(layer.expansion)]
        weights += [*self.spatial_norm.affine_for(hidden), *self.project_norm.affine_for(self.shape.width)]
        if self.shape.expands_apart:
            weights += [self.expand_for(layer.expansion), *self.expand_norm.affine_for(hidden)]
        if self.gate is not None:
            weights += self.gate.weights_for(hidden)
        return tuple(weights)

    def forward(self, x_BCHW: Tensor, layer: Layer) -> Tensor:
        """Return the layer's output with the active kernel and expansion."""
        shape, y_BEHW = self.shape, x_BCHW
        if shape.expands_apart:
            y_BEHW = activated(self.expand_norm(F.conv2d(x_BCHW, self.expand_for(layer.expansion))), shape.activation)
        groups = shape.groups(shape.hidden(layer.expansion))
        y_BEHW = convolve(y_BEHW, self.spatial_for(layer), shape.stride, groups)
        y_BEHW = activated(self.spatial_norm(y_BEHW.contiguous(memory_format=torch.channels_last)), shape.activation)
        if self.gate is not None:
            y_BEHW = self.gate(y_BEHW)
        y_BOHW: Tensor = self.project_norm(F.conv2d(y_BEHW, self.project_for(layer.expansion)))
        return x_BCHW + y_BOHW if is_residual(shape) else y_BOHW

    @torch.no_grad()
    def extract(self, layer: Layer) -> "PlainBottleneck":
        """Return the layer with the active kernel and expansion as a plain one that computes the same bits in evaluation mode."""
        plain = PlainBottleneck(self.shape, layer).to(self.project.device)
        if self.shape.expands_apart:
            plain.expand.weight.copy_(self.expand_for(layer.expansion))
            self.expand_norm.copy_to(plain.expand_norm)
        plain.spatial.weight.copy_(self.spatial_for(layer))
        self.spatial_norm.copy_to(plain.spatial_norm)
        if self.gate is not None:
            assert plain.gate is not None
            parameters = (plain.gate.squeeze.weight, plain.gate.squeeze.bias, plain.gate.excite.weight, plain.gate.excite.bias)
            for parameter, weight in zip(parameters, self.gate.weights_for(self.shape.hidden(layer.expansion)), strict=True):
                parameter.copy_(weight)
        plain.project.weight.copy_(self.project_for(layer.expansion))
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
