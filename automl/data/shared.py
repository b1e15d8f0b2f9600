"""Data sets that several processes share: what microbatches need of them, the training samples, once for all of them.

Images in memory are put there at once. Stereo pairs are read or made when they are asked for, and kept where all processes find them.
Nobody locks: a place is written as it comes, and believed only if a digest over all of it fits. So what another process is writing at the
moment, or died while it wrote, is no pair, and is made again.

Shapes: as in ``automl.data.images``.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.pairs import KEPT_BYTES
from manta_swarm.automl.data.views import Pair
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


_HEAD = struct.Struct("<QQQ16s")  # the pair's index plus one, rows, columns, digest
_HEAD_BYTES = 64
_PIXEL_BYTES = 10  # of a pair: 3 of each view, 4 of the disparity


def region_for(pairs: Sequence[Pair], kept_bytes: int = KEPT_BYTES) -> tuple[Region, int]:
    """Return memory for as many pairs of the first one's size as fit into ``kept_bytes``, or all, and the bytes of a place.

    Raises:
        StorageError: as ``Region.make``.
    """
    place_bytes = aligned(_HEAD_BYTES + _PIXEL_BYTES * pairs[0].disparity.size)
    return Region.make(place_bytes * max(1, min(len(pairs), kept_bytes // place_bytes))), place_bytes


class SharedPairs(Sequence[Pair]):
    """A sequence of pairs behind another one, those asked for last kept in shared memory; one larger than a place is not kept."""

    def __init__(self, pairs: Sequence[Pair], region: Region, place_bytes: int) -> None:
        """Use ``region``, which all processes share, for what ``pairs`` gives.

        Raises:
            ValueError: it has not got one place of this size.
        """
        if place_bytes < _HEAD_BYTES or region.size_bytes < place_bytes:
            raise ValueError(f"{region.size_bytes} bytes have no place of {place_bytes}")
        count = region.size_bytes // place_bytes
        self._pairs = pairs
        self._places = region.bytes(is_writable=True)[: count * place_bytes].reshape(count, place_bytes)

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, place: int) -> Pair: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Pair]: ...

    def __getitem__(self, place: int | slice) -> Pair | Sequence[Pair]:
        if isinstance(place, slice):
            return [self[index] for index in range(len(self))[place]]
        index = range(len(self))[place]
        found = self._found(index)
        if found is None:
            found = self._pairs[index]
            self._keep(index, found)
        return found

    def _found(self, index: int) -> Pair | None:
        at = self._places[index % len(self._places)]
        number, rows, columns, digest = _HEAD.unpack(at[: _HEAD.size].tobytes())
        size = rows * columns
        if number != index + 1 or size < 1 or _PIXEL_BYTES * size > len(at) - _HEAD_BYTES:
            return None
        data = at[_HEAD_BYTES : _HEAD_BYTES + _PIXEL_BYTES * size].copy()  # from here on nobody else writes to it
        if _digest(index, rows, columns, data.data) != digest:
            return None
        left, right = data[: 6 * size].reshape(2, rows, columns, 3)
        return Pair(left, right, data[6 * size :].view(np.float32).reshape(rows, columns))

    def _keep(self, index: int, pair: Pair) -> None:
        rows, columns = pair.disparity.shape
        at = self._places[index % len(self._places)]
        if _HEAD_BYTES + _PIXEL_BYTES * rows * columns > len(at):
            return
        parts = (pair.left.reshape(-1), pair.right.reshape(-1), np.ascontiguousarray(pair.disparity, np.float32).reshape(-1).view(np.uint8))
        data = np.concatenate(parts)
        at[: _HEAD.size] = 0
        at[_HEAD_BYTES : _HEAD_BYTES + len(data)] = data
        head = _HEAD.pack(index + 1, rows, columns, _digest(index, rows, columns, data.data))
        at[: _HEAD.size] = np.frombuffer(head, np.uint8)


def _digest(index: int, rows: int, columns: int, data: memoryview) -> bytes:
    hasher = hashlib.blake2b(struct.pack("<QQQ", index, rows, columns), digest_size=16)
    hasher.update(data)
    return hasher.digest()
