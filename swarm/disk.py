"""What both programs keep in a directory: an identity (0600, made once), files that are whole or absent, one process at a time."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import EncodingError, StorageError, UserError
from protocol.signing import Identity


def make_directory(directory: Path) -> None:
    """Make a directory (0700) and those above it, if they are not there.

    Raises:
        UserError: it cannot be made or written to.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot use the directory {directory}: {error.strerror}; choose another with --dir") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to the directory {directory}; choose another with --dir")


@contextlib.contextmanager
def only_process(directory: Path, what: str) -> Iterator[None]:
    """Hold the directory's lock; it is released when the process ends, however it ends.

    Raises:
        UserError: another process holds it.
    """
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{what} already runs on {directory}; stop it, or choose another directory with --dir") from error
        yield


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file that is there whole after a crash, or as it was before.

    Raises:
        StorageError: the disk refuses.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; make room or mend the disk, then start again") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that readers see whole, old or new; not for what must survive a power cut."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; make room or mend the disk, then start again") from error


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
