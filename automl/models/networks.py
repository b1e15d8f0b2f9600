"""Which network a search space is of."""

import torch

from automl.models.classifier import Classifier
from automl.models.stereo import Stereo
from automl.models.supernet import Supernet
from automl.spaces.space import SearchSpace


def build(space: SearchSpace, device: torch.device | str = "cpu") -> Supernet:
    """Return the supernet of ``space`` on ``device``, its weights all zero until ``initialise`` or ``load``."""
    return Stereo(space, device) if space.task == "stereo" else Classifier(space, device)
