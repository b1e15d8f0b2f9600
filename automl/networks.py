"""Which network a search space is of."""

import torch

from automl.classifier import Classifier
from automl.space import SearchSpace
from automl.stereo import Stereo
from automl.supernet import Supernet


def build(space: SearchSpace, device: torch.device | str = "cpu") -> Supernet:
    """Return the supernet of ``space`` on ``device``, its weights all zero until ``initialise`` or ``load``."""
    return Stereo(space, device) if space.task == "stereo" else Classifier(space, device)
