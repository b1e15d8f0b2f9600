"""A data set in memory that several processes share: what lots need of it, the training samples, once for all of them.

Shapes: as in ``automl.data.images``.
"""

from dataclasses import dataclass

import numpy as np

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.shared_memory import Region, aligned


@dataclass(frozen=True, slots=True)
class ImagesIn:
    """What lies in a region: the training images, and behind them their labels."""

    name: str
    white: int
    num_classes: int
    shape: tuple[int, int, int, int]  # (N, C, H, W)
    flips: int  # 0 or 1

    def __post_init__(self) -> None:
        if min(self.shape) < 1 or self.flips not in (0, 1):
            raise ValueError(f"no images of the shape {self.shape}")

    @property
    def image_bytes(self) -> int:
        """How many bytes the images take."""
        count, channels, height, width = self.shape
        return count * channels * height * width


def share_images(dataset: ImageDataset) -> tuple[ImagesIn, Region]:
    """Return a copy of the training part of ``dataset``, and where it lies.

    Raises:
        StorageError: as ``Region.make``.
    """
    count, channels, height, width = dataset.train_images.shape
    images = ImagesIn(dataset.name, dataset.white, dataset.num_classes, (count, channels, height, width), int(dataset.flips))
    start = aligned(images.image_bytes)
    region = Region.make(start + 8 * count)
    values = region.bytes(is_writable=True)
    values[: images.image_bytes] = dataset.train_images.reshape(-1)
    values[start:] = dataset.train_labels.astype("<i8").view(np.uint8)
    return images, region


def shared_images(images: ImagesIn, region: Region) -> ImageDataset:
    """Return the data set that lies in ``region``, read-only and without held-out samples.

    Raises:
        ValueError: the region is too small for it.
    """
    count, channels, height, width = images.shape
    start = aligned(images.image_bytes)
    if region.size_bytes < start + 8 * count:
        raise ValueError(f"{region.size_bytes} bytes are too few for images of the shape {images.shape}")
    values = region.bytes(is_writable=False)
    return ImageDataset(
        images.name,
        images.white,
        images.num_classes,
        values[: images.image_bytes].reshape(images.shape),
        values[start : start + 8 * count].view("<i8").astype(np.int64, copy=False),
        np.zeros((0, channels, height, width), np.uint8),
        np.zeros(0, np.int64),
        flips=bool(images.flips),
    )
