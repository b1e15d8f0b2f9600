"""Labelled images of one's own: a folder for each class, or train/ and test/ (or val/) with a folder for each class."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from manta_swarm.automl.data.images import ImageDataset, Indices, held_out_fifth
from manta_swarm.automl.data.names import DEFAULT_SIDE
from manta_swarm.automl.data.pictures import read_picture
from manta_swarm.automl.data.scaling import Pixels
from manta_swarm.automl.data.sizes import has_colours, of_one_size, side_of, squares
from manta_swarm.protocol.errors import UserError

_WHITE = 255
_TRAIN = "train"
_HELD_OUT = ("test", "val")

ClassFiles = dict[str, list[Path]]  # of each class, its files; both in the order of their names


def image_folder(name: str, folder: Path, side: int = DEFAULT_SIDE) -> ImageDataset:
    """Return the data set called ``name`` of a folder's images; none is kept larger than ``side`` pixels.

    With train/ and test/ (or else val/) these are the parts; otherwise a fifth of each class is held out, a fixed one. Colour images
    are mirrored in training, grey ones (which may be letters) are not.

    Raises:
        UserError: no folder, less than two classes, an empty one, one that is only in one part, or a file that is no image.
    """
    files, held_out_files = folder_parts(folder)
    if held_out_files is not None:
        return _from_parts(name, files, held_out_files, side)
    pictures = squares(_pictures(files), _count(files), side, name)
    images = of_one_size(pictures, side_of(pictures), 3 if has_colours(pictures) else 1)
    labels = _labels(files)
    held_out = held_out_fifth(images, labels)
    parts = (images[~held_out], labels[~held_out], images[held_out], labels[held_out])
    return ImageDataset(name, _WHITE, len(files), *parts, flips=images.shape[1] == 3, names=tuple(files))


def folder_parts(folder: Path) -> tuple[ClassFiles, ClassFiles | None]:
    """Return the files to train with, and those held out; None: nobody has chosen, and each class has at least two.

    Raises:
        UserError: as ``image_folder``, before any image is read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: put the images there, in a folder for each class")
    held_out_folder = next((folder / part for part in _HELD_OUT if (folder / part).is_dir()), None)
    if (folder / _TRAIN).is_dir() and held_out_folder is not None:
        return _chosen_parts(folder / _TRAIN, held_out_folder)
    files = class_files(folder)
    for label, paths in files.items():
        if len(paths) < 2:
            raise UserError(f"{folder / label} has one image: add a second one, to be held out, or remove the class")
    return files, None


def _chosen_parts(train_folder: Path, held_out_folder: Path) -> tuple[ClassFiles, ClassFiles]:
    train, held_out = class_files(train_folder), class_files(held_out_folder)
    odd = sorted(set(train) ^ set(held_out))
    if odd:
        here, there = (train_folder, held_out_folder) if odd[0] in train else (held_out_folder, train_folder)
        raise UserError(f"class {odd[0]!r} is in {here} and not in {there}: both parts need the same classes")
    return train, held_out


def _from_parts(name: str, train: ClassFiles, held_out: ClassFiles, side: int) -> ImageDataset:
    train_pictures = squares(_pictures(train), _count(train), side, name)
    held_out_pictures = squares(_pictures(held_out), _count(held_out), side, name)
    channels = 3 if has_colours([*train_pictures, *held_out_pictures]) else 1
    stored = side_of(train_pictures)
    images = [of_one_size(pictures, stored, channels) for pictures in (train_pictures, held_out_pictures)]
    parts = (images[0], _labels(train), images[1], _labels(held_out))
    return ImageDataset(name, _WHITE, len(train), *parts, flips=channels == 3, names=tuple(train))


def class_files(folder: Path, least: int = 2) -> ClassFiles:
    """Return the files of each class; what starts with a dot is not looked at, nor are files beside the classes' folders.

    Raises:
        UserError: it cannot be read, there are less than ``least`` classes, an empty one, or a folder in one.
    """
    try:
        return _class_files(folder, least)
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from error


def _class_files(folder: Path, least: int) -> ClassFiles:
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < least:
        needed = "at least 2 are needed" if least == 2 else f"at least {least} is needed"
        raise UserError(f"{folder} has {len(classes)} class folders: {needed}, with the images of a class in each")
    files = {path.name: sorted(file for file in path.iterdir() if not file.name.startswith(".")) for path in classes}
    for label, paths in files.items():
        if not paths:
            raise UserError(f"{folder / label} is empty: put images there or remove it")
        inner = next((path for path in paths if path.is_dir()), None)
        if inner is not None:
            raise UserError(f"{inner} is a folder inside of a class: move its images to {folder / label}")
    return files


def _pictures(files: ClassFiles) -> Iterator[Pixels]:
    return (read_picture(path) for paths in files.values() for path in paths)


def _labels(files: ClassFiles) -> Indices:
    return np.repeat(np.arange(len(files), dtype=np.int64), [len(paths) for paths in files.values()])


def _count(files: ClassFiles) -> int:
    return sum(map(len, files.values()))
