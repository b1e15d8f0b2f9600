"""Memory that a program shares with processes that it starts, with no name and no file that stays, and data sets that lie in it.

Shared memory is gone with the last process that has it: on Linux a memfd; elsewhere a file that is unlinked as soon as it is open. A
process that is started gets the descriptor by inheritance. Pages that nobody has written cost nothing, so a region may be larger than what
is used.

Of a data set the training samples, all that microbatches need of it, are shared. Images in memory are put there at once. Stereo pairs are
read or made when they are asked for, and kept where all processes find them. Nobody locks: a place is written as it comes, and believed
only if a digest over all of it fits. So what another process is writing at the moment, or died while it wrote, is no pair, and is made
again.

Shapes: as in ``automl.data.images``.
"""

import hashlib
import mmap
import os
import struct
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.pairs import KEPT_BYTES
from manta_swarm.automl.data.views import Pair
from manta_swarm.protocol.errors import StorageError

ALIGNED_BYTES = 64  # as torch aligns what it allocates: kernels add in another order otherwise

_HEAD = struct.Struct("<QQQ16s")  # the pair's index plus one, rows, columns, digest
_HEAD_BYTES = 64
_PIXEL_BYTES = 10  # of a pair: 3 of each view, 4 of the disparity


class SharedRegion:
    """Bytes in shared memory."""

    def __init__(self, descriptor: int, size_bytes: int, *, is_own: bool) -> None:
        """Use ``make`` or ``inherited``."""
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self._is_own = is_own

    @classmethod
    def make(cls, size_bytes: int) -> "SharedRegion":
        """Return a new one, all zero.

        Raises:
            StorageError: this system gives no such memory.
        """
        descriptor = -1
        try:
            if sys.platform == "linux":
                descriptor = os.memfd_create("manta-worker", os.MFD_CLOEXEC)
            else:
                with tempfile.TemporaryFile() as file:
                    descriptor = os.dup(file.fileno())
            os.ftruncate(descriptor, max(size_bytes, 1))
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise StorageError(f"no {size_bytes} bytes of shared memory: {error.strerror}; use one worker, with --workers 1") from error
        return cls(descriptor, size_bytes, is_own=True)

    @classmethod
    def inherited(cls, descriptor: int) -> "SharedRegion":
        """Return the one that the program which started this process gave it."""
        return cls(descriptor, os.fstat(descriptor).st_size, is_own=False)

    def floats(self, *, is_writable: bool) -> Tensor:
        """Return all of it as fp32 values; they stay good after ``close``. Who writes to values that are not writable is killed."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            return torch.frombuffer(self._mapped(is_writable), dtype=torch.float32, count=self.size_bytes // 4)

    def bytes(self, *, is_writable: bool) -> NDArray[np.uint8]:
        """Return all of it as bytes; they stay good after ``close``."""
        return np.frombuffer(self._mapped(is_writable), np.uint8, self.size_bytes)

    def close(self) -> None:
        """Give up the descriptor; what is mapped stays until it is not used any more."""
        if self._is_own and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _mapped(self, is_writable: bool) -> mmap.mmap:
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
        return mmap.mmap(self.descriptor, max(self.size_bytes, 1), flags=mmap.MAP_SHARED, prot=prot)


def aligned(size_bytes: int) -> int:
    """Return the least size from this one on that leaves what comes after it aligned."""
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


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


def share_images(dataset: ImageDataset) -> tuple[ImagesIn, SharedRegion]:
    """Return a copy of the training part of ``dataset``, and where it lies.

    Raises:
        StorageError: as ``SharedRegion.make``.
    """
    count, channels, height, width = dataset.train_images.shape
    images = ImagesIn(dataset.name, dataset.white, dataset.num_classes, (count, channels, height, width), int(dataset.flips))
    start = aligned(images.image_bytes)
    region = SharedRegion.make(start + 8 * count)
    values = region.bytes(is_writable=True)
    values[: images.image_bytes] = dataset.train_images.reshape(-1)
    values[start:] = dataset.train_labels.astype("<i8").view(np.uint8)
    return images, region


def shared_images(images: ImagesIn, region: SharedRegion) -> ImageDataset:
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


def region_for(pairs: Sequence[Pair], kept_bytes: int = KEPT_BYTES) -> tuple[SharedRegion, int]:
    """Return memory for as many pairs of the first one's size as fit into ``kept_bytes``, or all, and the bytes of a place.

    Raises:
        StorageError: as ``SharedRegion.make``.
    """
    place_bytes = aligned(_HEAD_BYTES + _PIXEL_BYTES * pairs[0].disparity.size)
    return SharedRegion.make(place_bytes * max(1, min(len(pairs), kept_bytes // place_bytes))), place_bytes


class SharedPairs(Sequence[Pair]):
    """A sequence of pairs behind another one, those asked for last kept in shared memory; one larger than a place is not kept."""

    def __init__(self, pairs: Sequence[Pair], region: SharedRegion, place_bytes: int) -> None:
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
