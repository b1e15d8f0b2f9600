"""Data sets by their names, as a manifest's ``dataset`` or a command line has them.

- ``digits``, ``layers``, ``motorcycle``: of a library, or made here; they need no folder.
- a torchvision set by its name in lower case: ``cifar10``, ``fashionmnist``, ``emnist-letters``, ``kitti2015stereo``, ...
- ``folder-NAME``: one's own labelled images in root/NAME; ``stereo-NAME``: one's own stereo pairs.

A name of labelled images may end in a size, like ``food101-128px``: then no image is kept larger than that.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from automl.data.dataset import Dataset
from automl.data.digits import digits
from automl.data.image_folder import image_folder
from automl.data.layered import layers
from automl.data.motorcycle import motorcycle
from automl.data.sizes import DEFAULT_SIDE
from automl.data.stereo import StereoDataset
from automl.data.stereo_folder import stereo_folder
from protocol.errors import UserError

_BUNDLED: dict[str, Callable[[], Dataset]] = {"digits": digits, "layers": layers, "motorcycle": motorcycle}
_FOLDER, _STEREO = "folder-", "stereo-"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")  # as a manifest's: never a path out of the root
_SIZED = re.compile(r"(.+)-([1-9]\d{0,3})px")
_MIN_SIDE = 8


def load_dataset(name: str, root: Path | None = None, *, download: bool = False) -> Dataset:
    """Return the data set called ``name``; ``root`` is the folder that holds the data which no library brings along.

    With ``download`` torchvision may fetch what is missing into ``root``; otherwise nothing is downloaded.

    Raises:
        UserError: no such data set, or its files are missing or broken; the message says what to do.
    """
    if name in _BUNDLED:
        return _BUNDLED[name]()
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} is no name of a data set: use lower-case letters, digits, dots, dashes and underscores")
    kind, side = _without_size(name)
    if kind.startswith(_FOLDER):
        return replace(image_folder(kind, _own(kind, _FOLDER, root), side), name=name)
    if name.startswith(_STEREO):
        return stereo_folder(name, _own(name, _STEREO, root))
    return _torchvision(name, kind, side, root, download)


def load_view(name: str, view: str, root: Path | None) -> StereoDataset:
    """Return the stereo pairs called ``name`` of which only one view is in ``root``, and with the left one the disparities.

    Raises:
        UserError: as ``load_dataset``, or pairs of which nobody has one view only.
    """
    if not name.startswith(_STEREO):
        raise UserError(f"{name} comes with both views: leave --view out")
    return stereo_folder(name, _own(name, _STEREO, root), view)


def _torchvision(name: str, kind: str, side: int, root: Path | None, download: bool) -> Dataset:
    # Here and not above: it takes seconds to import, and the sets that need no files need no torchvision.
    from automl.data.torchvision_images import torchvision_image_names, torchvision_images
    from automl.data.torchvision_stereo import torchvision_stereo, torchvision_stereo_names

    if kind in torchvision_image_names():
        return replace(torchvision_images(kind, _root(name, root, download), download=download, side=side), name=name)
    if name in torchvision_stereo_names():
        return torchvision_stereo(name, _root(name, root, download), download=download)
    own = ", ".join([*_BUNDLED, "folder-NAME", "stereo-NAME"])
    like = " or ".join(get_close_matches(kind, [*torchvision_image_names(), *torchvision_stereo_names()]) or ["cifar10"])
    raise UserError(f"unknown data set {name!r}: this version knows {own} and torchvision's sets by their names, like {like}")


def _without_size(name: str) -> tuple[str, int]:
    """Return a name without the size that it may end in, and the size."""
    match = _SIZED.fullmatch(name)
    if match is None:
        return name, DEFAULT_SIDE
    if int(match[2]) < _MIN_SIDE:
        raise UserError(f"{name!r}: images of {match[2]} pixels show nothing: at least {_MIN_SIDE}px")
    return match[1], int(match[2])


def _own(name: str, prefix: str, root: Path | None) -> Path:
    """Return the folder of one's own data: one in the root, never the root itself or one above it."""
    inner = name.removeprefix(prefix)
    if _NAME.fullmatch(inner) is None:
        raise UserError(f"{name!r} names no folder: write {prefix}NAME, where NAME starts with a letter or a digit")
    return _root(name, root) / inner


def _root(name: str, root: Path | None, may_be_made: bool = False) -> Path:
    if root is None:
        raise UserError(f"{name} is in no library: name the folder that holds its files, with --root or --data-root")
    if not root.is_dir() and not may_be_made:
        raise UserError(f"{root} is no folder: name the one that holds the files of {name}")
    return root
