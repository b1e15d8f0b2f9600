"""Data sets by their names, as a manifest's ``dataset`` or a command line has them; two of them come with a library.

- ``digits``, ``layers``, ``motorcycle``: of a library, or made here; they need no folder.
- a torchvision set by its name in lower case: ``cifar10``, ``fashionmnist``, ``emnist-letters``, ``kitti2015stereo``, ...
- ``folder-NAME``: one's own labelled images in root/NAME; ``stereo-NAME``: one's own stereo pairs.
- ``shards-NAME``: images or pairs in shards in root/NAME, read when they are asked for.

A name of labelled images may end in a size, like ``food101-128px``: then no image is kept larger than that.

``digits`` are scikit-learn's 1,797 real 8x8 images of ten handwritten digits. The held-out fifth is fixed: in each class the images whose
SHA-256 is smallest, so it depends on nothing but the pixels.

``motorcycle`` is scikit-image's one real stereo pair with measured disparities. The upper rows are there to train with, the lower ones are
held out: as two pictures, so that a search has one and a test the other.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.image_folder import image_folder
from manta_swarm.automl.data.images import ImageDataset, held_out_fifth
from manta_swarm.automl.data.names import BUNDLED, OWN_IMAGES, OWN_PAIRS, SHARDS, own_folder, root_of, unknown, without_size
from manta_swarm.automl.data.pairs import stereo_folder
from manta_swarm.automl.data.shards.layout import IMAGES
from manta_swarm.automl.data.shards.reading import open_shards
from manta_swarm.automl.data.shards.sharded import ShardedImages, sharded_pairs
from manta_swarm.automl.data.views import UNKNOWN, Pair, StereoDataset
from manta_swarm.protocol.errors import UserError

_DIGITS_CLASSES = 10
_DIGITS_WHITE = 16

_MOTORCYCLE_FIRST_HELD_OUT_ROW = 315
_MOTORCYCLE_ROWS = 500
_MOTORCYCLE_HALF = 370  # columns: twice the 185 rows held out, so that each half is one window; the last column is dropped


def digits() -> ImageDataset:
    """Return the digits: 1,442 to train with, 355 held out."""
    with _library_of("digits"):  # here and not above: the library takes seconds to import, and only its own set needs it
        from sklearn.datasets import load_digits
    data = load_digits()
    images = data.images.astype(np.uint8)[:, None]
    labels = data.target.astype(np.int64)
    held_out = held_out_fifth(images, labels)
    return ImageDataset("digits", _DIGITS_WHITE, _DIGITS_CLASSES, images[~held_out], labels[~held_out], images[held_out], labels[held_out])


def motorcycle() -> StereoDataset:
    """Return the pair: 315 x 740 pixels to train with, 185 x 740 held out, disparities of up to 60 pixels."""
    with _library_of("motorcycle"):  # as in ``digits``
        from skimage.data import stereo_motorcycle
    left, right, measured = stereo_motorcycle()
    disparity = np.where(np.isfinite(measured) & (measured >= 0), measured, UNKNOWN).astype(np.float32)

    def part(rows: slice, columns: slice) -> Pair:
        return Pair(left[rows, columns].copy(), right[rows, columns].copy(), disparity[rows, columns].copy())

    upper, lower = slice(0, _MOTORCYCLE_FIRST_HELD_OUT_ROW), slice(_MOTORCYCLE_FIRST_HELD_OUT_ROW, _MOTORCYCLE_ROWS)
    train = part(upper, slice(0, 2 * _MOTORCYCLE_HALF))
    held_out = [part(lower, slice(0, _MOTORCYCLE_HALF)), part(lower, slice(_MOTORCYCLE_HALF, 2 * _MOTORCYCLE_HALF))]
    return StereoDataset.from_pairs("motorcycle", [train], held_out)


def load_dataset(name: str, root: Path | None = None, *, download: bool = False) -> Dataset:
    """Return the data set called ``name``; ``root`` is the folder that holds the data which no library brings along.

    With ``download`` torchvision may fetch what is missing into ``root``; otherwise nothing is downloaded.

    Raises:
        UserError: no such data set, or its files are missing or broken; the message says what to do.
    """
    if name in BUNDLED:
        return _bundled(name)
    kind, side = without_size(name)
    if kind.startswith(OWN_IMAGES):
        return replace(image_folder(kind, own_folder(kind, OWN_IMAGES, root), side), name=name)
    if name.startswith(OWN_PAIRS):
        return stereo_folder(name, own_folder(name, OWN_PAIRS, root))
    if name.startswith(SHARDS):
        shards = open_shards(own_folder(name, SHARDS, root))
        return ShardedImages(name, shards) if shards.list.kind == IMAGES else sharded_pairs(name, shards)
    return _torchvision(name, kind, side, root, download)


def load_view(name: str, view: str, root: Path | None) -> StereoDataset:
    """Return the stereo pairs called ``name`` of which only one view is in ``root``, and with the left one the disparities.

    Raises:
        UserError: as ``load_dataset``, or pairs of which nobody has one view only.
    """
    if not name.startswith(OWN_PAIRS):
        raise UserError(f"{name} comes with both views: leave --view out")
    return stereo_folder(name, own_folder(name, OWN_PAIRS, root), view)


def _bundled(name: str) -> Dataset:
    if name == "digits":
        return digits()
    if name == "motorcycle":
        return motorcycle()
    from manta_swarm.automl.data.layered import layers

    return layers()


def _torchvision(name: str, kind: str, side: int, root: Path | None, download: bool) -> Dataset:
    with _library_of(name):
        from manta_swarm.automl.data.torchvision_sets import (
            torchvision_image_names,
            torchvision_images,
            torchvision_stereo,
            torchvision_stereo_names,
        )

    if kind in torchvision_image_names():
        folder = root_of(name, root, may_be_made=download)
        return replace(torchvision_images(kind, folder, download=download, side=side), name=name)
    if name in torchvision_stereo_names():
        return torchvision_stereo(name, root_of(name, root, may_be_made=download), download=download)
    raise unknown(name, [*torchvision_image_names(), *torchvision_stereo_names()])


@contextlib.contextmanager
def _library_of(name: str) -> Iterator[None]:
    """While the library of a data set is imported: say in a line that it is missing, or does not fit.

    Raises:
        UserError: so it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(f"{name} needs {error.name}, which is not installed: pip install 'manta-swarm[swarm]'") from error
    except (ImportError, RuntimeError) as error:  # a torchvision of another build than torch: "operator torchvision::nms does not exist"
        raise UserError(
            f"{name}: its library does not fit torch {torch.__version__} ({error}); torch and torchvision have to come from one place, "
            "both for the CPU or both for GPUs"
        ) from error
