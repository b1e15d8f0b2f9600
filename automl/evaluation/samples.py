"""How good subnets are on each held-out sample by itself, and the batches for that, read and resized once for many subnets.

A search ranks by these figures, and makes standard errors and intervals of them. A sample's loss is a whole number of ten-thousandths, so
that everything made of losses is arithmetic of integers, the same everywhere. Accuracy has few values, and many subnets share one;
cross-entropy, a proper score, tells them apart by how sure each is of what it says.

A search measures hundreds of architectures on the same samples at a few resolutions, so ``KeptBatches`` keeps batches. It is not for
training, whose samples are augmented anew each time, and not for several threads at once.

Shapes: B samples of a batch, K classes, H and W height and width.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.dataset import ALL, STEREO, Batch, EvaluationSet
from manta_swarm.automl.evaluation.held_out import Quality, calibrate, outputs_of
from manta_swarm.automl.evaluation.metrics import DisparityErrors, disparity_errors
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.spaces.space import Architecture

LOSS_UNIT = 10_000
MAX_LOSS = 1 << 20  # no sample counts for more than 105 nats or pixels

_BATCH = 128

KEPT_BYTES = 1 << 30

_NOTHING = torch.empty(0)  # the targets of calibration

Key = tuple[str | int, ...]


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


class KeptBatches:
    """What a data set yields for evaluation, the very tensors, those asked for last kept in memory. An EvaluationSet.

    An answer is kept whole or not at all: one that is larger than ``kept_bytes`` is made again each time, batch by batch.
    """

    def __init__(self, dataset: EvaluationSet, kept_bytes: int = KEPT_BYTES) -> None:
        """Keep no more than so many bytes of what ``dataset`` yields."""
        self._dataset = dataset
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Key, list[Batch]] = OrderedDict()
        self._too_large: set[Key] = set()
        self.size_bytes = 0  # of what is kept, or being gathered

    @property
    def task(self) -> str:
        """``classification`` or ``stereo``."""
        return self._dataset.task

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield as the data set does; nobody may change the tensors."""
        made = (Batch(inputs, _NOTHING) for inputs in self._dataset.calibration_batches(resolution, batch, limit))
        for each in self._batches(("calibration", resolution, batch, limit), made):
            yield each.inputs

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield as the data set does; nobody may change the tensors."""
        made = self._dataset.held_out_batches(resolution, batch, part, every)
        return self._batches(("held out", resolution, batch, part, every), made)

    def _batches(self, key: Key, made: Iterable[Batch]) -> Iterator[Batch]:
        """Yield what is kept, or else what is ``made``, which does nothing before it is asked."""
        if key in self._kept:
            self._kept.move_to_end(key)
            yield from self._kept[key]
            return
        if key in self._too_large:
            yield from made
            return
        gathered: list[Batch] = []
        is_whole = False
        try:
            for each in made:
                if key not in self._too_large:
                    self._gather(key, gathered, each)
                yield each
            is_whole = key not in self._too_large
        finally:
            if is_whole and key not in self._kept:
                self._kept[key] = gathered
            else:
                self.size_bytes -= sum(map(_size_bytes, gathered))

    def _gather(self, key: Key, gathered: list[Batch], each: Batch) -> None:
        """Add a batch, in the place of what was asked for longest ago; or give all of them up where there is no place."""
        gathered.append(each)
        self.size_bytes += _size_bytes(each)
        while self.size_bytes > self._kept_bytes and self._kept:
            self.size_bytes -= sum(map(_size_bytes, self._kept.popitem(last=False)[1]))
        if self.size_bytes > self._kept_bytes:
            self._too_large.add(key)
            self.size_bytes -= sum(map(_size_bytes, gathered))
            gathered.clear()


def _size_bytes(batch: Batch) -> int:
    return batch.inputs.nbytes + batch.targets.nbytes
