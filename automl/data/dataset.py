"""What the rest of automl knows of a data set: batches of inputs and targets, sizes, and a digest. Nothing here reads a file, or
imports torch: whoever only looks at names and sizes need not wait for it.

Shapes: B samples of a batch, C channels, H and W at the resolution asked for (its height; the width follows from the task:
classification 1:1, stereo 1:2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from manta_swarm.protocol.signing import Digest

if TYPE_CHECKING:
    from torch import Tensor

CLASSIFICATION = "classification"
STEREO = "stereo"

ALL = "all"
SEARCH = "search"
TEST = "test"
PARTS = (ALL, SEARCH, TEST)


CENTRE_SQUARE = "centre square"
WINDOWS = "largest windows twice as wide as high that cover the picture"
CROPS = {CLASSIFICATION: CENTRE_SQUARE, STEREO: WINDOWS}


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a picture becomes an input that is not augmented: cut, brought to the input's size (automl.data.scaling), from 0 to 1.

    A side that shrinks is averaged over boxes, one that grows is interpolated.
    """

    crop: str  # of CROPS
    white: int  # the level of a pixel that becomes 1; 0 becomes 0
    kept_side: int | None  # pixels: first every picture is brought to this, in whole levels; None: it is not


@dataclass(frozen=True, slots=True)
class Batch:
    """What a network is fed, and what it should make of it."""

    inputs: Tensor = field(repr=False)  # fp32 (B, C, H, W), 0..1; stereo: C = 6, left RGB then right RGB
    targets: Tensor = field(repr=False)  # classification: int64 (B,); stereo: fp32 (B, H, W) in pixels of the inputs, < 0 where unknown


class TrainingSet(Protocol):
    """What microbatches are drawn from."""

    @property
    def num_train(self) -> int:
        """What a microbatch's sample indices are drawn from."""

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        """Return these training samples, augmented: a function of the arguments alone, the same bits on every machine.

        ``seed`` is of 64 bits, see protocol.microbatches; ``strength`` is a percentage of the usual augmentation. Which half of the images
        is mirrored, and which window of a picture is taken, does not depend on it. The inputs are on ``device`` where that can make them
        faster than the CPU, which then does not touch them, and else on the CPU.
        """


class EvaluationSet(Protocol):
    """What a subnet is calibrated and measured with."""

    @property
    def task(self) -> str:
        """``classification`` or ``stereo``."""

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield training inputs (B, C, H, W) without augmentation: a fixed choice spread over the set.

        At most ``limit`` samples, in batches of equal size: ``batch``, or all there are where that is less.
        """

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield the held-out samples in a fixed order; the last batch may be smaller.

        ``every``: of the samples in groups of ``batch`` only every ``every``-th group, from the first; the others are not even read.

        ``search`` and ``test`` are two fixed halves: a search selects on the one, the figures that are reported are of the other.
        """


class Dataset(TrainingSet, EvaluationSet, Protocol):
    """A data set for one task, with a fixed held-out part that no training batch touches."""

    @property
    def name(self) -> str:
        """What a manifest's ``dataset`` says."""

    @property
    def image_channels(self) -> int:
        """How many channels one image has: 1 (grey) or 3 (RGB); stereo: 3, of each of the two views."""

    @property
    def num_classes(self) -> int:
        """Classification: labels run from 0 to below it; stereo: 0."""

    @property
    def class_titles(self) -> tuple[str, ...]:
        """Classification: what people call the classes, in the order of their labels; stereo: none."""

    @property
    def preparation(self) -> Preparation:
        """How held-out pictures become inputs."""

    @property
    def num_held_out(self) -> int:
        """Samples that ``held_out_batches`` yields for the part "all"."""

    @property
    def digest(self) -> Digest:
        """SHA-256 over name, shapes and raw samples: equal on every machine that has the same data."""


def calibration_indices(num_train: int, batch: int, limit: int) -> list[npt.NDArray[np.int64]]:
    """Return the samples of each calibration batch: equally many, and each batch spread evenly over the whole set.

    Raises:
        ValueError: ``batch`` or ``limit`` is less than one.
    """
    if batch < 1 or limit < 1:
        raise ValueError(f"calibration needs at least one sample, not batches of {batch} and {limit} in all")
    size = min(batch, limit, num_train)
    num_batches = min(limit, num_train) // size
    total = size * num_batches
    spread = np.arange(total, dtype=np.int64) * num_train // total
    return [spread[start::num_batches] for start in range(num_batches)]


def part_indices(groups: npt.NDArray[np.int64], part: str) -> npt.NDArray[np.int64]:
    """Return which of the held-out samples make up a part; ``groups`` is each one's class, or whatever must be shared out evenly.

    Ordered by group, every second sample is of ``search`` and the others of ``test``, so the halves differ by one sample at most.

    Raises:
        ValueError: an unknown part.
    """
    if part not in PARTS:
        raise ValueError(f"{part!r} is no part of the held-out samples: {', '.join(PARTS)}")
    if part == ALL:
        return np.arange(len(groups), dtype=np.int64)
    by_group = np.argsort(groups, kind="stable")
    return np.sort(by_group[PARTS.index(part) - 1 :: 2])
