"""What both programs keep in a directory: an identity (0600, made once), files that are whole or absent, one process at a time."""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from manta_swarm.protocol.errors import EncodingError, StorageError, UserError
from manta_swarm.protocol.signing import Identity

IDENTITY = "identity.key"
_MAX_SETTINGS_BYTES = 1 << 20


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn any error of the operating system into a StorageError that names ``path``."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{path}: {reason}; make room, or check the disk and the permissions, then start again") from error


def make_directory(directory: Path) -> None:
    """Make a directory and those above it (0700 each), durably, where they are not there.

    Raises:
        UserError: it cannot be made or written to.
        StorageError: it cannot be made durable.
    """
    directory = directory.absolute()
    try:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in (*reversed(missing), directory):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {directory}: {error.strerror}; choose another with --dir") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to the directory {directory}; choose another with --dir")
    for path in missing or [directory]:  # whoever made it a moment ago may not have synced its parent
        if os.access(path.parent, os.R_OK):
            sync_directory(path.parent)


def make_parent(path: Path) -> None:
    """Make the directory of a file of the program's own, where it is not there.

    Raises:
        StorageError: it cannot be made: nobody chose it.
    """
    if not path.parent.exists():
        try:
            make_directory(path.parent)
        except UserError as error:
            raise StorageError(str(error)) from error


def check_directory(directory: Path) -> None:
    """Refuse a directory that ``make_directory`` could not make or write to, as far as that shows; nothing is made.

    Raises:
        UserError: so it is.
    """
    directory = directory.absolute()
    nearest = next(path for path in (directory, *directory.parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"cannot make the directory {directory}: {nearest} is a file; choose another with --dir")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to the directory {nearest}; choose another with --dir")


class DirectoryLock:
    """The exclusive right to write in a directory, until ``release`` or the end of this process, however it ends.

    A POSIX record lock and not ``flock``: a forked child that outlives a killed program must not keep its lock. Such a lock does
    not bind its own process, hence the set of those held.
    """

    _held: ClassVar[set[Path]] = set()

    def __init__(self, directory: Path, who: str, *, name: str = "lock") -> None:
        """Take the lock, which is the file ``name``; ``who`` else may hold it.

        Raises:
            UserError: it is taken.
            StorageError: the lock file cannot be made.
        """
        self._path = directory.resolve() / name
        taken = UserError(f"another {who} uses {directory}: stop it first, or choose another directory with --dir")
        if self._path in self._held:
            raise taken
        with disk_errors(self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._file)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise taken from error
                raise
        self._held.add(self._path)

    def release(self) -> None:
        """Give the lock back; once."""
        self._held.discard(self._path)
        os.close(self._file)


@contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """Keep every other peer and aggregator out of a directory.

    Raises:
        UserError: one of them is in it.
        StorageError: the lock file cannot be made.
    """
    lock = DirectoryLock(directory, "peer or aggregator")
    try:
        yield
    finally:
        lock.release()


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file that is there whole after a crash, or as it was before; it is on the disk when this returns. Its directory is made.

    Raises:
        StorageError: the disk refuses.
    """
    make_parent(path)
    part = path.with_name(f"{path.name}.part")
    with disk_errors(path):
        part.unlink(missing_ok=True)  # what a crash left, or somebody else: others may read it, and it would keep its mode
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError:
            with suppress(OSError):  # the disk may be full
                part.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make durable which files are in ``directory``, and under which names.

    Raises:
        StorageError: the disk refuses.
    """
    with disk_errors(directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that readers see whole, old or new; not for what must survive a power cut. Its directory is made.

    Raises:
        StorageError: the disk refuses.
    """
    make_parent(path)
    part = path.with_name(f"{path.name}.part")
    with disk_errors(path):
        part.write_bytes(data)
        os.replace(part, path)


def settings_text(path: Path) -> str:
    """Return the text of a file of settings, as people write them.

    Raises:
        OSError: it cannot be read.
        ValueError: it is far longer than settings are, or not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_SETTINGS_BYTES + 1)
    if len(data) > _MAX_SETTINGS_BYTES:
        raise ValueError(f"it has more than {_MAX_SETTINGS_BYTES} bytes, which no settings have")
    return data.decode()


def load_identity(path: Path) -> Identity:
    """Return the identity in ``path``; make one (mode 0600) if there is no such file.

    Raises:
        UserError: the file is not an identity, or others may read it.
    """
    if not path.exists():
        write_durably(path, Identity(secrets.token_bytes(32)).to_libp2p(), mode=0o600)
    try:
        if path.stat().st_mode & 0o077:
            raise UserError(f"others can read the private key {path}; run: chmod 600 {path}")
        return Identity.from_libp2p(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the identity {path}: {error.strerror}") from error
    except EncodingError as error:
        raise UserError(f"{path} is no identity ({error}); restore it from a backup, or move it away to get a new one") from error
