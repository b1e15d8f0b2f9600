"""A small file that is whole or absent: written beside, synced, renamed, its directory synced; read within a bound, or refused.

It holds bytes, or one packed record (``protocol.encoding``), after which its SHA-256 stands: what the disk changed is found out.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import RemoteFault, StorageError
from manta_swarm.protocol.signing import sha256
from manta_swarm.runtime.disk import disk_errors, replace_file, sync_directory, write_durably

DIGEST_BYTES = 32

Record = TypeVar("Record")

Model = TypeVar("Model", bound=BaseModel)


class DamagedFile(StorageError):
    """A file that is not what was written to it."""


@dataclass(frozen=True, slots=True)
class AtomicFile:
    """A small file that is whole or absent. Its methods block; any thread may read, one at a time writes."""

    path: Path  # its directory is made with the first write
    max_bytes: int  # more is neither written nor read
    remedy: str = "restore it from a backup"  # what a person is told to do about a damaged one
    mode: int = 0o644
    is_synced: bool = True  # on the disk when a write returns; else a power cut may bring back what was there before

    def read(self) -> bytes | None:
        """Return the file's content; None: there is no such file.

        Raises:
            DamagedFile: it is longer than it may be.
            StorageError: it cannot be read.
        """
        with disk_errors(self.path):
            try:
                with self.path.open("rb") as file:
                    data = file.read(self.max_bytes + 1)
            except FileNotFoundError:
                return None
        if len(data) > self.max_bytes:
            raise self.damaged(f"it has more than {self.max_bytes} bytes")
        return data

    def write(self, data: bytes) -> None:
        """Put ``data`` in the place of what is there.

        Raises:
            StorageError: the disk refuses; what was there before still is.
        """
        assert len(data) <= self.max_bytes
        if self.is_synced:
            write_durably(self.path, data, mode=self.mode)
        else:
            replace_file(self.path, data)

    def load(self, kind: type[Record]) -> Record | None:
        """Return the record in the file; None: there is no such file.

        Raises:
            DamagedFile: it is not what ``save`` wrote.
            StorageError: it cannot be read.
        """
        data = self.read()
        if data is None:
            return None
        packed = data[:-DIGEST_BYTES]
        if sha256(packed) != data[-DIGEST_BYTES:]:
            raise self.damaged("its digest is another one")
        try:
            return unpack(kind, packed, max_bytes=self.max_bytes)
        except RemoteFault as error:
            raise self.damaged(str(error)) from error

    def save(self, record: Any) -> None:
        """Put a record in the place of what is there.

        Raises:
            StorageError: the disk refuses; what was there before still is.
        """
        packed = pack(record)
        self.write(packed + sha256(packed))

    def remove(self) -> None:
        """Remove the file, if it is there; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        with disk_errors(self.path):
            try:
                self.path.unlink()
            except FileNotFoundError:
                return
        sync_directory(self.path.parent)

    def damaged(self, why: str) -> DamagedFile:
        """Return the error that says that the file is damaged, and what to do."""
        return DamagedFile(f"{self.path} is damaged ({why}); {self.remedy}")


def bounded(path: Path, max_bytes: int) -> bytes:
    """Return a file's bytes.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it has more than ``max_bytes`` bytes.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path.name} has more than {max_bytes} bytes")
    return data


def read_written(path: Path, kind: type[Model], max_bytes: int) -> Model:
    """Return what a file says.

    Raises:
        FileNotFoundError, OSError: as ``bounded``.
        ValueError: it has too many bytes, is damaged, or is of another version.
    """
    try:
        return kind.model_validate_json(bounded(path, max_bytes))
    except ValidationError as error:
        raise ValueError(f"{path.name} is damaged, or of another version") from error
