"""A microbatch and its gradient: which pixels, which architecture, and what comes out, as a function of it and the weights alone.

BatchNorm uses the microbatch's own statistics, so anyone who holds the round's weights can compute the microbatch again (equal up to the
last bits of floating point). Nothing here knows rounds, peers or claims.

Shapes: B samples of the microbatch, N all weights of the supernet.
"""

import logging
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import Batch, TrainingSet
from manta_swarm.automl.graphs import Recorder
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.models.supernet import Outputs, Supernet
from manta_swarm.automl.precisions import BF16, FP32
from manta_swarm.automl.rounding import convolutions, networks_in
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.automl.training.objective import classification_loss, stereo_loss
from manta_swarm.automl.training.replays import Replays
from manta_swarm.automl.transfers import coming, sent, wait
from manta_swarm.protocol.microbatches import microbatch_seed, sample_indices

MIN_SAMPLES = 2  # the last units' maps are one pixel: BatchNorm needs a second sample
_WARMING_SAMPLES = 8

logger = logging.getLogger("manta.microbatches")


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
