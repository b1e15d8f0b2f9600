"""Stereo pairs and what a network is fed of them: windows of both views, resized exactly, augmented from a microbatch's seed.

Reads no file.

A pair is rectified: what left shows at (y, x), right shows at (y, x - d), where d >= 0 is the left view's disparity.

Shapes: B samples of a batch, H and W of a stored pair, R the resolution (a sample is R high and 2 R wide), h a window's height.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import ALL, STEREO, WINDOWS, Batch, Preparation, calibration_indices, part_indices
from manta_swarm.automl.data.preparing import ROWS, Integers, around, below, prepare, tone_tables, words
from manta_swarm.automl.data.scaling import Pixels
from manta_swarm.protocol.encoding import Value, encode
from manta_swarm.protocol.signing import Digest, sha256

Disparity = npt.NDArray[np.float32]

LEFT, RIGHT = VIEWS = ("left", "right")
UNKNOWN = -1.0
WHITE = 255
_ASPECT = 2
_PINNED = 4  # pairs of each part that a generated set's digest covers
# Light of a sample, in 256ths: what both views share, what a view has of its own, and a colour channel.
_CONTRAST, _VIEW_CONTRAST, _CHANNEL_CONTRAST = 64, 16, 16
_BRIGHTNESS, _VIEW_BRIGHTNESS, _CHANNEL_BRIGHTNESS = 32, 8, 12
_TONE_LIMITS = [(_CONTRAST, _BRIGHTNESS)] + [(_VIEW_CONTRAST, _VIEW_BRIGHTNESS)] * 2 + [(_CHANNEL_CONTRAST, _CHANNEL_BRIGHTNESS)] * 3


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two views of a scene, and the disparity of the left one in pixels; below 0 where it is unknown."""

    left: Pixels = field(repr=False)  # (H, W, 3)
    right: Pixels = field(repr=False)  # (H, W, 3)
    disparity: Disparity = field(repr=False)  # (H, W)

    def __post_init__(self) -> None:
        if not self.left.shape == self.right.shape == (*self.disparity.shape, 3) or min(self.left.shape[0], self.left.shape[1] // 2) < 1:
            raise ValueError(f"no stereo pair: {self.left.shape} left, {self.right.shape} right, {self.disparity.shape} disparities")

    @property
    def windows(self) -> list["Window"]:
        """The largest windows that fit, side by side or one below the other, so that together they cover the picture."""
        rows, columns = self.disparity.shape
        height = min(rows, columns // _ASPECT)
        tops, lefts = _starts(rows, height), _starts(columns, _ASPECT * height)
        return [Window(top, left, height) for top in tops for left in lefts]


class Window(NamedTuple):
    """A part of a picture, twice as wide as high."""

    top: int
    left: int
    height: int


class Sample(NamedTuple):
    """What a network gets of one window, and the disparities there."""

    views: Tensor  # fp32 (6, R, 2 R)
    disparity: Tensor  # fp32 (R, 2 R)


class PartDigests(NamedTuple):
    """What a data set's digest is made of."""

    left: bytes
    right: bytes
    disparity: bytes


@dataclass(frozen=True)
class StereoDataset:
    """Stereo pairs of whatever sizes, each one loaded or made when it is asked for. A Dataset (automl.data.dataset).

    A sample is a window of a pair: a random one to train with, fixed ones to measure with.
    """

    name: str
    train: Sequence[Pair] = field(repr=False)
    held_out: Sequence[Pair] = field(repr=False)
    origin: Value = ()  # what the pairs follow from, where a generator makes them: its version and its parameters
    scenes: tuple[str, ...] = field(default=(), repr=False)  # names of the pairs, where they have some: first of those to train with

    def __post_init__(self) -> None:
        if len(self.train) < 1 or len(self.held_out) < 2:
            raise ValueError(f"{len(self.train)} pairs to train with and {len(self.held_out)} held out: at least 1 and 2 are needed")

    @classmethod
    def from_pairs(cls, name: str, train: Sequence[Pair], held_out: Sequence[Pair]) -> "StereoDataset":
        """Return the data set of these pairs.

        Raises:
            ValueError: nothing to train with, or less than two pairs held out.
        """
        return cls(name, train, held_out)

    @property
    def task(self) -> str:
        """Stereo."""
        return STEREO

    @property
    def image_channels(self) -> int:
        """Three, RGB, of each view."""
        return 3

    @property
    def num_classes(self) -> int:
        """There are no classes."""
        return 0

    @property
    def class_titles(self) -> tuple[str, ...]:
        """There are no classes."""
        return ()

    @property
    def preparation(self) -> Preparation:
        """Windows, each brought to the resolution at once."""
        return Preparation(WINDOWS, WHITE, None)

    @property
    def num_train(self) -> int:
        """Pairs to train with."""
        return len(self.train)

    @property
    def num_held_out(self) -> int:
        """Pairs held out; each gives one or more samples."""
        return len(self.held_out)

    @cached_property
    def digest(self) -> Digest:
        """SHA-256 over name, sizes, raw pixels and disparities, or over a generator's ``origin`` and a few of its pairs."""
        return self.digest_of(self.part_digests)

    def digest_of(self, parts: PartDigests) -> Digest:
        """Return the digest of the data set of this name and these sizes whose parts have the digests ``parts``."""
        return sha256(encode(("manta/stereo/v2", self.name, self.origin, len(self.train), len(self.held_out), *parts)))

    @cached_property
    def part_digests(self) -> PartDigests:
        """SHA-256 over the left views, over the right views and over the disparities, with their sizes."""
        hashers = [hashlib.sha256(f"manta/stereo/v2/{part}".encode()) for part in PartDigests._fields]
        for pairs in (self.train, self.held_out):
            for index in range(min(len(pairs), _PINNED) if self.origin else len(pairs)):
                pair = pairs[index]
                disparity = np.where(pair.disparity < 0, UNKNOWN, pair.disparity).astype("<f4")
                for hasher, pixels in zip(hashers, (pair.left, pair.right, disparity), strict=True):
                    hasher.update(encode(pair.disparity.shape))
                    hasher.update(pixels.tobytes())
        return PartDigests(*(hasher.digest() for hasher in hashers))

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        """Return a random window of each of these training pairs, the two views in slightly different light.

        ``strength``: in percent, of the light's changes alone; which window is taken, and which is upside down, does not depend on it.
        """
        words_BK = words("stereo", seed, len(indices), 4 + 2 * len(_TONE_LIMITS))
        drawn = zip(indices, words_BK, strict=True)
        return _stacked([_augmented(self.train[index], words_K, resolution, strength, device) for index, words_K in drawn])

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield views (B, 6, R, 2 R) of training pairs as they are, a fixed choice; see Dataset."""
        if self.num_train >= limit:
            places = [(place * self.num_train // limit, place) for place in range(limit)]
        else:
            places = [(index, number) for index in range(self.num_train) for number in range(len(self.train[index].windows))]
        for chosen in calibration_indices(len(places), batch, limit):
            yield _stacked(_window_of(self.train[index], number, resolution) for index, number in (places[i] for i in chosen)).inputs

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield the largest windows of the held-out pairs of a part, so that they cover each picture; every second pair is of a half."""
        samples = []
        for place, index in enumerate(part_indices(np.zeros(len(self.held_out), dtype=np.int64), part)):
            if place // batch % every:
                continue
            pair = self.held_out[index]
            for window in pair.windows:
                samples.append(_sample(pair, window, resolution))
                if len(samples) == batch:
                    yield _stacked(samples)
                    samples = []
        if samples:
            yield _stacked(samples)


def _starts(size: int, window: int) -> list[int]:
    """Return the starts of as few windows as cover an axis, evenly spread from its one end to the other."""
    count = -(-size // window)
    return [place * (size - window) // max(count - 1, 1) for place in range(count)]


def _stacked(samples: Iterable[Sample]) -> Batch:
    views, disparities = zip(*samples, strict=True)
    return Batch(torch.stack(views), torch.stack(disparities))


def _window_of(pair: Pair, number: int, resolution: int) -> Sample:
    windows = pair.windows
    return _sample(pair, windows[number % len(windows)], resolution)


def _sample(
    pair: Pair, window: Window, resolution: int, tables: Pixels | None = None, upside_down: bool = False, device: str = "cpu"
) -> Sample:
    """Return a window at a resolution; ``tables`` (6, 256) change the levels of the left view's three channels, then the right's."""
    rows = slice(window.top, window.top + window.height)
    columns = slice(window.left, window.left + _ASPECT * window.height)
    planes = np.concatenate([view[rows, columns].transpose(2, 0, 1) for view in (pair.left, pair.right)])[:, None]
    is_turned = np.full(len(planes), upside_down)
    width = _ASPECT * resolution
    views = prepare(planes, WHITE, resolution, width, tables_NL=tables, is_turned_N=is_turned, axis=ROWS, device=device)[:, 0]
    disparity = pair.disparity[rows, columns]
    return Sample(views, torch.from_numpy(_rescaled_disparity(disparity[::-1] if upside_down else disparity, resolution)))


def _rescaled_disparity(disparity: Disparity, resolution: int) -> Disparity:
    """Return the (R, 2 R) disparities of a window (h, 2 h): those of the nearest pixels, in the new pixels' size.

    Nearest and not averaged: between two surfaces there is nothing at a middling distance.
    """
    height = len(disparity)
    nearest = (2 * np.arange(_ASPECT * resolution) + 1) * height // (2 * resolution)
    picked = disparity[np.ix_(nearest[:resolution], nearest)]
    return np.where(picked < 0, UNKNOWN, picked.astype(np.float64) * resolution / height).astype(np.float32)


def _augmented(pair: Pair, words_K: Integers, resolution: int, strength: int, device: str) -> Sample:
    """Return a window of between half the largest height and all of it, never enlarged where the pair is large enough."""
    rows, columns = pair.disparity.shape
    largest = min(rows, columns // _ASPECT)
    smallest = max(-(-largest // 2), min(resolution, largest))
    height = smallest + int(below(words_K[0], largest - smallest + 1))
    top, left = int(below(words_K[1], rows - height + 1)), int(below(words_K[2], columns - _ASPECT * height + 1))
    changes = around(
        words_K[4:].reshape(-1, 2), np.array(_TONE_LIMITS) * strength // 100
    )  # contrast and brightness: of all, of views, of channels
    of_planes = changes[0] + changes[1:3, None] + changes[None, 3:]
    tables = tone_tables(of_planes[..., 0].ravel(), of_planes[..., 1].ravel(), WHITE)
    return _sample(pair, Window(top, left, height), resolution, tables, upside_down=bool(below(words_K[3], 2)), device=device)
