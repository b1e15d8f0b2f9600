"""How good subnets are, quickly: on a part of the held-out data, with less recalibration, for curves while a training goes on.

``automl.evaluation.held_out`` has the figures to report. Shapes: B samples of a batch, K classes, C channels, H and W height and width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.dataset import CLASSIFICATION, STEREO, Batch, Dataset
from manta_swarm.automl.evaluation.held_out import calibrate, outputs_of
from manta_swarm.automl.evaluation.metrics import disparity_metrics
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import Architecture

MAX_SAMPLES = {CLASSIFICATION: 512, STEREO: 32}
CALIBRATION_SAMPLES = {CLASSIFICATION: 256, STEREO: 32}
_BATCH = {CLASSIFICATION: 32, STEREO: 4}


@dataclass(frozen=True, slots=True)
class QuickEvaluation:
    """The quality of one subnet."""

    quality: float  # accuracy, 0 to 1; or EPE in pixels
    loss: float | None  # mean cross-entropy in nats; None in stereo, where EPE is the loss
    samples: int


@torch.no_grad()
def quick_evaluation(supernet: Supernet, dataset: Dataset, architecture: Architecture) -> QuickEvaluation:
    """Return how good a subnet is; leaves the supernet recalibrated for it."""
    calibrate(supernet, dataset, architecture, CALIBRATION_SAMPLES[dataset.task])
    batches = some_held_out(dataset, architecture.resolution)
    if dataset.task == STEREO:
        pairs = [(answers(supernet, batch.inputs, architecture), batch.targets) for batch in batches]
        return QuickEvaluation(disparity_metrics(pairs)["epe"], None, sum(len(truth) for _, truth in pairs))
    right, loss, total = 0, 0.0, 0
    for batch in batches:
        logits_BK = answers(supernet, batch.inputs, architecture)
        right += int((logits_BK.argmax(1) == batch.targets).sum())
        loss += float(F.cross_entropy(logits_BK, batch.targets, reduction="sum"))
        total += len(batch.targets)
    return QuickEvaluation(right / total, loss / total, total)


def some_held_out(dataset: Dataset, resolution: int) -> Iterator[Batch]:
    """Return held-out batches, ``MAX_SAMPLES`` of the task in all or a few more: the same ones always, spread evenly over the set."""
    stride = max(1, dataset.num_held_out // MAX_SAMPLES[dataset.task])
    return dataset.held_out_batches(resolution, _BATCH[dataset.task], every=stride)


def answers(supernet: Supernet, inputs: Tensor, architecture: Architecture) -> Tensor:
    """Return logits (B, K) or disparities (B, H, W) of a subnet for which the supernet is recalibrated, on the CPU."""
    return outputs_of(supernet, inputs, architecture).cpu()
