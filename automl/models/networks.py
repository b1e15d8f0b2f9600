"""Which network a search space is of, elastic or plain, and the form in which one leaves this project.

Shapes: B batch, C channels, H and W height and width.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from manta_swarm.automl.models.classifier import Classifier, PlainClassifier
from manta_swarm.automl.models.stereo import PlainStereo, Stereo
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture, SearchSpace


def build(space: SearchSpace, device: torch.device | str = "cpu") -> Supernet:
    """Return the supernet of ``space`` on ``device``, its weights all zero until ``initialise`` or ``load``."""
    return Stereo(space, device) if space.task == "stereo" else Classifier(space, device)


def plain_network(space: SearchSpace, architecture: Architecture) -> nn.Module:
    """Return the plain network of an architecture in evaluation mode, with memory for its weights and nothing in it yet."""
    network = PlainStereo(space, architecture) if space.task == "stereo" else PlainClassifier(space, architecture)
    return network.eval()


class Deployed(Protocol):
    """A network as it is exported, whatever runs it."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the probabilities (B, classes) of an image (B, C, H, W), or the disparities (B, H, W) of two views; values from 0 to 1."""


class ProbabilityNetwork(nn.Module):
    """A classifier that ends in a softmax."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        """Return the probabilities (B, classes) of images (B, C, H, W) from 0 to 1."""
        return torch.softmax(self.network(image), 1)


class DisparityNetwork(nn.Module):
    """A stereo network with an input for each view."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the disparities (B, H, W) in pixels of the left view; both are (B, 3, H, W), RGB from 0 to 1."""
        disparity_BHW: Tensor = self.network(torch.cat([left, right], 1))
        return disparity_BHW


def deployed(network: nn.Module, task: str) -> nn.Module:
    """Return a plain network as it is exported: frozen, its inputs apart, probabilities or pixels for an output."""
    whole = DisparityNetwork(network) if task == "stereo" else ProbabilityNetwork(network)
    return whole.eval().requires_grad_(False)
