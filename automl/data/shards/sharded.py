"""Data sets in shards: labelled images at their own sizes, and stereo pairs. A Dataset (automl.data.dataset) of either kind.

Of an image a window is cut, as a microbatch's seed says. A pair is read when it is asked for, and those asked for last are kept.

A set may have only some of the shards to train with here: microbatches are then drawn from their samples alone. Held-out samples, and those
that statistics are made with, are those of the whole set.

Shapes: B images of a batch, C channels, H and W of a picture as it is stored, R the resolution, h a window's side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import ALL, CENTRE_SQUARE, CLASSIFICATION, Batch, Preparation, calibration_indices, part_indices
from manta_swarm.automl.data.images import Indices, resize
from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.preparing import below, jitter_tables, mirrored, words
from manta_swarm.automl.data.scaling import Pixels
from manta_swarm.automl.data.shards.layout import ShardList
from manta_swarm.automl.data.shards.reading import Recent, Shards, in_threads, one_ahead
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.protocol.signing import Digest

KEPT_BYTES = 256 << 20  # of decoded pictures, in each process
_WHITE = 255


class Part:
    """Some of a set's shards to train with."""

    def __init__(self, list_: ShardList, numbers: Sequence[int]) -> None:
        """Take these, in ascending order: the samples of one after those of the other.

        Raises:
            ValueError: none, or others than there are.
        """
        if not numbers or list(numbers) != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < list_.num_train_shards:
            raise ValueError(f"{len(numbers)} shards that are no part of {list_.num_train_shards} to train with")
        ends = np.cumsum([shard.samples for shard in list_.shards])
        counts = np.array([list_.shards[number].samples for number in numbers])
        self.numbers = tuple(numbers)
        self._ends = np.cumsum(counts)
        self._offsets = ends[list(numbers)] - self._ends  # from a sample's number in the part to its place in the set

    @property
    def num_train(self) -> int:
        """Samples of all these shards."""
        return int(self._ends[-1])

    def places(self, indices: Sequence[int]) -> list[int]:
        """Return where samples of this part stand in the set."""
        wanted = np.array(indices, np.int64)
        found: list[int] = (wanted + self._offsets[np.searchsorted(self._ends, wanted, "right")]).tolist()
        return found


class _Cut(NamedTuple):
    """What a microbatch makes of a sample."""

    place: int
    window: tuple[int, int, int]  # words: side, top, left
    is_mirrored: bool
    table: Pixels | None  # of levels


class ShardedImages:
    """A labelled set of which only what is asked for is read; see ``Shards`` for what is damaged or missing. For any number of threads."""

    def __init__(self, name: str, shards: Shards, kept_bytes: int = KEPT_BYTES, part: Part | None = None) -> None:
        """Call ``shards`` ``name``, keep so many bytes of the pictures asked for last, and train with a ``part``; None: with all."""
        self.name = name
        self.shards = shards
        self.part = part
        self.flips = bool(shards.list.flips)
        self._kept: Recent[Pixels] = Recent(kept_bytes)

    def with_part(self, numbers: Sequence[int]) -> "ShardedImages":
        """Return the set as it is where only some shards to train with are here; see ``Part``."""
        return ShardedImages(self.name, self.shards, part=Part(self.shards.list, numbers))

    @property
    def task(self) -> str:
        """Classification."""
        return CLASSIFICATION

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, in the order of their labels."""
        return self.shards.list.classes

    @property
    def class_titles(self) -> tuple[str, ...]:
        """What people call them: the same."""
        return self.class_names

    @property
    def preparation(self) -> Preparation:
        """The centre square, brought to the resolution at once."""
        return Preparation(CENTRE_SQUARE, _WHITE, None)

    @property
    def num_classes(self) -> int:
        """How many they are."""
        return len(self.shards.list.classes)

    @property
    def image_channels(self) -> int:
        """C: 1 (grey) or 3 (RGB)."""
        return self.shards.list.channels

    @property
    def num_train(self) -> int:
        """Images to train with."""
        return self.shards.list.num_train if self.part is None else self.part.num_train

    @property
    def num_held_out(self) -> int:
        """Images held out."""
        return self.shards.list.num_held_out

    @property
    def digest(self) -> Digest:
        """The root over the shards; see automl.data.shards.layout."""
        return self.shards.list.digest

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        """Return a random window of each of these training images; flipped where ``flips``; colours jittered.

        ``strength``: in percent, of the colours' changes alone. The windows differ in size: threads of the CPU, which have to decode the
        pictures anyway, bring them to the resolution one by one, whatever ``device`` there is.

        Raises:
            SamplesMissing: a shard with some of them is not as it should be.
        """
        places = indices if self.part is None else self.part.places(indices)
        self.shards.need(places)
        words_B3 = words("window", seed, len(indices), 3).tolist()
        mirrored_B = mirrored(len(indices), seed) & self.flips
        tables_B = jitter_tables(len(indices), _WHITE, seed, strength) if self.image_channels == 3 else [None] * len(indices)
        cuts = [_Cut(*cut) for cut in zip(places, words_B3, mirrored_B, tables_B, strict=True)]
        images_BCRR = torch.stack(list(in_threads(lambda cut: _augmented(self._planes(cut.place), cut, resolution), cuts)))
        return Batch(images_BCRR, torch.tensor([self.shards.label(place) for place in places], dtype=torch.int64))

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield the centre squares (B, C, R, R) of training images, a fixed choice; see Dataset."""
        chosen = calibration_indices(self.shards.list.num_train, batch, limit)
        return one_ahead(self._centres(places.tolist(), resolution) for places in chosen)

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield the centre squares of the held-out images of a part; its halves have equally many of each class, give or take one."""
        first = self.shards.list.num_train
        labels = self.shards.labels(range(first, first + self.num_held_out))
        chosen = part_indices(labels, part)
        starts = range(0, len(chosen), every * batch)
        return one_ahead(self._held_out(chosen[start : start + batch], labels, resolution) for start in starts)

    def _held_out(self, chosen: Indices, labels: Indices, resolution: int) -> Batch:
        return Batch(self._centres((chosen + self.shards.list.num_train).tolist(), resolution), torch.from_numpy(labels[chosen]))

    def _centres(self, places: Sequence[int], resolution: int) -> Tensor:
        return torch.stack(list(in_threads(lambda place: _centre(self._planes(place), resolution), places)))

    def _planes(self, place: int) -> Pixels:
        """Return a picture (C, H, W), read-only in effect: it is kept for others."""
        picture = self._kept.get(place)
        if picture is None:
            found = self.shards.sample(place)
            assert isinstance(found, np.ndarray)
            picture = found
            self._kept.put(place, picture, picture.nbytes)
        if picture.ndim == 3:
            return picture.transpose(2, 0, 1)
        return np.broadcast_to(picture, (3, *picture.shape)) if self.image_channels == 3 else picture[None]


def _augmented(planes_CHW: Pixels, cut: _Cut, resolution: int) -> Tensor:
    """Return a window of between half the shorter side and all of it, never enlarged where the picture is large enough."""
    _, rows, columns = planes_CHW.shape
    largest = min(rows, columns)
    smallest = max(-(-largest // 2), min(resolution, largest))
    of_side, of_top, of_left = cut.window
    side = smallest + _below(of_side, largest - smallest + 1)
    top, left = _below(of_top, rows - side + 1), _below(of_left, columns - side + 1)
    window = planes_CHW[:, top : top + side, left : left + side]
    if cut.is_mirrored:
        window = window[:, :, ::-1]
    return _resized(window if cut.table is None else cut.table[window], resolution)


def _below(word: int, bound: int) -> int:
    return int(below(np.array(word, np.int64), bound))


def _centre(planes_CHW: Pixels, resolution: int) -> Tensor:
    _, rows, columns = planes_CHW.shape
    side = min(rows, columns)
    top, left = (rows - side) // 2, (columns - side) // 2
    return _resized(planes_CHW[:, top : top + side, left : left + side], resolution)


def _resized(window_Chh: Pixels, resolution: int) -> Tensor:
    """Return a window as fp32 (C, R, R)."""
    return resize(window_Chh[None], _WHITE, resolution)[0]


@dataclass(frozen=True)
class ShardedPairs(StereoDataset):
    """A stereo set whose digest is the root over its shards."""

    shards: Shards = field(kw_only=True, repr=False)
    part: Part | None = field(default=None, kw_only=True, repr=False)  # that ``train`` has the pairs of; None: of all

    @cached_property
    def digest(self) -> Digest:
        """See automl.data.shards.layout."""
        return self.shards.list.digest

    def with_part(self, numbers: Sequence[int]) -> "ShardedPairs":
        """Return the set as it is where only some shards to train with are here; see ``Part``."""
        part = Part(self.shards.list, numbers)
        train = LazyPairs(lambda index: _pair_at(self.shards, part.places([index])[0]), part.num_train)
        return replace(self, train=train, part=part)

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield views of training pairs of the whole set, see ``StereoDataset``."""
        whole = self if self.part is None else sharded_pairs(self.name, self.shards)
        return super(ShardedPairs, whole).calibration_batches(resolution, batch, limit)


def sharded_pairs(name: str, shards: Shards) -> ShardedPairs:
    """Return the pairs in ``shards``; see there for what is damaged or missing."""
    first = shards.list.num_train
    train = LazyPairs(lambda place: _pair_at(shards, place), first)
    held_out = LazyPairs(lambda place: _pair_at(shards, first + place), shards.list.num_held_out)
    return ShardedPairs(name, train, held_out, shards=shards)


def _pair_at(shards: Shards, place: int) -> Pair:
    found = shards.sample(place)
    assert isinstance(found, Pair)
    return found
