"""Backups of a run's folder, taken while the run goes on, and folders made of them again.

What is copied first is older: the tree head not ahead of the entries, the snapshots not ahead of the rounds, and the contributions from
which the rounds after a snapshot are computed come last. A copy is checked as a whole before it gets its name, and it is marked from its
first moment (``aggregator.fence``): whoever starts it signs nothing before a peer says that nothing newer was signed.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aggregator.fence import RESTORED, mark_restored
from aggregator.replay import BODIES, SNAPSHOTS
from aggregator.storage import DATABASE, HANDED_OVER, MANIFEST, TREE_HEAD, is_at_rest, read_manifest, reading, sqlite_errors
from aggregator.verify import Verification, verify_directory
from protocol.errors import EncodingError, StorageError, UserError
from protocol.signing import Identity
from swarm.disk import IDENTITY, disk_errors, make_directory, sync_directory, write_durably

RUN_FILE = "run.toml"  # as it was at the last start
_OTHERS = ("measures", "listen", RUN_FILE)
_TRIES = 3  # the run goes on meanwhile: what a snapshot needs may be pruned while it is copied
_PIECE_BYTES = 1 << 20
_MAX_KEY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy of a folder holds, checked."""

    name: str  # of the run
    log: Verification
    snapshot: int  # the round of the newest state in it
    num_bytes: int
    has_key: bool


def back_up(directory: Path, to: Path, *, with_key: bool) -> Copied:
    """Copy the run of ``directory`` to the new folder ``to``, whether it is at work or at rest; durable when this returns.

    Raises:
        UserError: there is no run, or ``to`` cannot be made.
        StorageError: the disk fails, or the run is damaged.
    """
    check_backup(directory, to, with_key=with_key)
    with _new_folder(to, beside=directory) as part:
        return _copied(directory, part, key=directory / IDENTITY if with_key else None)


def check_backup(directory: Path, to: Path, *, with_key: bool) -> None:
    """Refuse a backup that cannot be made, as far as it shows before anything is copied.

    Raises:
        UserError: there is no run, no key, or ``to`` cannot be made.
        StorageError: the run is damaged.
    """
    read_manifest(directory)
    if with_key and not (directory / IDENTITY).exists():
        raise UserError(f"{directory / IDENTITY} is missing: there is no key to put into the backup")
    _check_new(to, beside=directory)


def restore(backup: Path, directory: Path, *, key: Path | None = None) -> Copied:
    """Make the folder ``directory`` of a backup, with the key in it or the one in the file ``key``; durable when this returns.

    Raises:
        UserError: that is no backup, the key is missing or another one, or ``directory`` is in use.
        StorageError: the disk fails, or the backup is damaged.
    """
    read_manifest(backup)
    found = key or backup / IDENTITY
    if not found.exists():
        raise UserError(
            f"there is no key {found}: " + ("check the path" if key else "the backup was made without it; name the file with --key FILE")
        )
    operator = _key_in(found)
    with _new_folder(directory, beside=backup) as part:
        copied = _copied(backup, part, key=found)
        if copied.log.operator != operator.public_key:
            raise UserError(f"{found} is the key of another operator than the one of this run's log")
    return copied


def mark_handed_over(directory: Path, to: Path) -> None:
    """Let nobody start the run of ``directory`` again; durable when this returns.

    Raises:
        StorageError: the disk refuses.
    """
    write_durably(directory / HANDED_OVER, f'{{"to": "{to.name}"}}\n'.encode())


def _key_in(path: Path) -> Identity:
    try:
        with path.open("rb") as file:
            return Identity.from_libp2p(file.read(_MAX_KEY_BYTES))
    except OSError as error:
        raise UserError(f"cannot read the key {path}: {error.strerror}") from error
    except EncodingError as error:
        raise UserError(f"{path} is no operator's key: {error}") from error


def _check_new(folder: Path, *, beside: Path) -> None:
    """Refuse the name of a folder that cannot be made new.

    Raises:
        UserError: there is something of that name, or in the place where it is made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already, and not empty; it is left as it is: choose another folder")
    if folder.absolute().resolve().is_relative_to(beside.absolute().resolve()):
        raise UserError(f"{folder} lies inside of {beside}: choose a folder elsewhere, best on another disk")
    part = _part_of(folder)
    # The mark is the first that is written to a copy: a folder that has none is somebody's own.
    if part.is_symlink() or (part.exists() and not _is_cut_off(part)):
        raise UserError(f"{part} is in the way, and is no copy that was cut off; it is left as it is: choose another folder")


def _part_of(folder: Path) -> Path:
    return folder.absolute().with_name(f"{folder.name}.part")


def _is_cut_off(part: Path) -> bool:
    names = {path.name for path in part.iterdir()} if part.is_dir() else {""}
    return RESTORED in names or names <= {f"{RESTORED}.part"}


@contextlib.contextmanager
def _new_folder(folder: Path, *, beside: Path) -> Iterator[Path]:
    """Yield where to make a folder, which gets its name at the end; nothing of it is left if that fails.

    Raises:
        UserError: see ``_check_new``, or it cannot be made.
    """
    _check_new(folder, beside=beside)
    part = _part_of(folder)
    with disk_errors(part):
        shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    make_directory(part)
    try:
        yield part
        with disk_errors(folder):
            if folder.exists():
                folder.rmdir()
            part.rename(folder)
        sync_directory(part.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _copied(directory: Path, part: Path, *, key: Path | None) -> Copied:
    """Copy what makes a run, and check the copy."""
    mark_restored(part)
    log, snapshot = _once_copied(directory, part, tries=_TRIES)
    if key is not None:
        _copy(key, part / IDENTITY, mode=0o600)
    for folder in (SNAPSHOTS, BODIES):
        if (part / folder).exists():
            sync_directory(part / folder)
    sync_directory(part)
    num_bytes = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
    return Copied(read_manifest(part).open().name, log, snapshot, num_bytes, key is not None)


def _once_copied(directory: Path, part: Path, *, tries: int) -> tuple[Verification, int]:
    """Copy log, states and contributions; return what the log adds up to, and the newest round whose state is there.

    Raises:
        StorageError: the run is damaged, or the disk fails.
    """
    try:
        for each in (MANIFEST, TREE_HEAD, *_OTHERS):
            _copy(directory / each, part / each)
        _copy_folder(directory / SNAPSHOTS, part / SNAPSHOTS)
        _copy_database(directory, part)
        _copy_folder(directory / BODIES, part / BODIES)
        log = verify_directory(part)
        snapshot = _newest_snapshot(part, log.rounds)
        if snapshot is None:
            raise StorageError(f"{directory} has no state from which round {log.rounds} can be computed; try again when less goes on there")
        return log, snapshot
    except StorageError:
        if tries == 1:
            raise
    for folder in (SNAPSHOTS, BODIES):
        shutil.rmtree(part / folder, ignore_errors=True)
    return _once_copied(directory, part, tries=tries - 1)


def _newest_snapshot(directory: Path, rounds: int) -> int | None:
    """Return the newest round whose state is in a copy, with the bodies of the rounds after it; None: there is none."""
    found = sorted(_round_of(path) for path in (directory / SNAPSHOTS).glob("round-*.safetensors"))
    bodies = {_round_of(path) for path in (directory / BODIES).glob("round-*.bodies")}
    newest = max((round_ for round_ in found if round_ <= rounds), default=None)
    return newest if newest is not None and bodies.issuperset(range(newest + 1, rounds + 1)) else None


def _round_of(path: Path) -> int:
    digits = path.stem.removeprefix("round-")
    return int(digits) if digits.isdigit() else -1


def _copy_database(directory: Path, part: Path) -> None:
    """Copy the log as it is at one moment, whatever is written to it meanwhile."""
    at_rest = is_at_rest(directory)
    path = part / DATABASE
    with disk_errors(path):
        path.unlink(missing_ok=True)
    with reading(directory, at_rest=at_rest) as connection, sqlite_errors(path):
        copy = sqlite3.connect(path, isolation_level=None)
        try:
            copy.execute("PRAGMA synchronous = EXTRA")
            connection.backup(copy)
        finally:
            copy.close()
    _sync(path)


def _copy_folder(source: Path, target: Path) -> None:
    if not source.exists():
        return
    make_directory(target)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix != ".part":
            _copy(path, target / path.name)


def _copy(source: Path, target: Path, *, mode: int = 0o644) -> None:
    """Copy a file, durably; one that is not there, or not any more, is passed over."""
    with disk_errors(target):
        try:
            reading_ = source.open("rb")
        except FileNotFoundError:
            return
        with reading_, open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as writing:
            shutil.copyfileobj(reading_, writing, _PIECE_BYTES)
            writing.flush()
            os.fsync(writing.fileno())


def _sync(path: Path) -> None:
    with disk_errors(path), path.open("rb") as file:
        os.fsync(file.fileno())
