"""Pictures of all sizes brought to one, so that a set is an array: the centre square of each, exactly rescaled.

Shapes: N pictures, C channels, S the side.
"""

from collections.abc import Iterable

import numpy as np

from manta_swarm.automl.data.scaling import Pixels, rescale_pixels
from manta_swarm.protocol.errors import UserError

MAX_BYTES = 8 << 30
_JUDGED_AFTER = 100  # pictures: then their mean size says whether the set will fit


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
        images[place] = _scaled(_planes(pictures.pop()), side)
    return images


def _square(picture: Pixels, side: int) -> Pixels:
    rows, columns = picture.shape[:2]
    shorter = min(rows, columns)
    top, left = (rows - shorter) // 2, (columns - shorter) // 2
    centre = picture[top : top + shorter, left : left + shorter]
    if shorter <= side:
        return centre.copy()
    scaled = _scaled(_planes(centre), side)
    return scaled[0] if picture.ndim == 2 else scaled.transpose(1, 2, 0).copy()


def _planes(picture: Pixels) -> Pixels:
    return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)


def _scaled(planes_CHW: Pixels, side: int) -> Pixels:
    return planes_CHW if planes_CHW.shape[1] == side else rescale_pixels(planes_CHW[None], side, side)[0]
