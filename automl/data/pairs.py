"""Stereo pairs that are loaded or made when they are asked for, those in files of any layout, and the formats of their disparities.

Disparity maps are PFM files, or PNG files of 16 or 8 bits, read strictly, and bounded before anything is decoded. PFM: "Pf", width and
height, a scale whose sign tells the byte order (negative: little-endian), then fp32 rows, the lowest first.

A person's own pairs lie in left/, right/ and disparity/ with equal file names; stereo.json may have settings. Where one site has the left
views and the disparities, and another one the right views, each reads what it has.
"""

import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manta_swarm.automl.data.pictures import MAX_PIXELS, picture_size, read_levels, read_rgb
from manta_swarm.automl.data.views import LEFT, RIGHT, UNKNOWN, Disparity, Pair, StereoDataset
from manta_swarm.protocol.errors import UserError

KITTI_SCALE = 256.0  # levels a pixel of a 16-bit PNG, unless another scale is given
_HEAD = re.compile(rb"Pf\s(\d{1,6})\s(\d{1,6})\s([+-]?\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,2})?)(?:\r\n|\n|[ \t])")
_MAX_HEAD_BYTES = 64

KEPT_BYTES = 512 << 20

_PARTS = (LEFT, RIGHT, "disparity")
_PARTS_OF = {None: _PARTS, LEFT: (LEFT, "disparity"), RIGHT: (RIGHT,)}
_SETTINGS = "stereo.json"
_MAX_SETTINGS_BYTES = 1 << 20
_MIN_HELD_OUT = 2  # one for each half


def read_disparity(path: Path, scale: float | None = None) -> Disparity:
    """Return disparities (H, W) in pixels, below 0 where they are unknown.

    ``scale`` is how many levels of a PNG make a pixel: of 16 bits 256 if it is not given (as KITTI has it); 8 bits need it.
    Level 0 of a PNG, and in a PFM whatever is not a number from 0 on, means unknown.

    Raises:
        UserError: missing, of another format, too large, truncated, or without a scale that it needs.
    """
    if path.suffix.lower() == ".pfm":
        return _read_pfm(path)
    levels = read_levels(path)
    if scale is None and levels.dtype == np.uint8:
        raise UserError(f"{path} has 8-bit disparities: say how many levels make a pixel (the scale)")
    pixels = levels / (KITTI_SCALE if scale is None else scale)
    return np.where(levels == 0, UNKNOWN, pixels).astype(np.float32)


def disparity_size(path: Path) -> tuple[int, int]:
    """Return rows and columns of a disparity map, from the file's head alone; raises as ``read_disparity``."""
    if path.suffix.lower() != ".pfm":
        return picture_size(path)
    rows, columns, _, _ = _pfm_head(path)
    return rows, columns


def _read_pfm(path: Path) -> Disparity:
    rows, columns, byte_order, start = _pfm_head(path)
    values = np.fromfile(path, dtype=f"{byte_order}f4", offset=start, count=rows * columns).reshape(rows, columns)[::-1]
    return np.where(np.isfinite(values) & (values >= 0), values, UNKNOWN).astype(np.float32)


def _pfm_head(path: Path) -> tuple[int, int, str, int]:
    """Return rows, columns, byte order and the place of the first value, of a file that is as long as they say."""
    try:
        with path.open("rb") as file:
            head = file.read(_MAX_HEAD_BYTES)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    match = _HEAD.match(head)
    if match is None:
        raise UserError(f"{path} is not a grey PFM file (Pf, width, height, scale): save the disparities as one")
    columns, rows, scale = int(match[1]), int(match[2]), float(match[3])
    if not 0 < rows * columns <= MAX_PIXELS or scale == 0 or not math.isfinite(scale):
        raise UserError(f"{path} says {columns} x {rows} pixels and a scale of {scale}: at most {MAX_PIXELS} pixels and not 0")
    if size_bytes != match.end() + 4 * rows * columns:
        raise UserError(f"{path} is truncated or too long for {columns} x {rows} pixels: copy it again")
    return rows, columns, "<" if scale < 0 else ">", match.end()


class LazyPairs(Sequence[Pair]):
    """A sequence of pairs behind a function; those asked for last are kept. Not for several threads at once."""

    def __init__(self, make: Callable[[int], Pair], count: int, kept_bytes: int = KEPT_BYTES) -> None:
        """``make`` returns the pair of a place, 0 <= it < ``count``, every time the same one."""
        self._make = make
        self._count = count
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[int, Pair] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def keep(self, kept_bytes: int) -> None:
        """Keep no more than so many bytes of pairs from now on."""
        self._kept_bytes = kept_bytes

    @overload
    def __getitem__(self, place: int) -> Pair: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Pair]: ...

    def __getitem__(self, place: int | slice) -> Pair | Sequence[Pair]:
        if isinstance(place, slice):
            places = range(self._count)[place]
            return LazyPairs(lambda index: self[places[index]], len(places), kept_bytes=0)
        index = range(self._count)[place]
        pair = self._kept.pop(index, None)
        if pair is None:
            pair = self._make(index)
            self._size_bytes += _size_bytes(pair)
        self._kept[index] = pair
        while self._size_bytes > self._kept_bytes:
            self._size_bytes -= _size_bytes(self._kept.popitem(last=False)[1])
        return pair


def _size_bytes(pair: Pair) -> int:
    return pair.left.nbytes + pair.right.nbytes + pair.disparity.nbytes


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Where a pair lies, or what of it is here; ``scale`` as in ``read_disparity``."""

    left: Path | None
    right: Path | None
    disparity: Path | None
    scale: float | None = None

    def sizes(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        """Yield the files that are here, with their rows and columns."""
        for path, size_of in ((self.left, picture_size), (self.right, picture_size), (self.disparity, disparity_size)):
            if path is not None:
                yield path, size_of(path)


def pairs(files: Sequence[PairFiles]) -> Sequence[Pair]:
    """Return the pairs in these files, each loaded when it is asked for; what a file's head tells is checked now.

    A view that is not here is black, and disparities that are not here are unknown.

    Raises:
        UserError: a file is missing or of another format, or the three of a pair differ in size. A file that turns out to be
            truncated later, when its pair is asked for, raises then.
    """
    for one in files:
        (first, (rows, columns)), *others = one.sizes()
        for path, size in others:
            if size != (rows, columns):
                raise UserError(
                    f"{path} has {size[1]} x {size[0]} pixels, {first} has {columns} x {rows}: all of a pair must be of one size"
                )
        if columns < 2:
            raise UserError(f"{first} is one pixel wide: remove the pair")
    kept = tuple(files)
    return LazyPairs(lambda index: _load(kept[index]), len(kept))


def _load(files: PairFiles) -> Pair:
    views = [None if path is None else read_rgb(path) for path in (files.left, files.right)]
    black = np.zeros_like(next(view for view in views if view is not None))
    left, right = (black if view is None else view for view in views)
    if files.disparity is None:
        return Pair(left, right, np.full(black.shape[:2], UNKNOWN, np.float32))
    return Pair(left, right, read_disparity(files.disparity, files.scale))


class StereoSettings(BaseModel):
    """What stereo.json may say; without the file everything is as it is without the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    scale: float | None = Field(default=None, gt=0, lt=1e6, description="levels of a disparity PNG that make a pixel")
    held_out: tuple[str, ...] | None = Field(default=None, description="names, without endings; otherwise a fixed fifth of them")


def stereo_folder(name: str, folder: Path, view: str | None = None) -> StereoDataset:
    """Return the data set called ``name`` of a folder's pairs; with a ``view`` only what the site of that one has is read.

    Raises:
        UserError: a folder or a partner is missing, files don't fit together or are broken, or stereo.json is; it is named.
    """
    settings = _settings(folder / _SETTINGS)
    parts = {part: _files_by_stem(folder / part, _PARTS_OF[view]) for part in _PARTS_OF[view]}
    stems = sorted(set().union(*parts.values()))
    for part, files in parts.items():
        missing = next((stem for stem in stems if stem not in files), None)
        if missing is not None:
            raise UserError(f"{folder / part} has no file {missing}.*: every pair needs one in {', '.join(parts)}")
    held_out = _held_out(stems, settings.held_out, folder)
    train = [stem for stem in stems if stem not in held_out]
    kept = [stem for stem in stems if stem in held_out]

    def pairs_of(chosen: list[str]) -> Sequence[Pair]:
        files = [[parts[part][stem] if part in parts else None for part in _PARTS] for stem in chosen]
        return pairs([PairFiles(left, right, disparity, settings.scale) for left, right, disparity in files])

    return StereoDataset(name, pairs_of(train), pairs_of(kept), scenes=(*train, *kept))


def _settings(path: Path) -> StereoSettings:
    if not path.exists():
        return StereoSettings()
    try:
        if path.stat().st_size > _MAX_SETTINGS_BYTES:
            raise UserError(f"{path} has more than {_MAX_SETTINGS_BYTES} bytes: keep scale and held_out only")
        return StereoSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f'{path}: {where}: {first["msg"]}; write it like {{"scale": 4, "held_out": ["name"]}}') from error


def _files_by_stem(folder: Path, parts: tuple[str, ...]) -> dict[str, Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: put the pairs into {', '.join(parts)}, with equal names")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.stem in files:
            raise UserError(f"{files[path.stem]} and {path} have one name: remove one of them")
        files[path.stem] = path
    return files


def _held_out(stems: list[str], named: Iterable[str] | None, folder: Path) -> set[str]:
    """Return the names held out: those that are named, or the fifth whose SHA-256 is smallest."""
    if named is None:
        by_digest = sorted(stems, key=lambda stem: hashlib.sha256(stem.encode()).digest())
        chosen = set(by_digest[: max(_MIN_HELD_OUT, len(stems) // 5)])
    else:
        chosen = set(named)
        unknown = sorted(chosen - set(stems))
        if unknown:
            raise UserError(f"{folder / _SETTINGS} holds out {unknown[0]!r}, and there is no such pair: correct held_out")
    if len(chosen) < _MIN_HELD_OUT or len(stems) - len(chosen) < 1:
        raise UserError(f"{folder}: {len(stems)} pairs, {len(chosen)} of them held out: at least {_MIN_HELD_OUT}, and one to train with")
    return chosen
