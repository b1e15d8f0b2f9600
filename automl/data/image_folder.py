"""Labelled images of one's own, a folder for each class: as a data set, as images that stay with their owner, as a long test set, in parts.

Images that stay with their owner lie in a folder for each class that there are images of, named as the run names its classes. What a
class's label is, whether there are colours and whether images are mirrored is the run's choice and follows from no image. A fifth is held
out, image by image, by its own digest: it stays held out whatever images are added later, and copies of an image are on one side.

Parts of a set are as those of owners who see different classes: each part's share of a class is drawn (Dirichlet). They are for trying out
private data on one computer, and for benchmarks (arXiv 1909.06335, section 3: identicalness by the concentration).
"""

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from manta_swarm.automl.data.dataset import ALL, CLASSIFICATION, Batch, EvaluationSet
from manta_swarm.automl.data.images import ImageDataset, Indices, held_out_fifth, resize
from manta_swarm.automl.data.names import DEFAULT_SIDE
from manta_swarm.automl.data.pictures import read_picture
from manta_swarm.automl.data.scaling import Pixels, has_colours, of_one_size, rescale_pixels, side_of, squares
from manta_swarm.automl.data.shards.reading import in_threads, one_ahead
from manta_swarm.protocol.errors import UserError

_WHITE = 255
_TRAIN = "train"
_HELD_OUT = ("test", "val")

ClassFiles = dict[str, list[Path]]  # of each class, its files; both in the order of their names

PRIVATE_NAME = "private"
_HELD_OUT_OF = 5  # one image of so many
_SHOWN = 12  # names of classes in a message

_TRIES = 1000


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
    pictures = squares(_pictures_of(files, channels), sum(map(len, files.values())), side, str(folder))
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


def _pictures_of(files: ClassFiles, channels: int) -> Iterator[Pixels]:
    for paths in files.values():
        for path in paths:
            picture = read_picture(path)
            if picture.ndim == 3 and channels == 1:
                raise UserError(f"{path} has colours, and the networks of this run see grey images: save it in grey, or remove it")
            yield picture


def is_held_out(picture: Pixels) -> bool:
    """Return whether a picture, as it is kept, is one that its owner measures by and never trains on: one in five, by its digest."""
    return int.from_bytes(hashlib.sha256(np.ascontiguousarray(picture).data).digest()[:8], "big") % _HELD_OUT_OF == 0


class WholeFolder:
    """Labelled images, none of which is held back. An EvaluationSet (automl.data.dataset)."""

    def __init__(
        self, folder: Path, titles: Sequence[str], channels: int, kept_side: int | None, calibrating: EvaluationSet | None = None
    ) -> None:
        """Look at what there is in ``folder``, with a folder for each class that there are images of.

        Args:
            folder: the folder.
            titles: what a network calls its classes, in the order of their labels.
            channels: 1 (grey) or 3 (RGB) of what the network is fed.
            kept_side: the side that pictures were brought to before all else where it was trained; None: they were not.
            calibrating: has the training images that statistics are measured on, if they are.

        Raises:
            UserError: no folder, or one of no class of the network.
        """
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder: name one with a folder for each class in it")
        files = class_files(folder, least=1)
        unknown = sorted(files.keys() - set(titles))
        if unknown:
            some = ", ".join(titles[:5]) + (", ..." if len(titles) > 5 else "")
            raise UserError(f"{folder / unknown[0]} is no class of the network, which has {some}: rename the folder, or move it away")
        self.folder = folder
        self._files = [(path, titles.index(name)) for name, paths in files.items() for path in paths]
        self._channels = channels
        self._kept_side = kept_side
        self._calibrating = calibrating

    def __len__(self) -> int:
        return len(self._files)

    @property
    def task(self) -> str:
        """Classification."""
        return CLASSIFICATION

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield training images of the set that is there to calibrate with.

        Raises:
            ValueError: there is none.
        """
        if self._calibrating is None:
            raise ValueError("there are no training images to calibrate with")
        return self._calibrating.calibration_batches(resolution, batch, limit)

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield all images; there are no parts.

        Raises:
            UserError: when it is its turn: a file is no image, or has colours that the network does not see.
            ValueError: a part is asked for.
        """
        if part != ALL:
            raise ValueError(f"a whole folder has no part {part!r}")
        starts = range(0, len(self._files), every * batch)
        return one_ahead(self._batch(self._files[start : start + batch], resolution) for start in starts)

    def _batch(self, files: Sequence[tuple[Path, int]], resolution: int) -> Batch:
        images = list(in_threads(lambda file: self._image(file[0], resolution), files))
        return Batch(torch.stack(images), torch.tensor([label for _, label in files], dtype=torch.int64))

    def _image(self, path: Path, resolution: int) -> Tensor:
        picture = read_picture(path)
        if picture.ndim == 3 and self._channels == 1:
            raise UserError(f"{path} has colours, and the network sees grey images: save it in grey, or remove it")
        rows, columns = picture.shape[:2]
        side = min(rows, columns)
        top, left = (rows - side) // 2, (columns - side) // 2
        square = picture[top : top + side, left : left + side]
        planes = square.transpose(2, 0, 1) if square.ndim == 3 else np.repeat(square[None], self._channels, axis=0)
        if self._kept_side is not None and side != self._kept_side:
            planes = rescale_pixels(planes[None], self._kept_side, self._kept_side)[0]
        return resize(planes[None], _WHITE, resolution)[0]


def dirichlet_split(labels_N: Indices, num_parts: int, alpha: float, seed: int, least: int = 1) -> list[Indices]:
    """Return the samples of each part, sorted; together they are all samples, each once.

    Args:
        labels_N: of the samples.
        num_parts: at least one.
        alpha: concentration, above 0: 0.1 gives most parts a class or two, 100 all of them about the same.
        seed: of the shares, and of who gets which samples.
        least: samples that each part has to have; shares are drawn again until it has.

    Raises:
        UserError: no such split can be drawn.
    """
    if num_parts < 1 or alpha <= 0 or least * num_parts > len(labels_N):
        raise UserError(f"{len(labels_N)} samples cannot be split into {num_parts} parts of at least {least}: ask for fewer parts")
    rng = np.random.default_rng(seed)
    for _ in range(_TRIES):
        parts: list[list[Indices]] = [[] for _ in range(num_parts)]
        for label in np.unique(labels_N):
            members = rng.permutation(np.flatnonzero(labels_N == label))
            cuts = (np.cumsum(rng.dirichlet([alpha] * num_parts))[:-1] * len(members)).astype(np.int64)
            for part, some in zip(parts, np.split(members, cuts), strict=True):
                part.append(some)
        split = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, split)) >= least:
            return split
    raise UserError(f"no split into {num_parts} parts of at least {least} samples came about: ask for fewer parts, or a larger alpha")


def part_of(dataset: ImageDataset, train: Indices, held_out: Indices) -> ImageDataset:
    """Return the set that has only some of another one's training images; what it holds out are also some of these."""
    images, labels = dataset.train_images, dataset.train_labels
    return replace(
        dataset,
        train_images=images[train],
        train_labels=labels[train],
        held_out_images=images[held_out],
        held_out_labels=labels[held_out],
    )


def write_class_folders(dataset: ImageDataset, chosen: Sequence[int], folder: Path) -> None:
    """Write some training images as PNG files, a folder for each of their classes; the folder is new.

    Raises:
        UserError: a name that is no folder's, or the disk refuses.
    """
    try:
        for index in chosen:
            own = folder / dataset.class_names[dataset.train_labels[index]]
            own.mkdir(parents=True, exist_ok=True)
            _image(dataset.train_images[index], dataset.white).save(own / f"{index:07}.png")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another place with --out") from error


def _image(planes_CHW: Pixels, white: int) -> Image.Image:
    levels = (planes_CHW.astype(np.int64) * _WHITE + white // 2) // white
    pixels = levels.astype(np.uint8)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
