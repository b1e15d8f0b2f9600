"""torchvision's stereo sets by their names in lower case; their pairs are read through that library when they are asked for.

Level 0 is unknown in most of them and infinitely far in none that can be measured, so it counts as unknown in all.
"""

import inspect
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets

from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.torchvision_images import READER_ERRORS, file_of, one_line
from manta_swarm.automl.data.views import UNKNOWN, Pair, StereoDataset
from manta_swarm.protocol.errors import UserError

_BASE = "StereoMatchingDataset"
# Parts with disparities, where there are two; of the other sets a fifth is held out.
_PARTS = {"InStereo2k": ("train", "test"), "Middlebury2014Stereo": ("train", "additional")}
_BLOCKS = 50  # neighbours in a set are often one scene a moment later: every fifth of so many stretches is held out
_MIN_PAIRS = 10


@cache
def torchvision_stereo_names() -> tuple[str, ...]:
    """Return the names of the sets, sorted."""
    return tuple(sorted(_readers()))


def torchvision_stereo(name: str, root: Path, *, download: bool = False) -> StereoDataset:
    """Return the set called ``name`` (of ``torchvision_stereo_names``) whose files torchvision finds in ``root``.

    Raises:
        UserError: the files are missing or do not fit together. A broken one is told when its pair is asked for.
    """
    reader = _readers()[name]
    if reader.__name__ in _PARTS:
        train, held_out = (_opened(name, reader, root, {"split": part}, download) for part in _PARTS[reader.__name__])
        return StereoDataset.from_pairs(name, _pairs(name, train, range(len(train))), _pairs(name, held_out, range(len(held_out))))
    both = _opened(name, reader, root, {}, download)
    count = len(both)
    if count < _MIN_PAIRS:
        raise UserError(f"{name} has {count} pairs in {root}, at least {_MIN_PAIRS} are needed: unpack all of it")
    blocks = min(_BLOCKS, count)
    is_held_out = [index * blocks // count % 5 == 4 for index in range(count)]
    parts = [[index for index in range(count) if is_held_out[index] == wanted] for wanted in (False, True)]
    return StereoDataset.from_pairs(name, *(_pairs(name, both, places) for places in parts))


@cache
def _readers() -> dict[str, type[Any]]:
    kinds = [getattr(torchvision.datasets, name) for name in torchvision.datasets.__all__]
    return {kind.__name__.lower(): kind for kind in kinds if inspect.isclass(kind) and any(base.__name__ == _BASE for base in kind.__mro__)}


def _opened(name: str, reader: type[Any], root: Path, arguments: dict[str, object], download: bool) -> Any:
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
