"""Data sets by their names: what can be said of one without reading a sample. No torch, no torchvision.

``automl.data.catalog`` says what the names mean, and reads the sets.

Licences are told where the set itself, or who makes it, tells one, and written as model hubs write them.
"""

import ast
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from manta_swarm.automl.data.dataset import CLASSIFICATION, STEREO
from manta_swarm.protocol.errors import UserError

BUNDLED = {"digits": CLASSIFICATION, "layers": STEREO, "motorcycle": STEREO}  # by name their tasks; they need no folder
OWN_IMAGES, OWN_PAIRS, SHARDS = "folder-", "stereo-", "shards-"
DEFAULT_SIDE = 256  # pixels: no image is kept larger, if its set's name says nothing else
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")  # as a manifest's: never a path out of the root
_SIZED = re.compile(r"(.+)-([1-9]\d{0,3})px")
_MIN_SIDE = 8

UNKNOWN = "unknown"
# The pages of the sets: UCI's Optical Recognition of Handwritten Digits; zalandoresearch/fashion-mnist; made by this project's own code.
_TOLD = {"digits": "cc-by-4.0", "fashionmnist": "mit", "layers": "mit"}


def check_name(name: str, root: Path | None, *, may_download: bool = False) -> None:
    """Refuse what is no data set's name, and one whose folder is not there; the arguments are those of ``catalog.load_dataset``.

    Raises:
        UserError: as ``catalog.load_dataset`` for the same reason; what is in the files is not looked at.
    """
    if name in BUNDLED:
        return
    kind, _ = without_size(name)
    if kind.startswith(OWN_IMAGES):
        _check_folder(own_folder(kind, OWN_IMAGES, root))
    elif name.startswith((OWN_PAIRS, SHARDS)):
        _check_folder(own_folder(name, OWN_PAIRS if name.startswith(OWN_PAIRS) else SHARDS, root))
    else:
        known = _torchvision_names()
        if known and not {kind, kind.partition("-")[0]} & known:
            raise unknown(name, known)
        root_of(name, root, may_be_made=may_download)


def task_of(name: str) -> str | None:
    """Return the task of a data set whose name says it; None: the set does, torchvision's and one in shards."""
    if name.startswith((OWN_IMAGES, OWN_PAIRS)):
        return CLASSIFICATION if name.startswith(OWN_IMAGES) else STEREO
    return BUNDLED.get(name)


def without_size(name: str) -> tuple[str, int]:
    """Return a name without the size that it may end in, and the size.

    Raises:
        UserError: it is no name of a data set, or the size is too small.
    """
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} is no name of a data set: use lower-case letters, digits, dots, dashes and underscores")
    match = _SIZED.fullmatch(name)
    if match is None:
        return name, DEFAULT_SIDE
    if int(match[2]) < _MIN_SIDE:
        raise UserError(f"{name!r}: images of {match[2]} pixels show nothing: at least {_MIN_SIDE}px")
    return match[1], int(match[2])


def own_folder(name: str, prefix: str, root: Path | None) -> Path:
    """Return the folder of one's own data: one in the root, never the root itself or one above it.

    Raises:
        UserError: the name names none, or there is no such root.
    """
    inner = name.removeprefix(prefix)
    if _NAME.fullmatch(inner) is None:
        raise UserError(f"{name!r} names no folder: write {prefix}NAME, where NAME starts with a letter or a digit")
    return root_of(name, root) / inner


def check_shards_name(out: Path) -> None:
    """Refuse a folder for new shards that could not be named as a data set afterwards.

    Raises:
        UserError: so it is.
    """
    if _NAME.fullmatch(SHARDS + out.name) is None:
        raise UserError(f"{out}: the set would be called {SHARDS}{out.name}: use lower-case letters, digits, dots, dashes and underscores")
    own_folder(SHARDS + out.name, SHARDS, Path())


def root_of(name: str, root: Path | None, *, may_be_made: bool = False) -> Path:
    """Return the folder that holds the files of a set that no library brings along.

    Raises:
        UserError: none is named, or it is no folder.
    """
    if root is None:
        raise UserError(f"{name} is in no library: name the folder that holds its files, with --root or --data-root")
    if not root.is_dir() and not may_be_made:
        raise UserError(f"{root} is no folder: name the one that holds the files of {name}")
    return root


def check_root(root: Path) -> None:
    """Refuse a folder for data sets that is none.

    Raises:
        UserError: it is none.
    """
    if not root.is_dir():
        raise UserError(f"{root} is no folder: name the one that holds the data sets with --data-root, or leave it out")


def unknown(name: str, known: Iterable[str]) -> UserError:
    """Return what a person is told who names a set that is not ``known``, those of one's own and the bundled ones aside."""
    own = ", ".join([*BUNDLED, f"{OWN_IMAGES}NAME", f"{OWN_PAIRS}NAME", f"{SHARDS}NAME"])
    like = " or ".join(get_close_matches(without_size(name)[0], sorted(known)) or ["cifar10"])
    return UserError(f"unknown data set {name!r}: this version knows {own} and torchvision's sets by their names, like {like}")


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"cannot read {folder}: there is no such folder; check the name, and --data-root")


@cache
def _torchvision_names() -> frozenset[str]:
    """Return the lower-case names of all that torchvision.datasets has, sets of other tasks among them; none where it is not installed.

    They are read in its source: to import it takes ten seconds.
    """
    try:
        spec = find_spec("torchvision")
        folders = (spec.submodule_search_locations or []) if spec is not None else []
        source = ast.parse(Path(folders[0], "datasets", "__init__.py").read_text(encoding="utf-8"))
    except (ImportError, IndexError, OSError, SyntaxError, UnicodeDecodeError):
        return frozenset()
    return frozenset(alias.name.lower() for line in source.body if isinstance(line, ast.ImportFrom) for alias in line.names)


def licence_of(dataset: str) -> str:
    """Return the licence of the data set of this name, ``unknown`` where nobody told."""
    return _TOLD.get(without_size(dataset)[0], UNKNOWN)
