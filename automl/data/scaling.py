"""Pixels brought to another size, exactly, by integers alone; and pictures of all sizes brought to one, so that a set is an array.

Weights are integers, sums are of integers and the same in whatever order, and the one division comes last. An axis that shrinks is averaged
over boxes (an area filter), one that grows is interpolated (bilinear, half-pixel centres). Each new pixel is made of few old ones, its
taps; nothing else is multiplied. All of it is numpy in the calling thread.

A picture that is to have the size of others is cut to its centre square, and that is rescaled.

Shapes: N images, C channels, H and W before, R and S rows and columns after (of a square: S and S), T taps of each new row or column,
M some of the planes, which are the channels of all images.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manta_swarm.protocol.errors import UserError

Pixels = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32 | np.int64]
Value = TypeVar("Value", bound=np.generic)

_MAX_LEVEL = 255
_PIXELS = 1 << 16  # at a time: their sums stay in the cache

MAX_BYTES = 8 << 30
_JUDGED_AFTER = 100  # pictures: then their mean size says whether the set will fit


class Axis(NamedTuple):
    """How an axis is brought to another size."""

    places: npt.NDArray[np.intp]  # (T, R): which old pixels a new one is made of
    weights: npt.NDArray[np.int64]  # (T, R): how much of each; 0 where a new pixel has fewer taps than others
    total: int  # what the weights of each new pixel add up to


def rescale(images_NCHW: Pixels, white: int, height: int, width: int) -> Tensor:
    """Return the images as fp32 (N, C, R, S) from 0 to 1; ``white`` is the largest value of a pixel."""
    scaled = np.empty((*images_NCHW.shape[:2], height, width), np.float32)
    for part, sums, weight in _weighted_sums(images_NCHW, height, width):
        np.divide(sums, white * weight, out=_planes(scaled)[part], dtype=np.float64, casting="same_kind")
    return torch.from_numpy(scaled)


def rescale_pixels(images_NCHW: Pixels, height: int, width: int) -> Pixels:
    """Return the images as uint8 (N, C, R, S), rounded half up."""
    scaled = np.empty((*images_NCHW.shape[:2], height, width), np.uint8)
    for part, sums, weight in _weighted_sums(images_NCHW, height, width):
        _planes(scaled)[part] = (2 * sums.astype(np.int64) + weight) // (2 * weight)
    return scaled


def fits_32_bits(weight: int) -> bool:
    """Return whether sums of levels whose weights add up to ``weight`` do."""
    return _MAX_LEVEL * weight < 2**31


def _planes(images_NCHW: npt.NDArray[Value]) -> npt.NDArray[Value]:
    """Return the channels of all images, one after the other."""
    return images_NCHW.reshape(-1, *images_NCHW.shape[2:])


def _weighted_sums(images_NCHW: Pixels, height: int, width: int) -> Iterator[tuple[slice, Integers, int]]:
    """Yield the sums (M, R, S) of some of the planes, which ones these are, and the sum of each one's weights."""
    rows, columns = axis_of(images_NCHW.shape[2], height), axis_of(images_NCHW.shape[3], width)
    weight, planes_PHW = rows.total * columns.total, _planes(images_NCHW)
    integer: type[np.int32 | np.int64] = np.int32 if fits_32_bits(weight) else np.int64
    count = max(1, _PIXELS // (planes_PHW.shape[1] * planes_PHW.shape[2]))
    for start in range(0, len(planes_PHW), count):
        part = slice(start, start + count)
        sums_MRW = _summed(planes_PHW[part].astype(integer), rows)
        sums_MSR = _summed(np.ascontiguousarray(sums_MRW.transpose(0, 2, 1)), columns)  # whole rows are copied faster than single values
        yield part, sums_MSR.transpose(0, 2, 1), weight


def _summed(values: Integers, axis: Axis) -> Integers:
    """Return (M, R, K) the sums over the taps of the second axis of values (M, H, K)."""
    sums: Integers = np.zeros((1, 1, 1), values.dtype)
    for tap, (places_R, weights_R) in enumerate(zip(axis.places, axis.weights, strict=True)):
        part = values.take(places_R, axis=1)
        np.multiply(part, weights_R[:, None].astype(values.dtype), out=part)
        sums = np.add(sums, part, out=sums) if tap else part
    return sums


@lru_cache(maxsize=256)
def axis_of(size: int, target: int) -> Axis:
    """Return the taps of an axis of ``size`` pixels that is brought to ``target``."""
    new = np.arange(target, dtype=np.int64)
    if target < size:
        starts = new * size  # in parts of an old pixel: 1 / target
        places = starts // target + np.arange(-(-size // target) + 1)[:, None]
        weights = np.maximum(np.minimum(starts + size, (places + 1) * target) - np.maximum(starts, places * target), 0)
        is_used = weights.any(axis=1)
        return Axis(np.minimum(places, size - 1).astype(np.intp)[is_used], weights[is_used], size)
    unit = 2 * target
    low, part = np.divmod(np.maximum((2 * new + 1) * size - target, 0), unit)  # the position in the source, in parts of ``unit``
    places = np.minimum(np.stack([low, low + 1]), size - 1)
    return Axis(places.astype(np.intp), np.stack([unit - part, part]), unit)


def squares(pictures: Iterable[Pixels], count: int, side: int, name: str) -> list[Pixels]:
    """Return the centre square of each of ``count`` pictures, (H, W) or (H, W, 3), scaled down to ``side`` if it is larger.

    Raises:
        UserError: the set ``name`` would take more than ``MAX_BYTES``.
    """
    kept: list[Pixels] = []
    size_bytes = 0
    for picture in pictures:
        kept.append(_square(picture, side))
        size_bytes += kept[-1].nbytes
        if len(kept) >= min(_JUDGED_AFTER, count) and size_bytes / len(kept) * count > MAX_BYTES:
            gib = size_bytes / len(kept) * count / 2**30
            raise UserError(
                f"{name} would take {gib:.0f} GiB of memory with images of {side} pixels: keep them smaller (at most "
                f"{MAX_BYTES >> 30} GiB), for 64 pixels by calling it {name}-64px"
            )
    return kept


def side_of(pictures: list[Pixels]) -> int:
    """Return the median side of some squares: few are enlarged, and no odd one decides for all."""
    sides = sorted(len(picture) for picture in pictures)
    return sides[len(sides) // 2]


def has_colours(pictures: Iterable[Pixels]) -> bool:
    """Return whether any of the pictures has."""
    return any(picture.ndim == 3 for picture in pictures)


def of_one_size(pictures: list[Pixels], side: int, channels: int) -> Pixels:
    """Return squares as one array (N, C, S, S); the list is empty afterwards, so that the set is in memory only once."""
    images = np.empty((len(pictures), channels, side, side), dtype=np.uint8)
    for place in reversed(range(len(pictures))):
        images[place] = _scaled(_channels_first(pictures.pop()), side)
    return images


def _square(picture: Pixels, side: int) -> Pixels:
    rows, columns = picture.shape[:2]
    shorter = min(rows, columns)
    top, left = (rows - shorter) // 2, (columns - shorter) // 2
    centre = picture[top : top + shorter, left : left + shorter]
    if shorter <= side:
        return centre.copy()
    scaled = _scaled(_channels_first(centre), side)
    return scaled[0] if picture.ndim == 2 else scaled.transpose(1, 2, 0).copy()


def _channels_first(picture: Pixels) -> Pixels:
    return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)


def _scaled(planes_CHW: Pixels, side: int) -> Pixels:
    return planes_CHW if planes_CHW.shape[1] == side else rescale_pixels(planes_CHW[None], side, side)[0]
