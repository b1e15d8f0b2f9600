"""A lot and its gradient: which pixels, which architecture, and what comes out, as a function of the lot and the weights alone.

BatchNorm uses the lot's own statistics, so anyone who holds the round's weights can compute the lot again (equal up to the last
bits of floating point). Nothing here knows rounds, peers or claims.

Shapes: B samples of the lot, N all weights of the supernet, P projections, K kinds of weights: one for each way of signs.
"""

import hashlib
import logging
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from automl.data.dataset import Batch, TrainingSet
from automl.graphs import Recorder
from automl.models.networks import build
from automl.models.supernet import Outputs, Supernet
from automl.precisions import BF16, FP32
from automl.rounding import convolutions, networks_in
from automl.spaces.space import Architecture, space_named
from automl.training.objective import classification_loss, stereo_loss
from automl.training.replays import Replays
from automl.transfers import coming, sent, wait
from protocol.lots import lot_seed, sample_indices

MIN_SAMPLES = 2  # the last units' maps are one pixel: BatchNorm needs a second sample
NUM_PROJECTIONS = 8
_WARMING_SAMPLES = 8
_NUM_KINDS = 1 << NUM_PROJECTIONS  # of weights: as many as there are ways to give each a sign in every projection
_PROJECTION_CHUNK = 1 << 14  # a chunk of doubles stays in the cache
_PROJECTION_BITS = tuple(1 << place for place in reversed(range(NUM_PROJECTIONS)))  # of a kind, that of the first projection first
_SIGNS_KP = 2.0 * np.unpackbits(np.arange(_NUM_KINDS, dtype=np.uint8)[:, None], axis=1) - 1.0  # highest bit first; 1 is +1, 0 is -1

logger = logging.getLogger("manta.lots")


@dataclass(frozen=True, slots=True)
class Lot:
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
            raise ValueError(f"a lot has at least {MIN_SAMPLES} samples")


@dataclass(frozen=True, slots=True)
class LotResult:
    """What a lot gave."""

    gradient: Tensor = field(repr=False)  # (N,) fp32, CPU: of the mean loss over the lot's samples
    loss: float
    samples: int
    projection: bytes  # see ``project``

    @property
    def is_finite(self) -> bool:
        """Whether every value of the gradient is a finite number.

        Each is in each of the projection's sums, and makes all of them not finite if it is not: where they are finite, which is nearly
        always, nobody looks at the gradient again. The sums of finite values may be too large for binary32, though.
        """
        return bool(np.isfinite(np.frombuffer(self.projection, "<f4")).all()) or bool(self.gradient.isfinite().all())


class Worker:
    """One device that computes lots, with its own supernet; not for several threads at once."""

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
        self._replays = None if recorder is None else Replays(self._step, recorder, self._supernet.flat_gradient_N)

    @property
    def num_weights(self) -> int:
        """N: the length of the gradients."""
        return self._supernet.num_weights

    def load(self, parameters: Tensor, *, in_place: bool = False) -> None:
        """Take over a state's parameters (N,) for the lots to come; ``in_place``, on the CPU: where they lie, see ``Supernet.adopt``."""
        (self._supernet.adopt if in_place else self._supernet.load)(parameters)

    def teach(self, parameters: Tensor | None, *, in_place: bool = False) -> None:
        """Let the lots to come learn from the largest network of these parameters (N,) too; None: from the samples alone."""
        if parameters is None:
            self._teacher = None
            return
        if self._teacher is None:
            self._teacher = build(self._space, self._device)
        (self._teacher.adopt if in_place else self._teacher.load)(parameters)

    @property
    def makes_samples(self) -> str:
        """The device on which stored pixels become a lot's inputs."""
        return self._makes_samples

    def warm_up(self) -> None:
        """Train lots that nobody asked for: a GPU's libraries load themselves at its first ones, and no lot is to be timed by that.

        From then on the device makes the samples of its lots, if it made those of these as the CPU does, to the bit. On the CPU this does
        nothing.
        """
        if self._is_cpu:
            return
        lots = [Lot(0, bytes(32), 0, bytes(32), 0, each, _WARMING_SAMPLES) for each in (self._space.largest(), self._space.smallest())]
        if all(self._makes_same_samples(lot) for lot in lots):
            self._makes_samples = str(self._device)
        for lot in lots if self._replays is None else [*lots, *lots]:  # what comes again is recorded
            self.train(lot)
        if self._replays is not None:
            self._replays.forget()  # what was tried with weights that mean nothing

    def _makes_same_samples(self, lot: Lot) -> bool:
        here = self._batch_of(lot, "cpu").inputs
        try:
            there = self._batch_of(lot, str(self._device)).inputs.cpu()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # something that this device's torch cannot do
            logger.warning("samples are made on the CPU: %s cannot make them (%s)", self._device, error)
            return False
        if not torch.equal(here, there):
            logger.warning("samples are made on the CPU: those that %s made have other bits", self._device)
            return False
        return True

    def train(self, lot: Lot) -> LotResult:
        """Return the gradient of ``lot`` at the loaded parameters, which stay as they are."""
        loss = self.backward(self._batch_of(lot, self._makes_samples), lot.architecture)
        gradient_N = self._supernet.flat_gradient_N
        if self._is_cpu:
            return LotResult(gradient_N.clone(), loss.item(), lot.samples, project(gradient_N))
        return fetch(gradient_N, loss, lot.samples)

    def _batch_of(self, lot: Lot, device: str = "cpu") -> Batch:
        identity = (lot.run_seed, lot.base, lot.step, lot.key, lot.index)
        indices = sample_indices(*identity, self._dataset.num_train, lot.samples)
        return self._dataset.training_batch(indices, lot_seed(*identity), lot.architecture.resolution, lot.augmentation, device)

    def backward(self, batch: Batch, architecture: Architecture) -> Tensor:
        """Compute the loss of a batch and leave its gradient in the supernet; return the loss, on a device that may be at work still."""
        inputs = sent(batch.inputs, self._device).contiguous(memory_format=torch.channels_last)
        targets = sent(batch.targets, self._device)
        if self._replays is None:
            return self._step(inputs, targets, architecture)
        networks = (self._supernet,) if self._teacher is None else (self._supernet, self._teacher)
        return self._replays.loss(inputs, targets, architecture, tuple(network.flat_weights_N for network in networks))

    def _step(self, inputs: Tensor, targets: Tensor, architecture: Architecture) -> Tensor:
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


def project(gradient_N: Tensor) -> bytes:
    """Return fixed sums of the gradient under random signs, as little-endian fp32: what an audit compares within a tolerance.

    Weights of the same eight signs are added up first, in fp64 and in their order: one addition a weight, and no matrix of signs. Where the
    gradient is on another device it is projected there, in fp64 and in the device's order.
    """
    if gradient_N.device.type != "cpu":
        return _stored(signed_sums(gradient_N))
    values_N, kinds_N = gradient_N.numpy(), _kinds(gradient_N.numel())
    sums_K = np.zeros(_NUM_KINDS)
    for start in range(0, len(values_N), _PROJECTION_CHUNK):
        chunk = slice(start, start + _PROJECTION_CHUNK)
        sums_K += np.bincount(kinds_N[chunk], weights=values_N[chunk], minlength=_NUM_KINDS)
    with np.errstate(invalid="ignore", over="ignore"):  # of a gradient that is not finite, which is dropped
        sums_P: NDArray[np.float64] = (sums_K[:, None] * _SIGNS_KP).sum(axis=0)
        return sums_P.astype("<f4").tobytes()


def signed_sums(gradient_N: Tensor) -> Tensor:
    """Return (P,) fp32 the sums of a projection, on the gradient's device, which may be at work on them still.

    Made there by torch: they differ from the CPU's by the order of the additions alone.
    """
    kinds_N = _kinds_there(gradient_N.numel(), gradient_N.device)
    negative_N = -gradient_N
    sums = [torch.where((kinds_N & bit).bool(), gradient_N, negative_N).sum(dtype=torch.float64) for bit in _PROJECTION_BITS]
    return torch.stack(sums).float()


def fetch(gradient_N: Tensor, loss: Tensor, samples: int) -> LotResult:
    """Return what a lot gave on a device, which is waited for once, when all is on its way; the gradient is copied.

    Args:
        gradient_N: there, still to be computed perhaps.
        loss: fp32, like it.
        samples: of the lot.
    """
    figures_there = torch.cat([signed_sums(gradient_N), loss.reshape(1)])
    copied_N, figures = coming(gradient_N), coming(figures_there)
    wait(gradient_N.device)
    return LotResult(copied_N, figures[-1].item(), samples, _stored(figures[:-1]))


def _stored(sums_P: Tensor) -> bytes:
    return sums_P.cpu().numpy().astype("<f4").tobytes()


@cache
def _kinds_there(count: int, device: torch.device) -> Tensor:
    return torch.tensor(_kinds(count)).to(device)


@cache
def _kinds(count: int) -> NDArray[np.uint8]:
    """Return (N,) the signs of each weight, one bit a projection, from a SHAKE-256 stream."""
    return np.frombuffer(hashlib.shake_256(b"manta/projection/v1").digest(count), dtype=np.uint8)
