"""BatchNorm recalibration: the running statistics of one architecture, from training images, with the shared weights as they are."""

import torch
from torch import Tensor

from automl.classifier import Supernet
from automl.layers import ElasticBatchNorm
from automl.space import Architecture


@torch.no_grad()
def recalibrate(supernet: Supernet, architecture: Architecture, images_NCHW: Tensor, batch: int = 256) -> None:
    """Set the running statistics to the mean over batches of training images, and put the supernet into evaluation mode.

    They hold for ``architecture`` alone, until the next call. The weights do not change.
    """
    norms = [module for module in supernet.modules() if isinstance(module, ElasticBatchNorm)]
    supernet.train()
    batches = images_NCHW.tensor_split(max(1, round(len(images_NCHW) / batch)))  # of about equal size: no ragged last one
    try:
        for index, images in enumerate(batches):
            for norm in norms:
                norm.momentum = 1.0 / (index + 1)  # makes the running statistics the plain mean so far
            supernet(images, architecture)
    finally:
        for norm in norms:
            norm.momentum = None
    supernet.eval()
