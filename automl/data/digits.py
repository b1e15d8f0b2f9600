"""scikit-learn's digits: 1,797 real 8x8 images of ten handwritten digits, part of the library, no network needed.

The held-out fifth is fixed: in each class the images whose SHA-256 is smallest, so it depends on nothing but the pixels.
"""

import numpy as np
from sklearn.datasets import load_digits

from manta_swarm.automl.data.images import ImageDataset, held_out_fifth

_CLASSES = 10
_WHITE = 16


def digits() -> ImageDataset:
    """Return the digits: 1,442 to train with, 355 held out."""
    data = load_digits()
    images = data.images.astype(np.uint8)[:, None]
    labels = data.target.astype(np.int64)
    held_out = held_out_fifth(images, labels)
    return ImageDataset("digits", _WHITE, _CLASSES, images[~held_out], labels[~held_out], images[held_out], labels[held_out])
