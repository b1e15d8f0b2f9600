"""The classifier: five searchable units whose first convolutions have stride 2, then a mean over the map and a linear head.

There is no stem: the first unit reads the image. In a large one a 1 x 1 convolution widens the last map before the mean.

Shapes: B batch, C channels, H and W height and width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from manta_swarm.automl.models.bottleneck import activated
from manta_swarm.automl.models.layers import ElasticBatchNorm, batch_norm, first
from manta_swarm.automl.models.supernet import Supernet, draw, plain_units
from manta_swarm.automl.spaces.cost import num_features
from manta_swarm.automl.spaces.space import Architecture, SearchSpace


class PlainWidening(nn.Module):
    """The 1 x 1 convolution, normalisation and activation that every architecture of a space with a wide head has."""

    def __init__(self, space: SearchSpace, channels: int, *, is_elastic: bool) -> None:
        super().__init__()
        self.activation = space.units[-1].activation
        # Without torch's own first weights, which would come from the global generator.
        self.widen = skip_init(nn.Conv2d, channels, space.head_width, 1, bias=False)
        self.norm = batch_norm(space.head_width, is_elastic=is_elastic)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the map with the head's width."""
        return activated(self.norm(self.widen(x_BCHW)), self.activation)


class ElasticWidening(PlainWidening):
    """A widening, elastic in the channels that come in: as many as the last unit hands on."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space, space.widths[-1], is_elastic=True)

    def widen_for(self, channels: int) -> Tensor:
        """Return the weights of the first channels in."""
        return first(self.widen.weight, channels, dim=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the map with the head's width."""
        return activated(self.norm(F.conv2d(x_BCHW, self.widen_for(x_BCHW.shape[1]))), self.activation)

    @torch.no_grad()
    def copy_to(self, plain: PlainWidening) -> None:
        """Give a plain one the weights and running statistics."""
        plain.widen.weight.copy_(self.widen_for(plain.widen.in_channels))
        assert isinstance(self.norm, ElasticBatchNorm)
        assert isinstance(plain.norm, nn.BatchNorm2d)
        self.norm.copy_to(plain.norm)


class Classifier(Supernet):
    """The classifier supernet."""

    def __init__(self, space: SearchSpace, device: torch.device | str = "cpu") -> None:
        super().__init__(space)
        self.head_weight = nn.Parameter(torch.empty(space.num_classes, num_features(space, space.widths[-1])))
        self.head_bias = nn.Parameter(torch.empty(space.num_classes))
        self.widening = ElasticWidening(space) if space.head_width else None
        self._flatten(device)

    def _initialise_fixed(self, generator: torch.Generator) -> None:
        if self.widening is not None:
            draw(self.widening.widen.weight, generator)
        draw(self.head_weight, generator)
        self.head_bias.zero_()

    def forward(self, x_BCHW: Tensor, architecture: Architecture) -> Tensor:
        """Return the logits (B, classes)."""
        for unit in range(len(self.units)):
            x_BCHW = self.run_unit(unit, x_BCHW, architecture)
        if self.widening is not None:
            x_BCHW = self.widening(x_BCHW)
        return F.linear(x_BCHW.mean((2, 3)), self.head_for(x_BCHW.shape[1]), self.head_bias)

    def head_for(self, features: int) -> Tensor:
        """Return the linear layer's weights of the first features."""
        return first(self.head_weight, features, dim=1)

    def _head_columns(self) -> tuple[str, ...]:
        return ("head_weight",) if self.widening is None else ("widening.widen.weight",)

    def searchable_weights_for(self, architecture: Architecture) -> tuple[Tensor, ...]:
        """See ``Supernet``: what reads the last unit may have fewer columns, too."""
        channels = self.space.widths_of(architecture)[-1]
        reads = self.head_for(channels) if self.widening is None else self.widening.widen_for(channels)
        return (*super().searchable_weights_for(architecture), reads)

    @torch.no_grad()
    def extract(self, architecture: Architecture) -> "PlainClassifier":
        """Return the subnet as a plain network in evaluation mode, with copies of its weights and running statistics."""
        plain = PlainClassifier(self.space, architecture).to(self.head_bias.device)
        plain.units = nn.ModuleList(self.extract_unit(unit, architecture) for unit in range(len(self.units)))
        if self.widening is not None:
            assert plain.widening is not None
            self.widening.copy_to(plain.widening)
        plain.head.weight.copy_(self.head_for(plain.head.in_features))
        plain.head.bias.copy_(self.head_bias)
        return plain.eval()


class PlainClassifier(nn.Module):
    """One subnet of the classifier, of torch's own modules."""

    def __init__(self, space: SearchSpace, architecture: Architecture) -> None:
        super().__init__()
        self.units = plain_units(space, architecture)
        channels = space.widths_of(architecture)[-1]
        self.widening = PlainWidening(space, channels, is_elastic=False) if space.head_width else None
        self.head = skip_init(nn.Linear, num_features(space, channels), space.num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the logits (B, classes)."""
        for unit in self.units:
            x_BCHW = unit(x_BCHW)
        if self.widening is not None:
            x_BCHW = self.widening(x_BCHW)
        logits: Tensor = self.head(x_BCHW.mean((2, 3)))
        return logits
