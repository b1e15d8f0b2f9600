"""Labelled images that stay with their owner: a folder for each class that there are images of, named as the run names its classes.

They are prepared as ``automl.data.image_folder`` does it, but what a class's label is, whether there are colours and whether images are
mirrored is the run's choice and follows from no image. A fifth is held out, image by image, by its own digest: it stays held out whatever
images are added later, and copies of an image are on one side.
"""

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from manta_swarm.automl.data.image_folder import ClassFiles, class_files
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.pictures import read_picture
from manta_swarm.automl.data.scaling import Pixels
from manta_swarm.automl.data.sizes import of_one_size, side_of, squares
from manta_swarm.protocol.errors import UserError

PRIVATE_NAME = "private"
_WHITE = 255
_HELD_OUT = 5  # one image of so many
_SHOWN = 12  # names of classes in a message


def private_folder(folder: Path, classes: Sequence[str], *, channels: int, side: int, mirrored: bool, least: int) -> ImageDataset:
    """Return the images of a folder under the labels of ``classes``, the folders' names in the order of their labels.

    Some classes may be missing. Nothing may be held out of a few images: then there is nothing to measure by.

    Args:
        folder: with a folder for each class that there are images of.
        classes: the run's, at least two.
        channels: 1 (grey) or 3 (RGB) of what the run's networks are fed.
        side: no image is kept larger.
        mirrored: whether training mirrors images.
        least: images to train with that there have to be.

    Raises:
        UserError: no folder, one that is no class or empty, a file that is no image, colours in a run of grey images, or too few images.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: put the images there, in a folder for each class")
    files = _by_label(folder, classes)
    pictures = squares(_pictures(files, channels), sum(map(len, files.values())), side, str(folder))
    held_out = np.array([is_held_out(picture) for picture in pictures], dtype=bool)
    labels = np.repeat([classes.index(name) for name in files], [len(paths) for paths in files.values()]).astype(np.int64)
    num_train = len(labels) - int(held_out.sum())
    if num_train < least:
        raise UserError(
            f"{folder} has {num_train} images to train with, beside {len(labels) - num_train} that are held out to measure by; "
            f"a microbatch of this run has {least}: add images"
        )
    images = of_one_size(pictures, side_of(pictures), channels)
    parts = (images[~held_out], labels[~held_out], images[held_out], labels[held_out])
    return ImageDataset(PRIVATE_NAME, _WHITE, len(classes), *parts, flips=mirrored, names=tuple(classes))


def _by_label(folder: Path, classes: Sequence[str]) -> ClassFiles:
    """Return the files of the classes that are there, in the order of the labels, by the run's names of them."""
    found = {unicodedata.normalize("NFC", name): paths for name, paths in class_files(folder, least=1).items()}  # macOS writes them apart
    unknown = sorted(found.keys() - set(classes))
    if unknown:
        named = ", ".join(classes[:_SHOWN]) + (f" and {len(classes) - _SHOWN} more" if len(classes) > _SHOWN else "")
        raise UserError(f"{folder / unknown[0]} is no class of this run, which has {named}: rename the folder, or move it away")
    return {name: found[name] for name in classes if name in found}


def _pictures(files: ClassFiles, channels: int) -> Iterator[Pixels]:
    for paths in files.values():
        for path in paths:
            picture = read_picture(path)
            if picture.ndim == 3 and channels == 1:
                raise UserError(f"{path} has colours, and the networks of this run see grey images: save it in grey, or remove it")
            yield picture


def is_held_out(picture: Pixels) -> bool:
    """Return whether a picture, as it is kept, is one that its owner measures by and never trains on: one in five, by its digest."""
    return int.from_bytes(hashlib.sha256(np.ascontiguousarray(picture).data).digest()[:8], "big") % _HELD_OUT == 0
