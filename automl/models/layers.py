"""Elastic layers: weights for the largest choice, and the slices and transforms that cut a smaller one out of them.

``*_for`` methods return the weights of one choice; the forward pass and ``extract`` have no other way to them. Nothing here knows
which choice is made when. What they are given of it: a shape, which says how many channels come in and go on (``LayerShape.narrowed``;
a layer's own shape is the widest), and a ``Layer``.

Shapes: B batch, C channels in, E expanded channels, O channels out, H and W height and width, K side of a kernel.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from manta_swarm.automl.models.gradients import convolve
from manta_swarm.automl.models.linked import SiteLink, linked_batch_norm
from manta_swarm.automl.models.norms import can_normalise, can_project, normalised, projected
from manta_swarm.automl.spaces.shapes import LayerShape
from manta_swarm.automl.spaces.units import Layer

BATCH_NORM_EPSILON = 1e-5


class ElasticSpatial(nn.Module):
    """The weights of a layer's K x K convolution: depthwise, or dense where it makes its channels of an image."""

    def __init__(self, channels: int, fan_in: int, kernels: tuple[int, ...]) -> None:
        """Build it for so many channels, each made of ``fan_in`` of those that come in."""
        super().__init__()
        self.kernels = kernels[::-1]
        self.weight = nn.Parameter(torch.empty(channels, fan_in, kernels[-1], kernels[-1]))
        # One matrix a step down, shared by all channels: from the centre of the next larger kernel (arXiv:1908.09791, section 3.3).
        self.transforms = nn.ParameterList(torch.empty(small**2, small**2) for small in self.kernels[1:])

    def weight_for(self, kernel: int, weight: Tensor | None = None) -> Tensor:
        """Return the weights of ``kernel``: the centre of the next larger kernel, transformed, and so on from the largest down.

        ``weight``: the part of the largest kernels that is wanted, if not all.
        """
        weight = self.weight if weight is None else weight
        for (large, small), transform in zip(pairwise(self.kernels), self.transforms, strict=True):
            if kernel == large:
                break
            margin = (large - small) // 2
            centre = weight[:, :, margin : margin + small, margin : margin + small]
            weight = F.linear(centre.flatten(2), transform).view_as(centre)
        return weight


class ElasticBatchNorm(nn.Module):
    """BatchNorm of the first channels: by the batch in training, by the running statistics in evaluation.

    The running statistics belong to one architecture at a time and never to the shared state: only a calibration, which sets ``momentum``,
    writes them (``automl.evaluation.held_out``). With a ``link`` the batch is one of two halves, the other of which is at its end.

    The channels consist of ``blocks`` of equal length, and the first ones are those of each block, of the first of these blocks if not of
    all.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int, blocks: int = 1) -> None:
        super().__init__()
        self.blocks = blocks
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.zeros(channels), persistent=False)
        self.register_buffer("running_variance", torch.ones(channels), persistent=False)
        self.momentum: float | None = None
        self.link: SiteLink | None = None

    def affine_for(self, channels: int, active: int | None = None) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the first channels; ``active``: of how many blocks they are, if not of all."""
        weight, bias = (first_of_blocks(each, channels, self.blocks, active=active) for each in (self.weight, self.bias))
        return weight, bias

    @property
    def is_of_batch(self) -> bool:
        """Whether it normalises by what one batch here is, and keeps no statistics of it."""
        return self.training and self.momentum is None and self.link is None

    def forward(self, x_BCHW: Tensor, active: int | None = None) -> Tensor:
        """Return the channels of ``x_BCHW`` normalised; ``active``: see ``affine_for``."""
        channels = x_BCHW.shape[1]
        weight, bias = self.affine_for(channels, active)
        if self.link is not None:
            return linked_batch_norm(x_BCHW, weight, bias, self.link, BATCH_NORM_EPSILON)
        if self.is_of_batch:
            if can_normalise(x_BCHW):
                return normalised(x_BCHW, weight, bias, BATCH_NORM_EPSILON)
            return F.batch_norm(x_BCHW, None, None, weight, bias, training=True, eps=BATCH_NORM_EPSILON)
        mean, variance = self.running_mean[:channels], self.running_variance[:channels]
        momentum = self.momentum or 0.0
        return F.batch_norm(x_BCHW, mean, variance, weight, bias, training=self.training, momentum=momentum, eps=BATCH_NORM_EPSILON)

    @torch.no_grad()
    def copy_to(self, norm: nn.BatchNorm2d, active: int | None = None) -> None:
        """Give a plain BatchNorm the first channels, as many as it has, with their running statistics; ``active``: see ``affine_for``."""
        channels = norm.num_features
        assert norm.running_mean is not None
        assert norm.running_var is not None
        weight, bias = self.affine_for(channels, active)
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
        norm.running_mean.copy_(self.running_mean[:channels])
        norm.running_var.copy_(self.running_variance[:channels])


def batch_norm(channels: int, *, is_elastic: bool) -> nn.Module:
    """Return the normalisation of a supernet, or the plain one of a network that was cut out of it."""
    return ElasticBatchNorm(channels) if is_elastic else nn.BatchNorm2d(channels, eps=BATCH_NORM_EPSILON)


class ElasticLayer(nn.Module):
    """Spatial K x K, expand 1 x 1, project 1 x 1; with a residual where the shape stays.

    The spatial convolution comes first and on the narrow side, so that it is the first convolution of its unit and carries the
    unit's stride; it is linear up to the expansion, whose BatchNorm takes care of its scale.
    """

    def __init__(self, shape: LayerShape, kernels: tuple[int, ...], expansions: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        widest = shape.spatial * expansions[-1]
        self.spatial = ElasticSpatial(shape.spatial, 1 if shape.is_depthwise else shape.channels_in, kernels)
        self.expand = nn.Parameter(torch.empty(widest, shape.spatial, 1, 1))
        self.expand_norm = ElasticBatchNorm(widest)
        self.project = nn.Parameter(torch.empty(shape.width, widest, 1, 1))
        self.project_norm = ElasticBatchNorm(shape.width)

    def spatial_for(self, shape: LayerShape, kernel: int) -> Tensor:
        """Return the spatial weights of the channels that are made of those that come in."""
        return self.spatial.weight_for(kernel, first(self.spatial.weight, shape.spatial))

    def expand_for(self, shape: LayerShape, expansion: int) -> Tensor:
        """Return the first ``expansion`` parts of the expanding weights."""
        return first(first(self.expand, shape.hidden(expansion)), shape.spatial, dim=1)

    def project_for(self, shape: LayerShape, expansion: int) -> Tensor:
        """Return the projecting weights of the channels that ``expand_for`` makes."""
        return first(first(self.project, shape.width), shape.hidden(expansion), dim=1)

    def expanded_parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the parameters that have a row for each expanded channel, and of those that have a column."""
        return ("expand", "expand_norm.weight", "expand_norm.bias"), ("project",)

    def reading_parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the parameters that have a row for each channel that comes in, and of those that have a column.

        Only of a layer that reads a unit's channels: its spatial convolution is depthwise.
        """
        return ("spatial.weight",), ("expand",)

    def weights_for(self, shape: LayerShape, layer: Layer) -> tuple[Tensor, ...]:
        """Return all weights that the layer has with this shape, kernel and expansion, its normalisations' among them."""
        expand, project = self.expand_for(shape, layer.expansion), self.project_for(shape, layer.expansion)
        norms = (*self.expand_norm.affine_for(len(expand)), *self.project_norm.affine_for(len(project)))
        return (self.spatial_for(shape, layer.kernel), expand, project, *norms)

    def forward(self, x_BCHW: Tensor, shape: LayerShape, layer: Layer) -> Tensor:
        """Return the layer's output with the active shape, kernel and expansion."""
        groups = shape.channels_in if shape.is_depthwise else 1
        y_BCHW = convolve(x_BCHW, self.spatial_for(shape, layer.kernel), shape.stride, groups)
        y_BCHW = y_BCHW.contiguous(memory_format=torch.channels_last)  # an image of one channel has no layout to hand on
        weights = self.expand_for(shape, layer.expansion), self.project_for(shape, layer.expansion)
        y_BOHW: Tensor = self.project_norm(self._expanded(y_BCHW, *weights))
        # In place, here and below: no normalisation needs what it made once more, and memory is what these steps wait for.
        return y_BOHW.add_(x_BCHW) if is_residual(shape) else y_BOHW

    def _expanded(self, x_BCHW: Tensor, expand: Tensor, project: Tensor) -> Tensor:
        """Return what is projected, before its normalisation."""
        if self.expand_norm.is_of_batch and can_project(x_BCHW, len(expand)):
            return projected(x_BCHW, expand, *self.expand_norm.affine_for(len(expand)), project, BATCH_NORM_EPSILON)
        return F.conv2d(F.relu(self.expand_norm(F.conv2d(x_BCHW, expand)), inplace=True), project)

    @torch.no_grad()
    def extract(self, shape: LayerShape, layer: Layer) -> "PlainLayer":
        """Return the layer with the active shape, kernel and expansion as a plain one that computes the same bits in evaluation mode."""
        plain = PlainLayer(shape, layer).to(self.expand.device)
        plain.spatial.weight.copy_(self.spatial_for(shape, layer.kernel))
        plain.expand.weight.copy_(self.expand_for(shape, layer.expansion))
        plain.project.weight.copy_(self.project_for(shape, layer.expansion))
        self.expand_norm.copy_to(plain.expand_norm)
        self.project_norm.copy_to(plain.project_norm)
        return plain.eval()


class PlainLayer(nn.Module):
    """One choice of an elastic layer, of torch's own modules."""

    def __init__(self, shape: LayerShape, layer: Layer) -> None:
        super().__init__()
        hidden = shape.spatial * layer.expansion
        groups = shape.channels_in if shape.is_depthwise else 1
        # Without torch's own first weights, which would come from the global generator.
        self.spatial = skip_init(
            nn.Conv2d, shape.channels_in, shape.spatial, layer.kernel, shape.stride, layer.kernel // 2, groups=groups, bias=False
        )
        self.expand = skip_init(nn.Conv2d, shape.spatial, hidden, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(hidden, eps=BATCH_NORM_EPSILON)
        self.project = skip_init(nn.Conv2d, hidden, shape.width, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(shape.width, eps=BATCH_NORM_EPSILON)
        self.is_residual = is_residual(shape)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return what the elastic layer returns for this choice."""
        y_BCHW = self.spatial(x_BCHW).contiguous(memory_format=torch.channels_last)
        y_BEHW = F.relu(self.expand_norm(self.expand(y_BCHW)))
        y_BOHW: Tensor = self.project_norm(self.project(y_BEHW))
        return x_BCHW + y_BOHW if self.is_residual else y_BOHW


def first(weight: Tensor, count: int, dim: int = 0) -> Tensor:
    """Return the first ``count`` slices of a weight along ``dim``; where it has no more, itself, whose gradient need not be filled up."""
    return weight if count == weight.shape[dim] else weight.narrow(dim, 0, count)


def first_of_blocks(weight: Tensor, count: int, blocks: int, dim: int = 0, active: int | None = None) -> Tensor:
    """Return ``count`` slices of a weight along ``dim``: the first ones of each of its blocks, equally many of each.

    ``active``: of how many of the blocks, the first ones, if not of all.
    """
    if blocks == 1 or count == weight.shape[dim]:
        return first(weight, count, dim)
    active = active or blocks
    in_blocks: Tensor = first(weight.unflatten(dim, (blocks, -1)), active, dim)
    return first(in_blocks, count // active, dim + 1).flatten(dim, dim + 1)


def is_residual(shape: LayerShape) -> bool:
    """Return whether a layer adds its input to its output."""
    return shape.stride == 1 and shape.channels_in == shape.width
