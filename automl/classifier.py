"""The classifier supernet: five searchable units whose first convolutions have stride 2, then a mean over the map and a linear head.

There is no stem: the first unit reads the image. All weights live in one flat vector, and all gradients in another, so that
loading a state or taking a gradient is one copy. Weights are uninitialised until ``initialise`` or ``load``.

Shapes: B batch, C channels, H and W height and width, N all weights.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from automl.layers import ElasticBatchNorm, ElasticLayer, ElasticSpatial
from automl.space import Architecture, SearchSpace


class Supernet(nn.Module):
    """The shared weights of every architecture of a search space."""

    def __init__(self, space: SearchSpace, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.space = space
        self.units = nn.ModuleList()
        channels_in, spatial = space.image_channels, space.stem_width
        for width in space.widths:
            unit = nn.ModuleList()
            for index in range(space.depths[-1]):
                unit.append(ElasticLayer(channels_in, spatial, width, space.kernels, space.expansions, stride=2 if index == 0 else 1))
                channels_in = spatial = width
            self.units.append(unit)
        self.head_weight = nn.Parameter(torch.empty(space.num_classes, space.widths[-1]))
        self.head_bias = nn.Parameter(torch.empty(space.num_classes))
        self.to(device)
        self.flat_weights_N, self.flat_gradient_N = self._flatten()

    def _flatten(self) -> tuple[Tensor, Tensor]:
        """Make every weight and gradient a view into two flat vectors; the order of ``parameters()`` is the order of the state."""
        count = sum(parameter.numel() for parameter in self.parameters())
        device = self.head_bias.device
        weights_N, gradient_N = torch.zeros(count, device=device), torch.zeros(count, device=device)
        start = 0
        for parameter in self.parameters():
            part = slice(start, start + parameter.numel())
            parameter.data = weights_N[part].view(parameter.shape)
            parameter.grad = gradient_N[part].view(parameter.shape)
            start = part.stop
        return weights_N, gradient_N

    @property
    def num_weights(self) -> int:
        """N: the length of a state's parameters."""
        return self.flat_weights_N.numel()

    def load(self, weights_N: Tensor) -> None:
        """Copy a state's parameters in."""
        if weights_N.shape != self.flat_weights_N.shape:
            raise ValueError(f"{self.space.name} has {self.num_weights} weights, not {tuple(weights_N.shape)}")
        self.flat_weights_N.copy_(weights_N)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw first weights. Not the same bits on every machine: only the maker of a run's first state may call it."""
        for module in self.modules():
            if isinstance(module, ElasticBatchNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()
            elif isinstance(module, ElasticSpatial):
                _draw(module.weight, generator)
                for transform in module.transforms:
                    transform.copy_(torch.eye(transform.shape[0]))
            elif isinstance(module, ElasticLayer):
                _draw(module.expand, generator)
                _draw(module.project, generator)
        _draw(self.head_weight, generator)
        self.head_bias.zero_()

    def forward(self, x_BCHW: Tensor, architecture: Architecture) -> Tensor:
        """Return the logits (B, classes) of the subnet that ``architecture`` cuts out."""
        for unit, index, layer in architecture.layers():
            unit_layers = self.units[unit]
            assert isinstance(unit_layers, nn.ModuleList)
            x_BCHW = unit_layers[index](x_BCHW, layer)
        return F.linear(x_BCHW.mean((2, 3)), self.head_weight, self.head_bias)


def _draw(weight: Tensor, generator: torch.Generator) -> None:
    fan_in = weight[0].numel()
    weight.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
