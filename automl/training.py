"""A lot and its gradient: which pixels, which architecture, and what comes out, as a function of the lot and the weights alone.

BatchNorm uses the lot's own statistics, so anyone who holds the round's weights can compute the lot again (equal up to the last
bits of floating point). Nothing here knows rounds, peers or claims.

Shapes: B samples of the lot, N all weights of the supernet, P projections.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from automl.classifier import Supernet
from automl.data.images import ImageDataset, augment, resize
from automl.space import Architecture, space_named
from protocol.lots import lot_seed, sample_indices

MIN_SAMPLES = 2  # the last units' maps are one pixel: BatchNorm needs a second sample
NUM_PROJECTIONS = 8
_PROJECTION_CHUNK = 1 << 12  # a chunk of doubles stays in the cache


@dataclass(frozen=True, slots=True)
class Lot:
    """The smallest unit of work; everything random in it follows from the first five fields."""

    run_seed: int
    round: int
    cohort: str
    key: bytes
    index: int
    architecture: Architecture
    samples: int

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


class Worker:
    """One device that computes lots, with its own supernet; not for several threads at once."""

    def __init__(self, supernet_name: str, dataset: ImageDataset, device: str = "cpu", threads: int | None = None) -> None:
        """Build the supernet on ``device``; ``threads`` sets torch's threads for the whole process."""
        if threads is not None:
            torch.set_num_threads(threads)
        self._device = torch.device(device)
        self._supernet = Supernet(space_named(supernet_name), self._device)
        self._dataset = dataset
        self._images_NCRR = resize(dataset.train_images, dataset.white, self._supernet.space.resolution)
        self._labels_N = torch.from_numpy(dataset.train_labels)

    @property
    def num_weights(self) -> int:
        """N: the length of the gradients."""
        return self._supernet.num_weights

    def load(self, parameters: Tensor) -> None:
        """Take over a state's parameters (N,) for the lots to come."""
        self._supernet.load(parameters)

    def train(self, lot: Lot) -> LotResult:
        """Return the gradient of ``lot`` at the loaded parameters, which stay as they are."""
        images_BCRR, labels_B = self._samples(lot)
        supernet = self._supernet
        supernet.train()
        supernet.flat_gradient_N.zero_()
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            loss = F.cross_entropy(supernet(images_BCRR.to(self._device), lot.architecture), labels_B.to(self._device))
            torch.autograd.backward(loss)
        gradient_N = supernet.flat_gradient_N.cpu().clone()
        return LotResult(gradient_N, loss.item(), lot.samples, project(gradient_N))

    def _samples(self, lot: Lot) -> tuple[Tensor, Tensor]:
        identity = (lot.run_seed, lot.round, lot.cohort, lot.key, lot.index)
        indices_B = torch.tensor(sample_indices(*identity, len(self._labels_N), lot.samples))
        return augment(self._images_NCRR[indices_B], lot_seed(*identity)), self._labels_N[indices_B]


def project(gradient_N: Tensor) -> bytes:
    """Return fixed sums of the gradient under random signs, as little-endian fp32: what an audit compares within a tolerance."""
    signs_NP = _signs(gradient_N.numel())
    sums_P = torch.zeros(NUM_PROJECTIONS, dtype=torch.float64)
    for chunk, signs in zip(torch.split(gradient_N, _PROJECTION_CHUNK), torch.split(signs_NP, _PROJECTION_CHUNK), strict=True):
        sums_P += chunk.double() @ signs.double()
    return sums_P.numpy().astype("<f4").tobytes()


@cache
def _signs(count: int) -> Tensor:
    """Return (N, P) fixed signs, -1 or 1, from a SHAKE-256 stream: one byte a weight, one bit a projection."""
    stream = np.frombuffer(hashlib.shake_256(b"manta/projection/v1").digest(count), dtype=np.uint8)
    bits_NP = np.unpackbits(stream[:, None], axis=1).astype(np.int8)
    return torch.from_numpy(2 * bits_NP - 1)
