"""torchvision's sets by their names in lower case, labelled images and stereo pairs: the door to that library's many readers.

Which sets there are is read from torchvision itself: every class that needs nothing but a folder and has a part to train with. The
tables below hold only what its signatures do not tell. Nothing is downloaded unless that is asked for.

On unpickling: the CIFAR sets are pickles, and torchvision loads them only after the MD5 sums of all their files were found right
(CIFAR10._check_integrity); it reads caches with torch.load(weights_only=True). LSUN, which unpickles a file as it lies there, is
not among the sets.

Stereo pairs are read when they are asked for. Level 0 is unknown in most sets and infinitely far in none that can be measured, so it counts
as unknown in all.
"""

import csv
import http.client
import inspect
import lzma
import shlex
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.datasets
from PIL import Image
from torchvision.datasets.utils import check_integrity

from manta_swarm.automl.data.images import ImageDataset, Indices, held_out_fifth
from manta_swarm.automl.data.names import DEFAULT_SIDE
from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.pictures import grey_or_rgb
from manta_swarm.automl.data.scaling import Pixels, has_colours, of_one_size, side_of, squares
from manta_swarm.automl.data.views import UNKNOWN, Pair, StereoDataset
from manta_swarm.protocol.errors import UserError

_WHITE = 255
# Sets whose parts are not called train and test.
_PARTS = {
    "CLEVRClassification": ("train", "val"),
    "FGVCAircraft": ("trainval", "test"),
    "ImageNet": ("train", "val"),
    "Imagenette": ("train", "val"),
    "OxfordIIITPet": ("trainval", "test"),
    "Places365": ("train-standard", "val"),
}
_WHOLE = {"Caltech101", "Caltech256", "EuroSAT", "SEMEION", "SUN397"}  # without parts: a fixed fifth is held out
_VARIANTS = {"EMNIST": torchvision.datasets.EMNIST.splits}  # chosen by a suffix: emnist-letters
_ARGUMENTS: dict[str, dict[str, object]] = {"Places365": {"small": True}}
# Signs that mean something else, or nothing, in a mirror.
_NOT_MIRRORED = {"EMNIST", "FashionMNIST", "GTSRB", "KMNIST", "MNIST", "QMNIST", "RenderedSST2", "SEMEION", "SVHN", "USPS"}
# They have parts called train and test, but what they hold are not labelled images.
_OTHER_TASKS = {"CelebA", "Cityscapes", "Kitti", "WIDERFace"}
_OTHER_BASES = {"FlowDataset", "StereoMatchingDataset"}
# What torchvision's readers raise over files that are missing, truncated or of something else, and over a failed download.
READER_ERRORS = (
    *(OSError, RuntimeError, ValueError, TypeError, AssertionError, LookupError, EOFError, SyntaxError),
    *(csv.Error, lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error, http.client.HTTPException),
)

_BASE = "StereoMatchingDataset"
# Parts with disparities, where there are two; of the other sets a fifth is held out.
_STEREO_PARTS = {"InStereo2k": ("train", "test"), "Middlebury2014Stereo": ("train", "additional")}
_BLOCKS = 50  # neighbours in a set are often one scene a moment later: every fifth of so many stretches is held out
_MIN_PAIRS = 10


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a set comes from: torchvision's class and its arguments for each part, one if it has no parts."""

    name: str
    reader: type[Any]
    parts: tuple[dict[str, object], ...]
    root: Path

    @property
    def can_download(self) -> bool:
        return "download" in _parameters(self.reader)

    @property
    def remedy(self) -> str:
        if self.can_download:
            return f"run manta-search data {self.name} --root {shlex.quote(str(self.root))} --download"
        return "torchvision cannot download it: unpack its files there by hand"


@cache
def torchvision_image_names() -> tuple[str, ...]:
    """Return the names of the sets, sorted."""
    variants = [f"{kind.lower()}-{variant}" for kind, some in _VARIANTS.items() for variant in some]
    return tuple(sorted([*_readers(), *variants]))


def torchvision_images(name: str, root: Path, *, download: bool = False, side: int = DEFAULT_SIDE) -> ImageDataset:
    """Return the set called ``name`` (one of ``torchvision_image_names``, or that with a stored size) from its files in ``root``.

    Images of different sizes are brought to one, at most ``side`` pixels. Classes are numbered from 0 in the order of their labels.

    Raises:
        UserError: the files are missing, truncated or damaged, or could not be downloaded; the message says what to do.
    """
    source = _source(name, root)
    parts = [_labelled(source, arguments, download, side) for arguments in source.parts]
    channels = 3 if any(has_colours(pictures) for pictures, _, _ in parts) else 1
    stored = side_of(parts[0][0])
    arrays = [(of_one_size(pictures, stored, channels), labels) for pictures, labels, _ in parts]
    classes = np.unique(arrays[0][1])
    train_images, train_labels = arrays[0][0], np.searchsorted(classes, arrays[0][1])
    if len(arrays) == 1:
        chosen = held_out_fifth(train_images, train_labels)
        held_out_images, held_out_labels = train_images[chosen], train_labels[chosen]
        train_images, train_labels = train_images[~chosen], train_labels[~chosen]
    else:
        unknown = np.setdiff1d(arrays[1][1], classes)
        if len(unknown):
            raise UserError(f"{name} has label {unknown[0]} in its held-out part only: {source.remedy}")
        held_out_images, held_out_labels = arrays[1][0], np.searchsorted(classes, arrays[1][1])
    flips = source.reader.__name__ not in _NOT_MIRRORED
    both = (train_images, train_labels, held_out_images, held_out_labels)
    titles = parts[0][2]
    named = tuple(titles[label] for label in classes) if classes[0] >= 0 and classes[-1] < len(titles) else ()
    return ImageDataset(name, _WHITE, len(classes), *both, flips=flips, titles=named)


@cache
def _readers() -> dict[str, type[Any]]:
    """Return torchvision's classes of labelled images that need nothing but a folder, by their names in lower case."""
    readers = {}
    for kind in torchvision.datasets.__all__:
        reader = getattr(torchvision.datasets, kind)
        if not inspect.isclass(reader) or kind in _OTHER_TASKS or any(base.__name__ in _OTHER_BASES for base in reader.__mro__):
            continue
        parameters = inspect.signature(reader).parameters.values()
        needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
        has_parts = any(one.name == "train" or (one.name == "split" and str(one.default).startswith("train")) for one in parameters)
        if needed == ["root"] and (has_parts or kind in _WHOLE):
            readers[kind.lower()] = reader
    return readers


def _parameters(reader: type[Any]) -> set[str]:
    """Return what a class can be called with: its own parameters, and its bases' where it hands on others."""
    parameters = inspect.signature(reader).parameters
    names = set(parameters)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        names = names.union(*(_parameters(base) for base in reader.__bases__ if base is not object))
    return names


def _source(name: str, root: Path) -> _Source:
    kind, _, variant = name.partition("-")
    reader = _readers().get(kind)
    extra: dict[str, object] = {}
    for family, variants in _VARIANTS.items():
        if kind == family.lower() and variant in variants:
            reader, extra = getattr(torchvision.datasets, family), {"split": variant}
    if reader is None:
        raise UserError(f"torchvision has no labelled images called {name!r}: choose one of {', '.join(torchvision_image_names())}")
    extra = extra | _ARGUMENTS.get(reader.__name__, {})
    parts: tuple[dict[str, object], ...]
    if reader.__name__ in _WHOLE:
        parts = ({},)
    elif "train" in _parameters(reader):
        parts = ({"train": True}, {"train": False})
    else:
        first, second = _PARTS.get(reader.__name__, ("train", "test"))
        parts = ({"split": first}, {"split": second})
    return _Source(name, reader, tuple(extra | part for part in parts), root)


def _labelled(source: _Source, arguments: dict[str, object], download: bool, side: int) -> tuple[list[Pixels], Indices, Sequence[str]]:
    """Return the squares of one part's images, their labels as torchvision has them, and what those are called, if it says so."""
    dataset = _opened(source, arguments, download)
    labels: list[int] = []

    def pictures() -> Iterator[Pixels]:
        for picture, label in _from_arrays(dataset, source) or _one_by_one(dataset, source):
            labels.append(label)
            yield picture

    kept = squares(pictures(), len(dataset), side, source.name)
    if not kept:
        raise UserError(f"{source.name} holds no images in {source.root}: {source.remedy}")
    return kept, np.array(labels, dtype=np.int64), _titles(dataset)


def _titles(dataset: Any) -> Sequence[str]:
    """Return what a set calls its labels, from 0 on; nothing where it does not say so in words."""
    listed = getattr(dataset, "classes", None) or getattr(dataset, "categories", None) or ()
    titles = [", ".join(one) if isinstance(one, tuple) else one for one in listed]  # ImageNet has several words for each
    return titles if all(isinstance(title, str) for title in titles) else ()


def _opened(source: _Source, arguments: dict[str, object], download: bool) -> Any:
    if source.can_download:  # some would download by default
        arguments = arguments | {"download": download}
    elif download:
        raise UserError(f"{source.name} cannot be downloaded by torchvision: unpack its files in {source.root} by hand")
    try:
        return source.reader(str(source.root), **arguments)
    except ImportError as error:
        raise UserError(f"{source.name} needs a library that is not installed: {one_line(error)}") from error
    except READER_ERRORS as error:
        reason = one_line(error)
        damaged = _damaged_file(source)
        if damaged is not None:
            raise UserError(f"{damaged} is truncated or damaged: delete it and {source.remedy}") from error
        if download:
            raise UserError(
                f"{source.name} could not be downloaded to {source.root} ({reason}): try again, or unpack it by hand"
            ) from error
        raise UserError(f"{source.name} is not, or not whole, in {source.root} ({reason}): {source.remedy}") from error


def one_line(error: BaseException) -> str:
    """Return what a reader says of its trouble, shortened."""
    text = " ".join(str(error).split()).split(" You can ")[0]  # without the library's own advice: it names arguments of its functions
    return text[:200] or type(error).__name__


def _damaged_file(source: _Source) -> Path | None:
    """Return a file of the set that is there and not as it should be: shorter than its head says, or with another MD5 sum."""
    for path in sorted((source.root / source.reader.__name__ / "raw").glob("*-idx*-ubyte")):
        if not _is_whole_idx(path):
            return path
    folder = source.root / str(getattr(source.reader, "base_folder", ""))
    listed = [*getattr(source.reader, "train_list", ()), *getattr(source.reader, "test_list", ())]
    listed += [entry[1:3] for entry in getattr(source.reader, "split_list", {}).values()]
    for name, md5 in listed:
        path = folder / str(name)
        if path.is_file() and not check_integrity(path, md5):
            return path
    return None


def _is_whole_idx(path: Path) -> bool:
    """Return whether a file of the MNIST format is as long as its head says: two zeros, a type, the number of axes, their lengths."""
    with path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 3:
            return False
        lengths = file.read(4 * head[3])
    if len(lengths) < 4 * head[3]:
        return False
    return path.stat().st_size == 4 + len(lengths) + int(np.prod(np.frombuffer(lengths, dtype=">u4").astype(object)))


def _from_arrays(dataset: Any, source: _Source) -> Iterable[tuple[Pixels, int]] | None:
    """Return pictures and labels of a set that keeps them in arrays whose first picture is what the set itself yields."""
    images, labels = (_array(dataset, *names) for names in (("data",), ("targets", "labels")))
    if images is None or labels is None or images.dtype != np.uint8 or images.ndim not in (3, 4) or labels.ndim != 1 or not len(images):
        return None
    if len(images) != len(labels):
        raise UserError(f"{source.name} has {len(images)} images and {len(labels)} labels in {source.root}: {source.remedy}")
    picture, label = dataset[0]
    for layout in (images, np.moveaxis(images, 1, -1)):
        if np.array_equal(layout[0], np.asarray(picture)) and int(labels[0]) == label:
            return zip(layout, labels.tolist(), strict=True)
    return None


def _array(dataset: Any, *names: str) -> Any:
    values = next((getattr(dataset, name) for name in names if hasattr(dataset, name)), None)
    if isinstance(values, torch.Tensor):
        return values.numpy()
    return None if values is None else np.asarray(values)


def _one_by_one(dataset: Any, source: _Source) -> Iterator[tuple[Pixels, int]]:
    for index in range(len(dataset)):
        try:
            picture, label = dataset[index]
        except (*READER_ERRORS, Image.DecompressionBombError) as error:
            where = file_of(dataset, index) or f"image {index} of {source.name} in {source.root}"
            raise UserError(f"{where} cannot be read ({one_line(error)}): delete it and unpack the set again") from error
        if not isinstance(picture, Image.Image) or not isinstance(label, int | np.integer):
            raise UserError(f"{source.name} holds no labelled images that can be trained on: choose another data set")
        yield grey_or_rgb(picture, f"image {index} of {source.name}"), int(label)


def file_of(dataset: Any, index: int) -> Path | None:
    """Return the file of one image, if the reader keeps a list of them, whatever it calls it."""
    for values in vars(dataset).values():
        if isinstance(values, list) and len(values) == len(dataset):
            first = values[index][0] if isinstance(values[index], tuple) else values[index]
            if isinstance(first, str | Path) and Path(first).is_file():
                return Path(first)
    return None


@cache
def torchvision_stereo_names() -> tuple[str, ...]:
    """Return the names of the sets, sorted."""
    return tuple(sorted(_stereo_readers()))


def torchvision_stereo(name: str, root: Path, *, download: bool = False) -> StereoDataset:
    """Return the set called ``name`` (of ``torchvision_stereo_names``) whose files torchvision finds in ``root``.

    Raises:
        UserError: the files are missing or do not fit together. A broken one is told when its pair is asked for.
    """
    reader = _stereo_readers()[name]
    if reader.__name__ in _STEREO_PARTS:
        train, held_out = (_opened_stereo(name, reader, root, {"split": part}, download) for part in _STEREO_PARTS[reader.__name__])
        return StereoDataset.from_pairs(name, _pairs(name, train, range(len(train))), _pairs(name, held_out, range(len(held_out))))
    both = _opened_stereo(name, reader, root, {}, download)
    count = len(both)
    if count < _MIN_PAIRS:
        raise UserError(f"{name} has {count} pairs in {root}, at least {_MIN_PAIRS} are needed: unpack all of it")
    blocks = min(_BLOCKS, count)
    is_held_out = [index * blocks // count % 5 == 4 for index in range(count)]
    parts = [[index for index in range(count) if is_held_out[index] == wanted] for wanted in (False, True)]
    return StereoDataset.from_pairs(name, *(_pairs(name, both, places) for places in parts))


@cache
def _stereo_readers() -> dict[str, type[Any]]:
    kinds = [getattr(torchvision.datasets, name) for name in torchvision.datasets.__all__]
    return {kind.__name__.lower(): kind for kind in kinds if inspect.isclass(kind) and any(base.__name__ == _BASE for base in kind.__mro__)}


def _opened_stereo(name: str, reader: type[Any], root: Path, arguments: dict[str, object], download: bool) -> Any:
    can_download = "download" in inspect.signature(reader).parameters
    if download and not can_download:
        raise UserError(f"{name} cannot be downloaded by torchvision: unpack its files in {root} by hand")
    if can_download:
        arguments = arguments | {"download": download}
    try:
        return reader(str(root), **arguments)
    except READER_ERRORS as error:
        remedy = f"run manta-search data {name} --root {root} --download" if can_download else "unpack its files there by hand"
        raise UserError(f"{name} is not, or not whole, in {root} ({one_line(error)}): {remedy}") from error


def _pairs(name: str, dataset: Any, places: Sequence[int]) -> Sequence[Pair]:
    return LazyPairs(lambda index: _pair(name, dataset, places[index]), len(places))


def _pair(name: str, dataset: Any, place: int) -> Pair:
    try:
        left, right, disparity, *masks = dataset[place]
        measured = np.asarray(disparity, dtype=np.float32).squeeze(0)
        is_known = np.isfinite(measured) & (measured > 0)
        for mask in masks:
            if mask is not None:
                is_known &= np.asarray(mask, dtype=bool)
        known = np.where(is_known, measured, UNKNOWN).astype(np.float32)
        return Pair(np.array(left), np.array(right), known)
    except READER_ERRORS as error:
        where = file_of(dataset, place)
        which = f"pair {place} of {name}" if where is None else f"{where} or what belongs to it"
        raise UserError(f"{which} cannot be read ({one_line(error)}): unpack the set again") from error
