"""Labelled images as integers, and what a network is fed of them: exactly resized, augmented from a microbatch's seed.

Shapes: N images of the set, B of a batch, C channels, H and W as stored, R the resolution.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import ALL, CENTRE_SQUARE, CLASSIFICATION, Batch, Preparation, calibration_indices, part_indices
from manta_swarm.automl.data.preparing import augment, jitter_tables, mirrored, prepare
from manta_swarm.automl.data.scaling import Pixels, rescale
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.signing import Digest

__all__ = ["ImageDataset", "Indices", "augment", "held_out_fifth", "resize"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImageDataset:
    """A labelled image set with a fixed held-out part; pixels run from 0 to ``white``. A Dataset (automl.data.dataset)."""

    name: str
    white: int
    num_classes: int
    train_images: Pixels = field(repr=False)  # (N, C, H, W)
    train_labels: Indices = field(repr=False)  # (N,)
    held_out_images: Pixels = field(repr=False)
    held_out_labels: Indices = field(repr=False)
    flips: bool = False  # a mirrored image is of the same class: true of most photographs, not of digits and letters
    names: tuple[str, ...] = ()  # of the classes, where the set has them; no part of the digest
    titles: tuple[str, ...] = ()  # of the classes, where people call them something that is no folder's name; no part of the digest

    @property
    def task(self) -> str:
        """Classification."""
        return CLASSIFICATION

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, in the order of their labels; their numbers where the set has no names for them."""
        return self.names or tuple(map(str, range(self.num_classes)))

    @property
    def class_titles(self) -> tuple[str, ...]:
        """What people call the classes, in the order of their labels."""
        return self.titles or self.class_names

    @property
    def preparation(self) -> Preparation:
        """The centre square, brought to the side of the set's images, and from there to the resolution."""
        return Preparation(CENTRE_SQUARE, self.white, int(self.train_images.shape[2]))

    @property
    def image_channels(self) -> int:
        """C: 1 (grey) or 3 (RGB)."""
        return int(self.train_images.shape[1])

    @property
    def num_train(self) -> int:
        """N of the training images."""
        return len(self.train_labels)

    @property
    def num_held_out(self) -> int:
        """N of the held-out images."""
        return len(self.held_out_labels)

    @property
    def digest(self) -> Digest:
        """SHA-256 over name, shapes, raw pixels and labels of both parts: what a manifest pins down."""
        flips = ("flips",) if self.flips else ()
        shapes = (self.train_images.shape, self.held_out_images.shape)
        hasher = hashlib.sha256(encode(("manta/images/v1", self.name, self.white, self.num_classes, *shapes, *flips)))
        for images, labels in ((self.train_images, self.train_labels), (self.held_out_images, self.held_out_labels)):
            hasher.update(np.ascontiguousarray(images).data)
            hasher.update(labels.astype("<i8").tobytes())
        return Digest(hasher.digest())

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        """Return these training images, resized and augmented: moved and turned; flipped where ``flips``; colours jittered.

        ``strength``: in percent, of all but the flips; at 0 the images are as they are.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        has_tables = self.image_channels == 3 and strength > 0
        images_BCRR = prepare(
            self.train_images[chosen],
            self.white,
            resolution,
            resolution,
            tables_NL=jitter_tables(len(chosen), self.white, seed, strength) if has_tables else None,
            is_turned_N=mirrored(len(chosen), seed) if self.flips else None,
            device=device,
        )
        return Batch(augment(images_BCRR, seed, strength), torch.from_numpy(self.train_labels[chosen]))

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield training images (B, C, R, R) as they are, a fixed choice; see Dataset."""
        for chosen in calibration_indices(self.num_train, batch, limit):
            yield resize(self.train_images[chosen], self.white, resolution)

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield the held-out images of a part in their order; its halves have equally many of each class, give or take one."""
        chosen = part_indices(self.held_out_labels, part)
        for start in range(0, len(chosen), every * batch):
            some = chosen[start : start + batch]
            images_BCRR = resize(self.held_out_images[some], self.white, resolution)
            yield Batch(images_BCRR, torch.from_numpy(self.held_out_labels[some]))


def held_out_fifth(images_NCHW: Pixels, labels_N: Indices) -> npt.NDArray[np.bool_]:
    """Return which images (N,) are held out where nobody has chosen: of each class the fifth, at least one, whose SHA-256 is smallest."""
    is_held_out = np.zeros(len(labels_N), dtype=bool)
    for label in np.unique(labels_N):
        members = np.flatnonzero(labels_N == label)
        by_digest = sorted(members, key=lambda index: hashlib.sha256(images_NCHW[index].tobytes()).digest())
        is_held_out[by_digest[: max(1, len(by_digest) // 5)]] = True
    return is_held_out


def resize(images_NCHW: Pixels, white: int, resolution: int) -> Tensor:
    """Return the images as fp32 (N, C, R, R) from 0 to 1, exactly; see automl.data.scaling."""
    return rescale(images_NCHW, white, resolution, resolution)
