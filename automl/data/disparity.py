"""Disparity maps in files: PFM, and PNG of 16 or 8 bits. Strict, and bounded before anything is decoded.

PFM: "Pf", width and height, a scale whose sign tells the byte order (negative: little-endian), then fp32 rows, the lowest first.
"""

import math
import re
from pathlib import Path

import numpy as np

from manta_swarm.automl.data.pictures import MAX_PIXELS, picture_size, read_levels
from manta_swarm.automl.data.views import UNKNOWN, Disparity
from manta_swarm.protocol.errors import UserError

KITTI_SCALE = 256.0  # levels a pixel of a 16-bit PNG, unless another scale is given
_HEAD = re.compile(rb"Pf\s(\d{1,6})\s(\d{1,6})\s([+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,2})?)(?:\r\n|\n|[ \t])")
_MAX_HEAD_BYTES = 64


def read_disparity(path: Path, scale: float | None = None) -> Disparity:
    """Return disparities (H, W) in pixels, below 0 where they are unknown.

    ``scale`` is how many levels of a PNG make a pixel: of 16 bits 256 if it is not given (as KITTI has it); 8 bits need it.
    Level 0 of a PNG, and in a PFM whatever is not a number from 0 on, means unknown.

    Raises:
        UserError: missing, of another format, too large, truncated, or without a scale that it needs.
    """
    if path.suffix.lower() == ".pfm":
        return _read_pfm(path)
    levels = read_levels(path)
    if scale is None and levels.dtype == np.uint8:
        raise UserError(f"{path} has 8-bit disparities: say how many levels make a pixel (the scale)")
    pixels = levels / (KITTI_SCALE if scale is None else scale)
    return np.where(levels == 0, UNKNOWN, pixels).astype(np.float32)


def disparity_size(path: Path) -> tuple[int, int]:
    """Return rows and columns of a disparity map, from the file's head alone; raises as ``read_disparity``."""
    if path.suffix.lower() != ".pfm":
        return picture_size(path)
    rows, columns, _, _ = _pfm_head(path)
    return rows, columns


def _read_pfm(path: Path) -> Disparity:
    rows, columns, byte_order, start = _pfm_head(path)
    values = np.fromfile(path, dtype=f"{byte_order}f4", offset=start, count=rows * columns).reshape(rows, columns)[::-1]
    return np.where(np.isfinite(values) & (values >= 0), values, UNKNOWN).astype(np.float32)


def _pfm_head(path: Path) -> tuple[int, int, str, int]:
    """Return rows, columns, byte order and the place of the first value, of a file that is as long as they say."""
    try:
        with path.open("rb") as file:
            head = file.read(_MAX_HEAD_BYTES)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    match = _HEAD.match(head)
    if match is None:
        raise UserError(f"{path} is not a grey PFM file (Pf, width, height, scale): save the disparities as one")
    columns, rows, scale = int(match[1]), int(match[2]), float(match[3])
    if not 0 < rows * columns <= MAX_PIXELS or scale == 0 or not math.isfinite(scale):
        raise UserError(f"{path} says {columns} x {rows} pixels and a scale of {scale}: at most {MAX_PIXELS} pixels and not 0")
    if size_bytes != match.end() + 4 * rows * columns:
        raise UserError(f"{path} is truncated or too long for {columns} x {rows} pixels: copy it again")
    return rows, columns, "<" if scale < 0 else ">", match.end()
