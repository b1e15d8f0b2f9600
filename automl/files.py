"""Files that people name: read within a bound, written whole. Who reads sees the old file or the new one, never a half."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.runtime.disk import write_durably


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        UserError: there is no such file, it cannot be read, or it is longer than ``max_bytes``.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the name") from error
    if len(data) > max_bytes:
        raise UserError(f"{path} has more than {max_bytes} bytes, too many for what it should be; give another file")
    return data


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before hours go into what it should hold.

    Raises:
        UserError: it is a folder, or its own folder is missing or not writable.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write {path.name} to; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"the folder {path.parent} may not be written to; choose another one")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, in place of the one that may be there; durable when this returns.

    Raises:
        UserError: the folder or the disk refuses.
    """
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}; choose another place, or make it first")
    try:
        write_durably(path, data)
    except StorageError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        raise UserError(f"cannot write {path}: {reason}; choose another place, or make room") from error


@contextlib.contextmanager
def staged(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield an empty folder in ``folder``; what is written to it under ``names`` moves into ``folder`` in the end, all or nothing.

    What has one of these names already is replaced; whether that is wanted, the caller asks first. ``folder`` is made if missing.

    Raises:
        UserError: the disk refuses; everything is as before.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder") from error
    try:
        (stage / "new").mkdir()
        (stage / "old").mkdir()
        yield stage / "new"
        for path in (stage / "new").rglob("*"):
            _settle(path)
        _swap(folder, stage, names)
        _settle(folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder, or make room") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _settle(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(folder: Path, stage: Path, names: Sequence[str]) -> None:
    """Move the new ones in and the old ones out; when one cannot be moved, undo the others."""
    undo: list[tuple[Path, Path]] = []
    try:
        for name in names:
            for source, target in ((folder / name, stage / "old" / name), (stage / "new" / name, folder / name)):
                if os.path.lexists(source):
                    os.rename(source, target)
                    undo.append((target, source))
    except OSError:
        for moved, origin in reversed(undo):
            os.rename(moved, origin)
        raise
