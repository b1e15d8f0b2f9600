"""Backups of a run's folder, taken while the run goes on, and folders made of them again.

What is copied first is older: the tree head not ahead of the entries, the snapshots not ahead of the rounds, and the contributions from
which the rounds after a snapshot are computed come last. A copy is checked as a whole before it gets its name, and it is marked from its
first moment (``aggregator.log.guard``): whoever starts it signs nothing before a peer says that nothing newer was signed.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aggregator.attendants.auditor import FOLDER as AUDITOR
from aggregator.log.copying import check_backup, check_new, check_restore, part_of
from aggregator.log.guard import mark_restored
from aggregator.log.storage import DATABASE, MANIFEST, TREE_HEAD, is_at_rest, read_manifest, reading, sqlite_errors
from aggregator.log.verify import Verification, verify_directory
from aggregator.rounds.replay import BODIES, SNAPSHOTS
from aggregator.rounds.waiting import WAITING
from protocol.errors import StorageError, UserError
from runtime.disk import IDENTITY, disk_errors, make_directory, sync_directory

RUN_FILE = "run.toml"  # as it was at the last start
_OTHERS = ("measures", "listen", RUN_FILE, WAITING)
_TRIES = 3  # the run goes on meanwhile: what a snapshot needs may be pruned while it is copied
_PIECE_BYTES = 1 << 20


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


def restore(backup: Path, directory: Path, *, key: Path | None = None) -> Copied:
    """Make the folder ``directory`` of a backup, with the key in it or the one in the file ``key``; durable when this returns.

    Raises:
        UserError: that is no backup, the key is missing or another one, or ``directory`` is in use.
        StorageError: the disk fails, or the backup is damaged.
    """
    found, operator = check_restore(backup, directory, key=key)
    with _new_folder(directory, beside=backup) as part:
        copied = _copied(backup, part, key=found)
        if copied.log.operator != operator.public_key:
            raise UserError(f"{found} is the key of another operator than the one of this run's log")
    return copied


@contextlib.contextmanager
def _new_folder(folder: Path, *, beside: Path) -> Iterator[Path]:
    """Yield where to make a folder, which gets its name at the end; nothing of it is left if that fails.

    Raises:
        UserError: see ``check_new``, or it cannot be made.
    """
    check_new(folder, beside=beside)
    part = part_of(folder)
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
        if (directory / AUDITOR / IDENTITY).exists():  # the manifest names it: without it this operator audits nothing
            make_directory(part / AUDITOR)
            _copy(directory / AUDITOR / IDENTITY, part / AUDITOR / IDENTITY, mode=0o600)
    for folder in (SNAPSHOTS, BODIES, AUDITOR):
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
