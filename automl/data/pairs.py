"""Stereo pairs that are loaded or made when they are asked for, and those that lie in files of any layout."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from manta_swarm.automl.data.disparity import disparity_size, read_disparity
from manta_swarm.automl.data.pictures import picture_size, read_rgb
from manta_swarm.automl.data.views import UNKNOWN, Pair
from manta_swarm.protocol.errors import UserError

KEPT_BYTES = 512 << 20


class LazyPairs(Sequence[Pair]):
    """A sequence of pairs behind a function; those asked for last are kept. Not for several threads at once."""

    def __init__(self, make: Callable[[int], Pair], count: int, kept_bytes: int = KEPT_BYTES) -> None:
        """``make`` returns the pair of a place, 0 <= it < ``count``, every time the same one."""
        self._make = make
        self._count = count
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[int, Pair] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def keep(self, kept_bytes: int) -> None:
        """Keep no more than so many bytes of pairs from now on."""
        self._kept_bytes = kept_bytes

    @overload
    def __getitem__(self, place: int) -> Pair: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Pair]: ...

    def __getitem__(self, place: int | slice) -> Pair | Sequence[Pair]:
        if isinstance(place, slice):
            places = range(self._count)[place]
            return LazyPairs(lambda index: self[places[index]], len(places), kept_bytes=0)
        index = range(self._count)[place]
        pair = self._kept.pop(index, None)
        if pair is None:
            pair = self._make(index)
            self._size_bytes += _size_bytes(pair)
        self._kept[index] = pair
        while self._size_bytes > self._kept_bytes:
            self._size_bytes -= _size_bytes(self._kept.popitem(last=False)[1])
        return pair


def _size_bytes(pair: Pair) -> int:
    return pair.left.nbytes + pair.right.nbytes + pair.disparity.nbytes


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Where a pair lies, or what of it is here; ``scale`` as in automl.data.disparity."""

    left: Path | None
    right: Path | None
    disparity: Path | None
    scale: float | None = None

    def sizes(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        """Yield the files that are here, with their rows and columns."""
        for path, size_of in ((self.left, picture_size), (self.right, picture_size), (self.disparity, disparity_size)):
            if path is not None:
                yield path, size_of(path)


def pairs(files: Sequence[PairFiles]) -> Sequence[Pair]:
    """Return the pairs in these files, each loaded when it is asked for; what a file's head tells is checked now.

    A view that is not here is black, and disparities that are not here are unknown.

    Raises:
        UserError: a file is missing or of another format, or the three of a pair differ in size. A file that turns out to be
            truncated later, when its pair is asked for, raises then.
    """
    for one in files:
        (first, (rows, columns)), *others = one.sizes()
        for path, size in others:
            if size != (rows, columns):
                raise UserError(
                    f"{path} has {size[1]} x {size[0]} pixels, {first} has {columns} x {rows}: all of a pair must be of one size"
                )
        if columns < 2:
            raise UserError(f"{first} is one pixel wide: remove the pair")
    kept = tuple(files)
    return LazyPairs(lambda index: _load(kept[index]), len(kept))


def _load(files: PairFiles) -> Pair:
    views = [None if path is None else read_rgb(path) for path in (files.left, files.right)]
    black = np.zeros_like(next(view for view in views if view is not None))
    left, right = (black if view is None else view for view in views)
    if files.disparity is None:
        return Pair(left, right, np.full(black.shape[:2], UNKNOWN, np.float32))
    return Pair(left, right, read_disparity(files.disparity, files.scale))
