"""The samples of a few microbatches, cut out of a data set as they are stored: whoever gets them has the same pixels after augmentation.

Bytes in both directions, bounded and parsed strictly; compressed by zlib, which costs nothing in digits and halves pictures. What a
snippet knows of its data set is what augmentation needs. Labels and pixels are the set's own: a snippet shows them to whoever gets it.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from manta_swarm.automl.data.dataset import STEREO, Batch, Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError

MAX_BYTES = 2**26  # of a snippet that is unfolded
_MAX_SIDE = 2**14
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class _Images:
    white: int
    num_classes: int
    flips: int
    shape: tuple[int, int, int]  # channels, rows, columns
    labels: bytes  # 4 each, little-endian
    pixels: bytes

    def __post_init__(self) -> None:
        if not (1 <= self.white <= 255 and self.num_classes >= 1 and self.flips in (0, 1) and self.shape[0] in (1, 3)):
            raise ValueError("images of no kind that is known")
        _check_sides(self.shape[1:])


@dataclass(frozen=True, slots=True)
class _Pair:
    shape: tuple[int, int]  # rows, columns
    left: bytes
    right: bytes
    disparity: bytes  # binary32, little-endian

    def __post_init__(self) -> None:
        _check_sides(self.shape)


@dataclass(frozen=True, slots=True)
class _Stereo:
    pairs: tuple[_Pair, ...]


def _check_sides(sides: tuple[int, ...]) -> None:
    if not all(1 <= side <= _MAX_SIDE for side in sides):
        raise ValueError("pictures of no size that is known")


@dataclass(frozen=True, slots=True)
class Snippet:
    """Some training samples of a data set; an ``automl.data.dataset.TrainingSet`` whose other samples are not here."""

    num_train: int  # of the whole set: what a microbatch's samples are drawn from
    _places: dict[int, int] = field(repr=False)
    _samples: "ImageDataset | StereoDataset" = field(repr=False)

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        """Return these samples, augmented, as the whole set would.

        Raises:
            KeyError: one of them is not here.
        """
        return self._samples.training_batch([self._places[index] for index in indices], seed, resolution, strength, device)


def sample_bytes(dataset: Dataset) -> int:
    """Return how many bytes a stored sample has, about: stereo pairs need not be of one size.

    Raises:
        ValueError: a data set of another kind than there are.
    """
    if isinstance(dataset, ImageDataset):
        return int(dataset.train_images[0].nbytes) + 4
    if isinstance(dataset, StereoDataset):
        pair = dataset.train[0]
        return pair.left.nbytes + pair.right.nbytes + pair.disparity.nbytes
    raise ValueError(f"samples of {type(dataset).__name__} cannot be handed out")


def is_for_any_thread(dataset: Dataset) -> bool:
    """Return whether a snippet may be cut while another thread trains on the data set: pictures that are all in memory."""
    return isinstance(dataset, ImageDataset)


def cut(dataset: Dataset, indices: Sequence[int]) -> bytes:
    """Return a snippet of a data set with these training samples, each once.

    Raises:
        ValueError: a data set of another kind than there are.
    """
    chosen = sorted(set(indices))
    if isinstance(dataset, ImageDataset):
        images = dataset.train_images[chosen]
        channels, rows, columns = images.shape[1:]
        labels, pixels = dataset.train_labels[chosen].astype("<i4").tobytes(), np.ascontiguousarray(images, np.uint8).tobytes()
        shape = (int(channels), int(rows), int(columns))
        found = _Images(dataset.white, dataset.num_classes, int(dataset.flips), shape, labels, pixels)
        return zlib.compress(pack(found), _LEVEL)
    if isinstance(dataset, StereoDataset):
        pairs = tuple(_packed(dataset.train[index]) for index in chosen)
        return zlib.compress(pack(_Stereo(pairs)), _LEVEL)
    raise ValueError(f"samples of {type(dataset).__name__} cannot be handed out")


def _packed(pair: Pair) -> _Pair:
    rows, columns = pair.disparity.shape
    return _Pair((rows, columns), pair.left.tobytes(), pair.right.tobytes(), pair.disparity.astype("<f4").tobytes())


def load(data: bytes, task: str, num_train: int, indices: Sequence[int]) -> Snippet:
    """Return the snippet of ``cut``, which has to hold just these samples.

    Args:
        data: the bytes.
        task: the run's.
        num_train: how many training samples the whole set has.
        indices: of the samples, in whatever order and number; all below ``num_train``.

    Raises:
        EncodingError: it is no such snippet.
    """
    chosen = sorted(set(indices))
    found = _opened(data, task)
    samples = _images(found, len(chosen)) if isinstance(found, _Images) else _stereo(found, len(chosen))
    return Snippet(num_train, {index: place for place, index in enumerate(chosen)}, samples)


def _opened(data: bytes, task: str) -> _Images | _Stereo:
    unfolding = zlib.decompressobj()
    try:
        unfolded = unfolding.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise EncodingError(f"a snippet that cannot be unfolded: {error}") from error
    if not unfolding.eof or unfolding.unconsumed_tail or unfolding.unused_data:
        raise EncodingError("a snippet that is cut, too long, or has bytes after its end")
    return unpack(_Stereo, unfolded, max_bytes=MAX_BYTES) if task == STEREO else unpack(_Images, unfolded, max_bytes=MAX_BYTES)


def _images(found: _Images, count: int) -> ImageDataset:
    if len(found.pixels) != count * int(np.prod(found.shape)) or len(found.labels) != 4 * count or not count:
        raise EncodingError(f"a snippet that does not hold {count} images")
    images = np.frombuffer(found.pixels, np.uint8).reshape(count, *found.shape)
    labels = np.frombuffer(found.labels, "<i4").astype(np.int64)
    if labels.min() < 0 or labels.max() >= found.num_classes or images.max() > found.white:
        raise EncodingError("labels or pixels that their set cannot have")
    return ImageDataset("snippet", found.white, found.num_classes, images, labels, images[:0], labels[:0], bool(found.flips))


def _stereo(found: _Stereo, count: int) -> StereoDataset:
    if len(found.pairs) != count or not count:
        raise EncodingError(f"a snippet that does not hold {count} pairs")
    pairs = [_pair(each) for each in found.pairs]
    return StereoDataset.from_pairs("snippet", pairs, (pairs[0], pairs[0]))  # a set needs a held-out part; nobody asks for this one


def _pair(found: _Pair) -> Pair:
    rows, columns = found.shape
    if not len(found.left) == len(found.right) == 3 * rows * columns or len(found.disparity) != 4 * rows * columns:
        raise EncodingError("a pair of another size than it says")
    left, right = (np.frombuffer(view, np.uint8).reshape(rows, columns, 3) for view in (found.left, found.right))
    disparity = np.frombuffer(found.disparity, "<f4").astype(np.float32).reshape(rows, columns)
    if not np.isfinite(disparity).all():
        raise EncodingError("a disparity that is not finite")
    try:
        return Pair(left, right, disparity)
    except ValueError as error:
        raise EncodingError(str(error)) from error
