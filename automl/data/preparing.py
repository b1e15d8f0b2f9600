"""From stored pixels to what a network is fed: other levels, turned over, brought to another size; the same bits on every device.

On the CPU numpy does it, a part at a time that stays in the cache. For another device the stored pixels, a byte each, are copied there and
torch does the same to them: integer sums, which come out the same in whatever order, and one division of doubles. Whether a device keeps to
that is tried before it is believed (``automl.training.microbatches``).

Shapes: N images, C channels, H and W before, R and S rows and columns after, L levels of a pixel, T taps of each new row or column.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manta_swarm.automl.data.augmentation import toned
from manta_swarm.automl.data.scaling import Pixels, axis_of, fits_32_bits, rescale
from manta_swarm.automl.transfers import sent

ROWS, COLUMNS = 2, 3  # axes of images


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
