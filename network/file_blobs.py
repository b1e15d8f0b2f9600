"""Blobs that are files: pieces are read from the disk when they are asked for, and written to it as they arrive.

A file has its name once all of it is there and checked; before that it is beside it as NAME.part, and what a broken download left of it
is looked through, piece by piece, and used.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.network.blobs import MAX_PIECE_BYTES, MAX_PIECES, sizes_of
from manta_swarm.protocol import merkle
from manta_swarm.protocol.signing import Digest
from manta_swarm.runtime.disk import disk_errors, sync_directory


@dataclass(frozen=True, slots=True)
class FileName:
    """What a file has to be: where it lies, its root, its size, and that of its pieces."""

    path: Path
    root: Digest
    size_bytes: int
    piece_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.piece_bytes <= MAX_PIECE_BYTES or not 1 <= self.size_bytes <= MAX_PIECES * self.piece_bytes:
            raise ValueError(f"{self.size_bytes} bytes in pieces of {self.piece_bytes} do not travel")

    @property
    def sizes(self) -> list[int]:
        """The sizes of the pieces."""
        return sizes_of(self.size_bytes, self.piece_bytes)

    @property
    def is_here(self) -> bool:
        """Whether there is a file of this name and size; it is not read."""
        try:
            return self.path.stat().st_size == self.size_bytes
        except OSError:
            return False


class FileBlob:
    """A file that is handed out. For any number of threads."""

    def __init__(self, name: FileName) -> None:
        """Hand ``name`` out; the hashes of its pieces are computed when somebody asks for the first time."""
        self.name = name
        self._hashes: tuple[bytes, ...] | None = None
        self._lock = threading.Lock()

    @property
    def num_pieces(self) -> int:
        """How many pieces the file has."""
        return -(-self.name.size_bytes // self.name.piece_bytes)

    def hashes(self) -> tuple[bytes, ...] | None:
        """Return the hashes of all pieces; None: the file is not what it should be. Reads all of it, once."""
        with self._lock:
            if self._hashes is None:
                self._hashes = self._computed()
            return self._hashes or None

    def piece(self, place: int) -> bytes | None:
        """Return a piece; None: the file is not what it should be any more."""
        hashes = self.hashes()
        data = None if hashes is None else self._read(place)
        return data if hashes is not None and data is not None and merkle.leaf_hash(data) == hashes[place] else None

    def _computed(self) -> tuple[bytes, ...]:
        found = [self._read(place) for place in range(self.num_pieces)]
        hashes = tuple(merkle.leaf_hash(piece) for piece in found if piece is not None)
        return hashes if len(hashes) == len(found) and merkle.root(hashes) == self.name.root else ()

    def _read(self, place: int) -> bytes | None:
        try:
            with self.name.path.open("rb") as file:
                return os.pread(file.fileno(), self.name.piece_bytes, place * self.name.piece_bytes)
        except OSError:
            return None


class FilePart:
    """A file that arrives: only pieces with the right hash are put in. Use it with ``with``; ``finish`` gives it its name."""

    def __init__(self, name: FileName, hashes: tuple[bytes, ...]) -> None:
        """Open what is there of ``name``, or begin it; the pieces that are right already are found by reading all of it.

        Raises:
            StorageError: the disk refuses.
        """
        self.hashes = hashes
        self._name = name
        self._path = name.path.with_name(f"{name.path.name}.part")
        with disk_errors(self._path):
            self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
            self._file.truncate(name.size_bytes)
            self._missing = dict.fromkeys(place for place in range(len(hashes)) if not self._is_right(place))

    def __enter__(self) -> "FilePart":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def missing(self) -> list[int]:
        """The places of the pieces that have not arrived."""
        return list(self._missing)

    def put(self, place: int, data: bytes) -> None:
        """Write a piece, whose hash is known to be right.

        Raises:
            StorageError: the disk refuses.
        """
        with disk_errors(self._path):
            left, start = memoryview(data), place * self._name.piece_bytes
            while left:
                count = os.pwrite(self._file.fileno(), left, start)
                left, start = left[count:], start + count
        self._missing.pop(place, None)

    def finish(self) -> None:
        """Give the file, all of whose pieces are here, its name; it is on the disk when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        assert not self._missing
        with disk_errors(self._path):
            with self._path.open("rb") as file:  # not the one of this object: whoever waits for this may give up and close that
                os.fsync(file.fileno())
            os.replace(self._path, self._name.path)
        sync_directory(self._name.path.parent)

    def _is_right(self, place: int) -> bool:
        data = os.pread(self._file.fileno(), self._name.piece_bytes, place * self._name.piece_bytes)
        return merkle.leaf_hash(data) == self.hashes[place]
