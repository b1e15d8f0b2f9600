"""Records in one file, appended and synced; what a crash tore off at the end is told from damage.

A record is stored as two numbers (8 bytes each, big-endian: how much of the file was synced before it, its length), its bytes, and the
SHA-256 of all of these. Of what a crash tore off nobody was told; anything that comes after a hole and was synced later is damage.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.signing import sha256
from manta_swarm.runtime.disk import disk_errors, make_parent, sync_directory, write_durably

_NUMBER_BYTES = 8
_HEAD_BYTES = 2 * _NUMBER_BYTES
_DIGEST_BYTES = 32

logger = logging.getLogger("manta.disk")


@dataclass(frozen=True, slots=True)
class AppendedFile:
    """A file of records that are appended and synced. Its methods block; one thread at a time writes."""

    path: Path  # its directory is made with the first write
    max_record_bytes: int

    def append(self, records: Sequence[bytes]) -> int:
        """Store records, all by one sync; durable when this returns. Return how long the file is now.

        Raises:
            StorageError: the disk refuses; nobody may be told of any of them.
        """
        make_parent(self.path)
        is_new = not self.path.exists()
        with disk_errors(self.path), self.path.open("ab") as file:
            synced = file.tell()
            for record in records:
                file.write(_stored(record, synced))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if is_new:
            sync_directory(self.path.parent)
        return size

    def read(self, *, mend: bool = False) -> list[bytes]:
        """Return the records, without what a crash tore off.

        ``mend`` cuts that off the file, before more is appended, and syncs the rest: a sync that failed before may have left it in memory.

        Raises:
            StorageError: it cannot be read, or something in it is not what was written and synced.
        """
        if not self.path.exists():
            return []
        found, end, is_torn = list[bytes](), 0, False
        with disk_errors(self.path), self.path.open("r+b" if mend else "rb") as file:
            for synced, record, after in self._scan(file):
                if record is None:
                    is_torn = True
                elif not is_torn:
                    found.append(record)
                    end = after
                elif synced > end:
                    raise StorageError(f"{self.path} is damaged after its first {end} bytes; restore it from a backup")
            if mend:
                if torn := file.seek(0, os.SEEK_END) - end:
                    logger.warning("what a crash left unfinished is cut off path=%s bytes=%d", self.path, torn)
                    file.truncate(end)
                os.fsync(file.fileno())
        return found

    def write_anew(self, records: Sequence[bytes]) -> int:
        """Put these records in the place of all that are there; durable when this returns. Return how long the file is now.

        Raises:
            StorageError: the disk refuses; the file is as it was.
        """
        data = b"".join(_stored(record, 0) for record in records)
        write_durably(self.path, data)
        return len(data)

    def _scan(self, file: BinaryIO) -> Iterator[tuple[int, bytes | None, int]]:
        """Yield of each record what was synced before it, its bytes (None: not those that were written), and where it ends.

        It ends where the file does not even say how long the next one is.
        """
        end = 0
        while True:
            head = file.read(_HEAD_BYTES)
            synced, size = (int.from_bytes(head[at : at + _NUMBER_BYTES], "big") for at in (0, _NUMBER_BYTES))
            if len(head) < _HEAD_BYTES or size > self.max_record_bytes:
                return
            data, digest = file.read(size), file.read(_DIGEST_BYTES)
            if len(data) + len(digest) < size + _DIGEST_BYTES:
                return
            end += _HEAD_BYTES + size + _DIGEST_BYTES
            yield synced, data if _digest(head, data) == digest else None, end


def _stored(record: bytes, synced: int) -> bytes:
    head = synced.to_bytes(_NUMBER_BYTES, "big") + len(record).to_bytes(_NUMBER_BYTES, "big")
    return b"".join((head, record, _digest(head, record)))


def _digest(head: bytes, record: bytes) -> bytes:
    return sha256(b"".join((head, record)))
