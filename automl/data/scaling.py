"""Pixels brought to another size, exactly: integer weights, sums that are exact in fp64 in whatever order, the one division last.

An axis that shrinks is averaged over boxes (an area filter), one that grows is interpolated (bilinear, half-pixel centres).

Shapes: N images, C channels, H and W before, R and S rows and columns after.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Pixels = npt.NDArray[np.uint8]


def rescale(images_NCHW: Pixels, white: int, height: int, width: int) -> Tensor:
    """Return the images as fp32 (N, C, R, S) from 0 to 1; ``white`` is the largest value of a pixel."""
    sums_NCRS, weight = _weighted_sums(images_NCHW, height, width)
    return (sums_NCRS / (white * weight)).float()


def rescale_pixels(images_NCHW: Pixels, height: int, width: int) -> Pixels:
    """Return the images as uint8 (N, C, R, S), rounded half up."""
    sums_NCRS, weight = _weighted_sums(images_NCHW, height, width)
    rounded: Pixels = ((2 * sums_NCRS.numpy().astype(np.int64) + weight) // (2 * weight)).astype(np.uint8)
    return rounded


def _weighted_sums(images_NCHW: Pixels, height: int, width: int) -> tuple[Tensor, int]:
    """Return the fp64 sums (N, C, R, S), all integers below 2^53, and the sum of each one's weights."""
    rows_RH, row_weight = _weights(images_NCHW.shape[2], height)
    columns_SW, column_weight = _weights(images_NCHW.shape[3], width)
    images = torch.from_numpy(np.ascontiguousarray(images_NCHW)).double()
    return rows_RH @ images @ columns_SW.T, row_weight * column_weight


@lru_cache(maxsize=256)
def _weights(size: int, target: int) -> tuple[Tensor, int]:
    """Return the (target, size) weights of one axis, integers in fp64, and what each row of them sums to."""
    weights = np.zeros((target, size))
    if target < size:
        starts, edges = np.arange(target)[:, None] * size, np.arange(size)[None, :] * target  # in parts of a pixel: 1 / target
        weights += np.clip(np.minimum(starts + size, edges + target) - np.maximum(starts, edges), 0, None)
        return torch.from_numpy(weights), size
    unit = 2 * target
    for row in range(target):
        low, part = divmod(max((2 * row + 1) * size - target, 0), unit)  # the position in the source, in parts of ``unit``
        weights[row, min(low, size - 1)] += unit - part
        weights[row, min(low + 1, size - 1)] += part
    return torch.from_numpy(weights), unit
