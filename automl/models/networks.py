"""Which network a search space is of."""

import torch

from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import SearchSpace


def build(space: SearchSpace, device: torch.device | str = "cpu") -> Supernet:
    """Return the supernet of ``space`` on ``device``, its weights all zero until ``initialise`` or ``load``."""
    return Stereo(space, device) if space.task == "stereo" else Classifier(space, device)
