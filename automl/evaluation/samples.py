"""How good subnets are on each held-out sample by itself: what a search ranks by, and what standard errors and intervals are made of.

A sample's loss is a whole number of ten-thousandths, so that everything made of losses is arithmetic of integers, the same everywhere.
Accuracy has few values, and many subnets share one; cross-entropy, a proper score, tells them apart by how sure each is of what it says.

Shapes: B samples of a batch, K classes, H and W height and width.
"""

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.dataset import STEREO, EvaluationSet
from manta_swarm.automl.evaluation.held_out import Quality, calibrate, outputs_of
from manta_swarm.automl.evaluation.metrics import DisparityErrors, disparity_errors
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.spaces.space import Architecture

LOSS_UNIT = 10_000
MAX_LOSS = 1 << 20  # no sample counts for more than 105 nats or pixels

_BATCH = 128


@dataclass(frozen=True, slots=True)
class Measured:
    """One subnet on a part of the held-out data."""

    quality: Quality  # classification: "accuracy" and "loss" in nats; stereo: "epe", "d1" and "bad3"
    losses: "array[int]"  # of each sample, in 1 / LOSS_UNIT: cross-entropy in nats, or the mean error of a window's disparities in pixels
    wrong: "array[int]"  # classification: which samples got a wrong class, ascending; stereo: none

    @property
    def loss(self) -> float:
        """The mean over all samples, in nats or pixels; lower is better."""
        return sum(self.losses) / (len(self.losses) * LOSS_UNIT)


@torch.no_grad()
def evaluate_samples(supernet: Supernet, dataset: EvaluationSet, architecture: Architecture, part: str, precision: str = FP32) -> Measured:
    """Return how good a subnet is on a part of the held-out data, its BatchNorm recalibrated first, all computed in a precision.

    A stereo window none of whose disparities is known is no sample.
    """
    calibrate(supernet, dataset, architecture, precision=precision)
    losses, wrong = array("i"), array("i")
    errors, total = DisparityErrors(), 0.0
    for batch in dataset.held_out_batches(architecture.resolution, _BATCH, part):
        result = outputs_of(supernet, batch.inputs, architecture, precision).cpu()
        if dataset.task == STEREO:
            errors += disparity_errors(result, batch.targets)
            loss_B = _window_errors(result, batch.targets)
        else:
            logits_BK = result.double()
            loss_B = F.cross_entropy(logits_BK, batch.targets, reduction="none")
            total += float(loss_B.sum())
            is_wrong_B = logits_BK.argmax(1) != batch.targets
            wrong.extend((is_wrong_B.nonzero().flatten() + len(losses)).tolist())
        losses.extend(_whole(loss_B))
    if dataset.task == STEREO:
        return Measured(errors.metrics(), losses, wrong)
    return Measured({"accuracy": (len(losses) - len(wrong)) / len(losses), "loss": total / len(losses)}, losses, wrong)


def _window_errors(prediction_BHW: Tensor, disparity_BHW: Tensor) -> Tensor:
    """Return the mean absolute error over the known pixels of each window that has any."""
    is_valid_BHW = disparity_BHW >= 0
    error_BHW = torch.where(is_valid_BHW, (prediction_BHW.double() - disparity_BHW.double()).abs(), 0.0)
    count_B = is_valid_BHW.flatten(1).sum(1)
    return (error_BHW.flatten(1).sum(1) / count_B)[count_B > 0]


def _whole(loss_B: Tensor) -> list[int]:
    """Return the losses in whole units; what is no number, which the quality shows as well, counts as the largest."""
    units: list[int] = (loss_B * LOSS_UNIT).nan_to_num(MAX_LOSS, MAX_LOSS).clamp(0, MAX_LOSS).round().long().tolist()
    return units
