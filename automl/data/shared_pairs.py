"""Stereo pairs that several processes read or make when they are asked for, and keep where all of them find them: each once, not once each.

Nobody locks: a place is written as it comes, and believed only if a digest over all of it fits. So what another process is writing at the
moment, or died while it wrote, is no pair, and is made again.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import overload

import numpy as np

from manta_swarm.automl.data.pairs import KEPT_BYTES
from manta_swarm.automl.data.views import Pair
from manta_swarm.automl.shared_memory import Region, aligned

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
