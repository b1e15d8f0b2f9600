"""From stored pixels to what a network is fed: augmented from a microbatch's seed, resized, with the same bits on every device.

Augmentation takes numbers from SHAKE-256 of the microbatch's seed and applies them with integers, so the same pixels come out on every
machine.

On the CPU numpy does all of it, a part at a time that stays in the cache. For another device the stored pixels, a byte each, are copied
there and torch does the same to them: integer sums, which come out the same in whatever order, and one division of doubles. Whether a
device keeps to that is tried before it is believed (``automl.training.microbatches``).

Shapes: N images of a set, B of a batch, C channels, H and W as stored, R and S rows and columns after (of a batch: R and R), L levels of a
pixel, T taps of each new row or column, or tables of levels.
"""

import hashlib
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manta_swarm.automl.data.scaling import Pixels, axis_of, fits_32_bits, rescale
from manta_swarm.automl.devices import sent

Integers = npt.NDArray[np.int64]
Number = TypeVar("Number", int, Integers)

_WORD_BITS = 16
_ONE = 256  # fixed point: 8 bits behind the point
_TWICE_BITS = 9  # of 2 * _ONE
_MAX_SHIFT = 3 * _ONE  # pixels at resolution 32; grows with it
_MAX_SLOPE = 40  # of 256: scales by up to 16 %, turns and shears by up to 9 degrees
_MAX_CONTRAST = 64  # of 256: up to a quarter more or less
_MAX_BRIGHTNESS = 32  # of 256 of white: up to an eighth lighter or darker

ROWS, COLUMNS = 2, 3  # axes of images


def words(label: str, seed: int, *shape: int) -> Integers:
    """Return uniform integers of 16 bits, of SHAKE-256 over the label and the 64-bit seed."""
    count = int(np.prod(shape))
    stream = hashlib.shake_256(f"manta/{label}/v1\n".encode() + seed.to_bytes(8, "little")).digest(2 * count)
    return np.frombuffer(stream, dtype="<u2").reshape(shape).astype(np.int64)


def below(word: Number, bound: Number | int) -> Number:
    """Return each word brought to 0 <= it < bound, evenly as far as 16 bits go."""
    return word * bound >> _WORD_BITS


def around(word: Integers, limit: Integers | int) -> Integers:
    """Return each word brought to -limit <= it <= limit."""
    return below(word, 2 * np.asarray(limit) + 1) - limit


def augment(images_BCRR: Tensor, seed: int, strength: int = 100) -> Tensor:
    """Return each image moved, turned, sheared and scaled a little, as a microbatch's 64-bit seed says; what comes in from outside is 0.

    ``strength``: percent of the usual limits; at 0 the images are as they are.
    """
    if strength == 0:
        return images_BCRR
    batch, channels, resolution, _ = images_BCRR.shape
    slope, shift = _MAX_SLOPE * strength // 100, _MAX_SHIFT * resolution // 32 * strength // 100
    # Of each image: how far a step down and a step right in the result go in the source, and the shift; in 256ths of a pixel.
    moves_B6 = around(words("augment", seed, batch, 6), np.array([slope] * 4 + [shift] * 2)).astype(np.int32)
    device = images_BCRR.device
    down_y, down_x, right_y, right_x, shift_y, shift_x = torch.from_numpy(moves_B6).to(device).T[:, :, None, None]
    step = 2 * torch.arange(resolution, dtype=torch.int32, device=device) + 1 - resolution  # twice the distance from the centre
    y, x = step[:, None], step[None, :]
    centre = _ONE * resolution  # twice the centre's position in 256ths
    source_y = (y * (down_y + _ONE) + (2 * shift_y + centre)) + x * right_y >> _TWICE_BITS
    source_x = (y * down_x + (2 * shift_x + centre)) + x * (right_x + _ONE) >> _TWICE_BITS
    is_outside = (source_y < 0) | (source_y >= resolution) | (source_x < 0) | (source_x >= resolution)
    flat = (source_y * resolution + source_x).masked_fill_(is_outside, 0).long().view(batch, 1, -1).expand(-1, channels, -1)
    moved_BCRR = images_BCRR.flatten(2).gather(2, flat).view_as(images_BCRR)
    return moved_BCRR.masked_fill_(is_outside.unsqueeze(1), 0.0)


def mirrored(count: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return which of a microbatch's ``count`` images are mirrored left to right, about every second one, as its 64-bit seed says."""
    chosen: npt.NDArray[np.bool_] = below(words("flip", seed, count), 2) == 1
    return chosen


def jitter_tables(count: int, white: int, seed: int, strength: int = 100) -> Pixels:
    """Return the (count, white + 1) tables from old levels to new ones of a microbatch's images: slightly other contrast and light.

    ``seed`` is the microbatch's, of 64 bits; ``strength`` as in ``augment``.
    """
    limits = np.array([_MAX_CONTRAST, _MAX_BRIGHTNESS]) * strength // 100
    changes_B2 = around(words("jitter", seed, count, 2), limits)
    return tone_tables(changes_B2[:, 0], changes_B2[:, 1], white)


def tone_tables(contrast_T: Integers, brightness_T: Integers, white: int) -> Pixels:
    """Return (T, white + 1) tables from old levels to new ones; both changes are in 256ths, brightness of white."""
    from_middle = 2 * np.arange(white + 1, dtype=np.int64) - white  # twice a level's distance from the middle
    levels = from_middle * (contrast_T[:, None] + _ONE) + 2 * white * brightness_T[:, None] + _ONE * white
    tables: Pixels = np.clip((levels + _ONE) // (2 * _ONE), 0, white).astype(np.uint8)
    return tables


def toned(images_T: Pixels, tables_T: Pixels) -> Pixels:
    """Return each of T images, of whatever shape, with its levels replaced as its own table says."""
    result: Pixels = np.empty_like(images_T, order="C")
    for image, table, changed in zip(images_T, tables_T, result, strict=True):
        table.take(image, out=changed, mode="clip")  # "clip" copies nothing: no level is outside of its table
    return result


def prepare(
    images_NCHW: Pixels,
    white: int,
    height: int,
    width: int,
    *,
    tables_NL: Pixels | None = None,
    is_turned_N: npt.NDArray[np.bool_] | None = None,
    axis: int = COLUMNS,
    device: str = "cpu",
) -> Tensor:
    """Return the images as fp32 (N, C, R, S) from 0 to 1, on ``device``; ``white`` is the largest value of a pixel.

    ``tables_NL``: new levels for the old ones, for each image; ``is_turned_N``: which images are turned over along ``axis``.
    """
    if device != "cpu":
        return _prepare_there(images_NCHW, white, height, width, tables_NL, is_turned_N, axis, device)
    if tables_NL is not None:
        images_NCHW = toned(images_NCHW, tables_NL)
    if is_turned_N is not None and is_turned_N.all():
        images_NCHW = np.flip(images_NCHW, axis)
    elif is_turned_N is not None and is_turned_N.any():
        images_NCHW = images_NCHW.copy() if tables_NL is None else images_NCHW  # which has been copied
        images_NCHW[is_turned_N] = np.flip(images_NCHW[is_turned_N], axis)
    return rescale(images_NCHW, white, height, width)


def _prepare_there(
    images_NCHW: Pixels,
    white: int,
    height: int,
    width: int,
    tables_NL: Pixels | None,
    is_turned_N: npt.NDArray[np.bool_] | None,
    axis: int,
    device: str,
) -> Tensor:
    images = sent(torch.tensor(images_NCHW), device)  # torch does not share memory that nobody may write
    if tables_NL is not None:
        tables = sent(torch.tensor(tables_NL), device)
        images = tables.gather(1, images.flatten(1).long()).view_as(images)
    if is_turned_N is not None and is_turned_N.any():
        is_turned = sent(torch.tensor(is_turned_N), device)[:, None, None, None]
        images = torch.where(is_turned, images.flip(axis), images)
    rows, columns = _taps(images.shape[ROWS], height, device), _taps(images.shape[COLUMNS], width, device)
    weight = rows.total * columns.total
    sums = images.to(torch.int32 if fits_32_bits(weight) else torch.int64)
    sums = columns.summed(rows.summed(sums, ROWS), COLUMNS)
    divisor = torch.full((1,), white * weight, dtype=torch.float64, device=device)  # by a plain number CUDA multiplies with its inverse
    return (sums.double() / divisor).float()


class _Taps:
    """How an axis is brought to another size, on a device; see ``automl.data.scaling``."""

    def __init__(self, size: int, target: int, device: str) -> None:
        axis = axis_of(size, target)
        self.total = axis.total
        self._places_TR = torch.from_numpy(axis.places.astype(np.int64)).to(device)
        self._weights_TR = torch.from_numpy(axis.weights).to(device)

    def summed(self, values: Tensor, axis: int) -> Tensor:
        """Return the weighted sums over the taps of an axis of whole values."""
        shape = [1] * values.dim()
        shape[axis] = -1
        parts = (
            values.index_select(axis, places_R).mul_(weights_R.to(values.dtype).view(shape))
            for places_R, weights_R in zip(self._places_TR, self._weights_TR, strict=True)
        )
        sums = next(parts)
        for part in parts:
            sums += part
        return sums


@lru_cache(maxsize=256)
def _taps(size: int, target: int, device: str) -> _Taps:
    return _Taps(size, target, device)
