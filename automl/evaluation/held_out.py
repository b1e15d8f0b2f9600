"""How good subnets are on held-out data, each with its BatchNorm recalibrated and without fine-tuning; or quickly, on a part of it.

The quick evaluation takes a part of the held-out data and recalibrates less: for curves while a training goes on, not for figures to
report.

Shapes: B samples of a batch, K classes, C channels, H and W height and width.
"""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.dataset import ALL, CLASSIFICATION, STEREO, Batch, Dataset, EvaluationSet
from manta_swarm.automl.devices import forward_in
from manta_swarm.automl.evaluation.metrics import disparity_metrics, median_disparity
from manta_swarm.automl.models.layers import ElasticBatchNorm
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.protocol.errors import UserError

Quality = dict[str, float]  # classification: "accuracy"; stereo: "epe" in pixels, "d1" and "bad3"; shares run from 0 to 1

# Training samples that running statistics are of, and how many of them at once. A pair of views has 16 times the pixels of a digit.
CALIBRATION_SAMPLES = {CLASSIFICATION: 1024, STEREO: 128}
CALIBRATION_BATCH = {CLASSIFICATION: 128, STEREO: 32}
_BATCH = 128

MAX_SAMPLES = {CLASSIFICATION: 512, STEREO: 32}
_QUICK_CALIBRATION_SAMPLES = {CLASSIFICATION: 256, STEREO: 32}
_QUICK_BATCH = {CLASSIFICATION: 32, STEREO: 4}


class QualityReport(TypedDict):
    """How good some subnets are on held-out data, in one figure each."""

    metric: str  # "accuracy" (0 to 1, higher is better) | "epe" (pixels, lower is better)
    largest: float
    smallest: float
    random: list[float]
    baseline: float | None  # stereo: the EPE of the best constant, see ``baseline``


def metric_of(task: str) -> str:
    """Return the key of a task's main figure in a ``Quality``."""
    return "epe" if task == STEREO else "accuracy"


def score(quality: Quality) -> float:
    """Return one number that is higher for a better subnet."""
    return quality["accuracy"] if "accuracy" in quality else -quality["epe"]


@torch.no_grad()
def evaluate(
    supernet: Supernet,
    dataset: EvaluationSet,
    architectures: Sequence[Architecture],
    *,
    part: str = ALL,
    calibration_samples: int | None = None,
    precision: str = FP32,
) -> list[Quality]:
    """Return the quality of each architecture's subnet on a part of the held-out data; leaves the last one's running statistics.

    ``precision``: what is computed in, the statistics among it (``automl.precisions``).
    """
    qualities = []
    for architecture in architectures:
        calibrate(supernet, dataset, architecture, calibration_samples, precision)
        outputs = functools.partial(outputs_of, supernet, architecture=architecture, precision=precision)
        qualities.append(measure(outputs, dataset, architecture.resolution, part=part))
    return qualities


@torch.no_grad()
def outputs_of(supernet: Supernet, inputs: Tensor, architecture: Architecture, precision: str = FP32) -> Tensor:
    """Return fp32 logits (B, K) or disparities (B, H, W), on the supernet's device, which is recalibrated for the architecture."""
    device = supernet.flat_weights_N.device
    with forward_in(precision, device):
        result = supernet(inputs.to(device), architecture)
    outputs: Tensor = result if isinstance(result, Tensor) else result[-1]
    return outputs.float()


def calibrate(
    supernet: Supernet, dataset: EvaluationSet, architecture: Architecture, samples: int | None = None, precision: str = FP32
) -> None:
    """Recalibrate the supernet for ``architecture`` with the data set's fixed choice of training samples, computed in a precision.

    ``samples``: at most so many; None: as many as the task needs (``CALIBRATION_SAMPLES``).
    """
    device = supernet.flat_weights_N.device
    batches = dataset.calibration_batches(
        architecture.resolution, CALIBRATION_BATCH[dataset.task], samples or CALIBRATION_SAMPLES[dataset.task]
    )
    recalibrate(supernet, architecture, (inputs.to(device) for inputs in batches), precision)


@torch.no_grad()
def measure(
    network: Callable[[Tensor], Tensor], dataset: EvaluationSet, resolution: int, *, part: str = ALL, batch: int = _BATCH
) -> Quality:
    """Return the quality of anything that makes logits, probabilities (B, classes) or disparities (B, H, W) of inputs (B, C, H, W).

    Raises:
        UserError: what it makes is not finite: its weights are broken, and any figure would be chance.
    """
    batches = dataset.held_out_batches(resolution, batch, part)
    if dataset.task == STEREO:
        return disparity_metrics((_finite(network(each.inputs)).cpu().view_as(each.targets), each.targets) for each in batches)
    right = total = 0
    for each in batches:
        right += int((_finite(network(each.inputs)).argmax(1).cpu() == each.targets).sum())
        total += len(each.targets)
    return {"accuracy": right / total}


def _finite(outputs: Tensor) -> Tensor:
    if not bool(torch.isfinite(outputs).all()):
        raise UserError("the snapshot's weights are broken: what a subnet computes is no number; take the snapshot of an earlier round")
    return outputs


def check_fit(dataset: Dataset, space: SearchSpace) -> None:
    """Refuse data that a network of ``space`` could not be fed.

    Raises:
        UserError: the data is for another task, or has other channels or classes.
    """
    wanted = (space.task, space.image_channels, space.num_classes)
    given = (dataset.task, dataset.image_channels, dataset.num_classes)
    if given != wanted:
        raise UserError(
            f"{dataset.name} does not fit {space.name}: it is data for {given[0]} with {given[1]} channels and {given[2]} classes, "
            f"not for {wanted[0]} with {wanted[1]} and {wanted[2]}; choose another data set with --data"
        )


def baseline(dataset: Dataset, resolution: int) -> float:
    """Return the EPE of the constant that errs least on the held-out part of a stereo set, its median: what has to be beaten."""

    def truths() -> Iterator[Tensor]:
        return (each.targets for each in dataset.held_out_batches(resolution, _BATCH))

    constant = median_disparity(truths)
    return disparity_metrics((torch.full_like(truth, constant), truth) for truth in truths())["epe"]


def quality_report(
    parameters: Tensor, supernet_name: str, dataset: Dataset, device: str = "cpu", num_random: int = 8, seed: int = 0
) -> QualityReport:
    """Return the figures of the largest, the smallest and ``num_random`` random subnets (the same ones for the same seed)."""
    space = space_named(supernet_name)
    supernet = build(space, device)
    supernet.load(parameters)
    sampled = [space.sample(random.Random(f"{seed}:report:{index}")) for index in range(num_random)]
    metric = metric_of(space.task)
    largest, smallest, *others = (quality[metric] for quality in evaluate(supernet, dataset, [space.largest(), space.smallest(), *sampled]))
    constant = baseline(dataset, space.resolutions[-1]) if space.task == STEREO else None
    return {"metric": metric, "largest": largest, "smallest": smallest, "random": others, "baseline": constant}


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


@dataclass(frozen=True, slots=True)
class QuickEvaluation:
    """The quality of one subnet."""

    quality: float  # accuracy, 0 to 1; or EPE in pixels
    loss: float | None  # mean cross-entropy in nats; None in stereo, where EPE is the loss
    samples: int


@torch.no_grad()
def quick_evaluation(supernet: Supernet, dataset: Dataset, architecture: Architecture) -> QuickEvaluation:
    """Return how good a subnet is; leaves the supernet recalibrated for it."""
    calibrate(supernet, dataset, architecture, _QUICK_CALIBRATION_SAMPLES[dataset.task])
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
    return dataset.held_out_batches(resolution, _QUICK_BATCH[dataset.task], every=stride)


def answers(supernet: Supernet, inputs: Tensor, architecture: Architecture) -> Tensor:
    """Return logits (B, K) or disparities (B, H, W) of a subnet for which the supernet is recalibrated, on the CPU."""
    return outputs_of(supernet, inputs, architecture).cpu()
