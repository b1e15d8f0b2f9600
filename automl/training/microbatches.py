"""A microbatch, its loss and its gradient: which pixels, which architecture, and what comes out, as a function of it and the weights alone.

BatchNorm uses the microbatch's own statistics, so anyone who holds the round's weights can compute the microbatch again (equal up to the
last bits of floating point). Nothing here knows rounds, peers or claims.

Each of the two tasks has a loss, with or without a teacher (the full network, for distillation). Every loss is a mean over the batch, so
that the mean of the gradients of equal microbatches is the gradient of them all.

Shapes: B samples of the microbatch, N all weights of the supernet, K classes, H and W the full resolution, h and w that of one prediction.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.dataset import Batch, TrainingSet
from manta_swarm.automl.devices import Recorder, coming, convolutions, networks_in, sent, wait
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Outputs, Supernet
from manta_swarm.automl.precisions import BF16, FP32
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.automl.training.replays import Replays
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices

LABEL_SMOOTHING = 0.1  # as in arXiv:1512.00567, section 7: small subnets of a supernet are overconfident otherwise
CLASSIFICATION_TEACHER_WEIGHT = 1.0  # once-for-all's (arXiv:1908.09791, section 4.1): the teacher counts as much as the labels
STEREO_TEACHER_WEIGHT = 0.5  # the truth, where it is known, is better than any teacher
SCALE_DECAY = 0.5  # a prediction's weight relative to that of the next finer one: the coarse ones guide, the last one is what is used
MATCH_WEIGHT = 1.0  # as much as the last one: what the others start from has to be learnt first; with a quarter it took much longer
HUBER_PX = 1.0  # below this the loss is quadratic, above it linear: outliers at the edges of things don't drown the rest

MIN_SAMPLES = 2  # the last units' maps are one pixel: BatchNorm needs a second sample
_WARMING_SAMPLES = 8

logger = logging.getLogger("manta.microbatches")


def classification_loss(logits_BK: Tensor, labels_B: Tensor, teacher_logits_BK: Tensor | None = None) -> Tensor:
    """Return the cross entropy with smoothed labels; with a teacher, plus that to its probabilities (arXiv:1503.02531, section 2).

    No gradient flows to the teacher.
    """
    loss = F.cross_entropy(logits_BK, labels_B, label_smoothing=LABEL_SMOOTHING)
    if teacher_logits_BK is None:
        return loss
    soft_loss = F.cross_entropy(logits_BK, teacher_logits_BK.detach().softmax(1))
    return loss + CLASSIFICATION_TEACHER_WEIGHT * soft_loss


def stereo_loss(predictions: Sequence[Tensor], disparity_BHW: Tensor, teacher_prediction: Tensor | None = None) -> Tensor:
    """Return the smooth L1 loss in pixels over the valid pixels (``disparity_BHW`` >= 0), a weighted mean over the predictions.

    ``predictions`` are what the match says, and then those of the steps up from coarse to fine, each (B, h, w) or (B, 1, h, w) in pixels
    of the full resolution, which is a multiple of h and w; the last one is at the full resolution. One without any valid pixel adds
    zero. With a teacher, whose last prediction is ``teacher_prediction`` (of the last one's shape), plus the distance to that,
    everywhere; no gradient flows to it.
    """
    weights = [MATCH_WEIGHT, *(SCALE_DECAY**step for step in reversed(range(len(predictions) - 1)))]
    loss = torch.zeros((), dtype=disparity_BHW.dtype, device=disparity_BHW.device)
    shrunk: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # two predictions have the size of the match
    for weight, prediction in zip(weights, predictions, strict=True):
        height, width = prediction.shape[-2:]
        if (height, width) not in shrunk:
            shrunk[height, width] = shrink_disparity(disparity_BHW, height, width)
        target_Bhw, is_valid_Bhw = shrunk[height, width]
        distance_Bhw = F.smooth_l1_loss(prediction.reshape(target_Bhw.shape), target_Bhw, reduction="none", beta=HUBER_PX)
        valid_loss = (distance_Bhw * is_valid_Bhw).sum() / is_valid_Bhw.sum().clamp(min=1)
        loss = loss + weight / sum(weights) * valid_loss
    if teacher_prediction is not None:
        distance = F.smooth_l1_loss(predictions[-1], teacher_prediction.detach(), beta=HUBER_PX)
        loss = loss + STEREO_TEACHER_WEIGHT * distance
    return loss


def shrink_disparity(disparity_BHW: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the mean disparity of each cell's valid pixels (B, h, w), 0 where it has none, and a mask of the cells that have some.

    Invalid pixels are never mixed in. The values stay in pixels of the full resolution.
    """
    is_valid_BHW = disparity_BHW >= 0
    known_BHW = torch.where(is_valid_BHW, disparity_BHW, 0.0)
    full_height, full_width = disparity_BHW.shape[1:]
    if (full_height, full_width) == (height, width):
        return known_BHW, is_valid_BHW
    cell = (full_height // height, full_width // width)
    share_Bhw = F.avg_pool2d(is_valid_BHW.to(disparity_BHW.dtype), cell)
    return F.avg_pool2d(known_BHW, cell) / share_Bhw.clamp(min=1.0 / (cell[0] * cell[1])), share_Bhw > 0


@dataclass(frozen=True, slots=True)
class Microbatch:
    """The smallest unit of work; everything random in it follows from the first five fields."""

    run_seed: int
    base: bytes  # digest of the commit whose state it is trained on
    step: int  # of the base's local steps, from 0
    key: bytes
    index: int
    architecture: Architecture
    samples: int
    augmentation: int = 100  # percent of the usual strength, see ``Plan.augmentation``

    def __post_init__(self) -> None:
        if self.samples < MIN_SAMPLES:
            raise ValueError(f"a microbatch has at least {MIN_SAMPLES} samples")


@dataclass(frozen=True, slots=True)
class MicrobatchResult:
    """What a microbatch gave."""

    gradient: Tensor = field(repr=False)  # (N,) fp32, CPU: of the mean loss over the microbatch's samples
    loss: float
    samples: int

    @property
    def is_finite(self) -> bool:
        """Whether every value of the gradient is a finite number."""
        return bool(self.gradient.isfinite().all())


class Worker:
    """One device that computes microbatches, with its own supernet; not for several threads at once."""

    def __init__(
        self,
        supernet_name: str,
        dataset: TrainingSet,
        device: str = "cpu",
        threads: int | None = None,
        precision: str = FP32,
        recorder: Recorder | None = None,
    ) -> None:
        """Build the supernet on ``device``; ``threads`` sets torch's threads for the whole process.

        ``precision`` is what a GPU computes in (``automl.precisions``). Swarms use fp32: a gradient is then as far from another device's as
        a CPU's with other threads is, by bf16 it is 0.2 to 0.4 of its norm away (``benchmarks/gpu.py``). With a ``recorder`` steps are
        recorded and replayed (``automl.training.replays``).
        """
        if recorder is not None and precision == BF16:
            raise ValueError("autocast keeps what it rounded, where a recorded step would not find it")
        if threads is not None:
            torch.set_num_threads(threads)
        self._device = torch.device(device)
        self._is_cpu = device == "cpu"  # for tests "cpu:0" is a device like others
        self._precision = precision if self._device.type == "cuda" else FP32
        self._space = space_named(supernet_name)
        self._supernet = build(self._space, self._device)
        self._teacher: Supernet | None = None
        self._dataset = dataset
        self._makes_samples = "cpu"  # the device that does
        self._replays = None if recorder is None else Replays(self, recorder, self._supernet.flat_gradient_N)

    @property
    def num_weights(self) -> int:
        """N: the length of the gradients."""
        return self._supernet.num_weights

    def load(self, parameters: Tensor, *, in_place: bool = False) -> None:
        """Take over a state's parameters (N,) for what comes; ``in_place``, on the CPU: where they lie, see ``Supernet.adopt``."""
        (self._supernet.adopt if in_place else self._supernet.load)(parameters)

    def teach(self, parameters: Tensor | None, *, in_place: bool = False) -> None:
        """Let the microbatches to come learn from the largest network of these parameters (N,) too; None: from the samples alone."""
        if parameters is None:
            self._teacher = None
            return
        if self._teacher is None:
            self._teacher = build(self._space, self._device)
        (self._teacher.adopt if in_place else self._teacher.load)(parameters)

    @property
    def makes_samples(self) -> str:
        """The device on which stored pixels become a microbatch's inputs."""
        return self._makes_samples

    def warm_up(self) -> None:
        """Train microbatches that nobody asked for: a GPU's libraries load themselves at its first ones, which would be timed by that.

        From then on the device makes the samples of its microbatches, if it made those of these as the CPU does, to the bit. On the CPU
        this does nothing.
        """
        if self._is_cpu:
            return
        microbatches = [
            Microbatch(0, bytes(32), 0, bytes(32), 0, each, _WARMING_SAMPLES) for each in (self._space.largest(), self._space.smallest())
        ]
        if all(self._makes_same_samples(microbatch) for microbatch in microbatches):
            self._makes_samples = str(self._device)
        for microbatch in microbatches if self._replays is None else [*microbatches, *microbatches]:  # what comes again is recorded
            self.train(microbatch)
        if self._replays is not None:
            self._replays.forget()  # what was tried with weights that mean nothing

    def _makes_same_samples(self, microbatch: Microbatch) -> bool:
        here = self._batch_of(microbatch, "cpu").inputs
        try:
            there = self._batch_of(microbatch, str(self._device)).inputs.cpu()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # something that this device's torch cannot do
            logger.warning("samples are made on the CPU: %s cannot make them (%s)", self._device, error)
            return False
        if not torch.equal(here, there):
            logger.warning("samples are made on the CPU: those that %s made have other bits", self._device)
            return False
        return True

    def train(self, microbatch: Microbatch) -> MicrobatchResult:
        """Return the gradient of ``microbatch`` at the loaded parameters, which stay as they are."""
        loss = self.backward(self._batch_of(microbatch, self._makes_samples), microbatch.architecture)
        gradient_N = self._supernet.flat_gradient_N
        if self._is_cpu:
            return MicrobatchResult(gradient_N.clone(), loss.item(), microbatch.samples)
        return fetch(gradient_N, loss, microbatch.samples)

    def _batch_of(self, microbatch: Microbatch, device: str = "cpu") -> Batch:
        identity = (microbatch.run_seed, microbatch.base, microbatch.step, microbatch.key, microbatch.index)
        indices = sample_indices(*identity, self._dataset.num_train, microbatch.samples)
        return self._dataset.training_batch(
            indices, microbatch_seed(*identity), microbatch.architecture.resolution, microbatch.augmentation, device
        )

    def backward(self, batch: Batch, architecture: Architecture) -> Tensor:
        """Compute the loss of a batch and leave its gradient in the supernet; return the loss, on a device that may be at work still."""
        inputs = sent(batch.inputs, self._device).contiguous(memory_format=torch.channels_last)
        targets = sent(batch.targets, self._device)
        if self._replays is None:
            return self.step(inputs, targets, architecture)
        networks = (self._supernet,) if self._teacher is None else (self._supernet, self._teacher)
        return self._replays.loss(inputs, targets, architecture, tuple(network.flat_weights_N for network in networks))

    def step(self, inputs: Tensor, targets: Tensor, architecture: Architecture) -> Tensor:
        """Return the loss of a microbatch, and leave its gradient in the supernet; both tensors are on the device."""
        supernet = self._supernet
        supernet.train()
        supernet.flat_gradient_N.zero_()
        with convolutions(self._precision):
            with networks_in(self._precision, self._device):
                loss = self._loss(supernet(inputs, architecture), targets, self._teaching(inputs, architecture.resolution))
            torch.autograd.backward(loss)
        return loss.detach()

    @torch.no_grad()
    def _teaching(self, inputs: Tensor, resolution: int) -> Outputs | None:
        """Return what the teacher's largest network makes of the inputs, by their own statistics as in its training."""
        if self._teacher is None:
            return None
        self._teacher.train()
        outputs: Outputs = self._teacher(inputs, replace(self._space.largest(), resolution=resolution))
        return outputs

    def _loss(self, outputs: Outputs, targets: Tensor, teaching: Outputs | None) -> Tensor:
        if isinstance(outputs, Tensor):
            assert not isinstance(teaching, tuple)
            return classification_loss(outputs.float(), targets, None if teaching is None else teaching.float())
        return stereo_loss([scale.float() for scale in outputs], targets, None if teaching is None else teaching[-1].float())


def fetch(gradient_N: Tensor, loss: Tensor, samples: int) -> MicrobatchResult:
    """Return what a microbatch gave on a device, which is waited for once, when all is on its way; the gradient is copied.

    Args:
        gradient_N: there, still to be computed perhaps.
        loss: fp32, like it.
        samples: of the microbatch.
    """
    copied_N, copied_loss = coming(gradient_N), coming(loss.reshape(1))
    wait(gradient_N.device)
    return MicrobatchResult(copied_N, copied_loss.item(), samples)
