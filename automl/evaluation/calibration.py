"""BatchNorm recalibration: the running statistics of one architecture, from training samples, with the shared weights as they are."""

from collections.abc import Iterable

import torch
from torch import Tensor

from manta_swarm.automl.models.layers import ElasticBatchNorm
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.rounding import forward_in
from manta_swarm.automl.spaces.space import Architecture


@torch.no_grad()
def recalibrate(supernet: Supernet, architecture: Architecture, batches: Iterable[Tensor], precision: str = FP32) -> None:
    """Set the running statistics to the mean over batches of training inputs, and put the supernet into evaluation mode.

    They hold for ``architecture`` alone, until the next call. The weights do not change.

    Args:
        supernet: whose statistics to set.
        architecture: which of its subnets.
        batches: of equal size, each (B, C, H, W) at the architecture's resolution, on the supernet's device.
        precision: what it computes in (``automl.precisions``).
    """
    norms = [module for module in supernet.modules() if isinstance(module, ElasticBatchNorm)]
    supernet.train()
    try:
        for index, inputs in enumerate(batches):
            for norm in norms:
                norm.momentum = 1.0 / (index + 1)  # makes the running statistics the plain mean so far
            with forward_in(precision, inputs.device):
                supernet(inputs.contiguous(memory_format=torch.channels_last), architecture)
    finally:
        for norm in norms:
            norm.momentum = None
    supernet.eval()
