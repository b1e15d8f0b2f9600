"""scikit-image's Motorcycle: one real stereo pair with measured disparities, part of the library, no network needed.

The upper rows are there to train with, the lower ones are held out: as two pictures, so that a search has one and a test the other.
"""

import numpy as np
from skimage.data import stereo_motorcycle

from manta_swarm.automl.data.views import UNKNOWN, Pair, StereoDataset

_FIRST_HELD_OUT_ROW = 315
_ROWS = 500
_HALF = 370  # columns: twice the 185 rows held out, so that each half is one window; the last column is dropped


def motorcycle() -> StereoDataset:
    """Return the pair: 315 x 740 pixels to train with, 185 x 740 held out, disparities of up to 60 pixels."""
    left, right, measured = stereo_motorcycle()
    disparity = np.where(np.isfinite(measured) & (measured >= 0), measured, UNKNOWN).astype(np.float32)

    def part(rows: slice, columns: slice) -> Pair:
        return Pair(left[rows, columns].copy(), right[rows, columns].copy(), disparity[rows, columns].copy())

    upper, lower = slice(0, _FIRST_HELD_OUT_ROW), slice(_FIRST_HELD_OUT_ROW, _ROWS)
    train = part(upper, slice(0, 2 * _HALF))
    held_out = [part(lower, slice(0, _HALF)), part(lower, slice(_HALF, 2 * _HALF))]
    return StereoDataset.from_pairs("motorcycle", [train], held_out)
