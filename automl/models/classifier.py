"""The classifier: five searchable units whose first convolutions have stride 2, then a mean over the map and a linear head.

There is no stem: the first unit reads the image.

Shapes: B batch, C channels, H and W height and width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from automl.models.supernet import Supernet, draw, plain_units
from automl.spaces.space import Architecture, SearchSpace


class Classifier(Supernet):
    """The classifier supernet."""

    def __init__(self, space: SearchSpace, device: torch.device | str = "cpu") -> None:
        super().__init__(space)
        self.head_weight = nn.Parameter(torch.empty(space.num_classes, space.widths[-1]))
        self.head_bias = nn.Parameter(torch.empty(space.num_classes))
        self._flatten(device)

    def _initialise_fixed(self, generator: torch.Generator) -> None:
        draw(self.head_weight, generator)
        self.head_bias.zero_()

    def forward(self, x_BCHW: Tensor, architecture: Architecture) -> Tensor:
        """Return the logits (B, classes)."""
        for unit in range(len(self.units)):
            x_BCHW = self.run_unit(unit, x_BCHW, architecture)
        return F.linear(x_BCHW.mean((2, 3)), self.head_weight, self.head_bias)

    @torch.no_grad()
    def extract(self, architecture: Architecture) -> "PlainClassifier":
        """Return the subnet as a plain network in evaluation mode, with copies of its weights and running statistics."""
        plain = PlainClassifier(self.space, architecture).to(self.head_bias.device)
        plain.units = nn.ModuleList(self.extract_unit(unit, architecture) for unit in range(len(self.units)))
        plain.head.weight.copy_(self.head_weight)
        plain.head.bias.copy_(self.head_bias)
        return plain.eval()


class PlainClassifier(nn.Module):
    """One subnet of the classifier, of torch's own modules."""

    def __init__(self, space: SearchSpace, architecture: Architecture) -> None:
        super().__init__()
        self.units = plain_units(space, architecture)
        self.head = skip_init(nn.Linear, space.widths[-1], space.num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the logits (B, classes)."""
        for unit in self.units:
            x_BCHW = unit(x_BCHW)
        logits: Tensor = self.head(x_BCHW.mean((2, 3)))
        return logits
