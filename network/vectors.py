"""Vectors in a folder, for as long as audits may want them, under a budget; handed to whoever asks.

DIR/<round, 8 digits>/<digest that they are kept by>/<digest of the vector>   float32, little-endian

A peer keeps those of its work by the commit that the work stands on, an operator what was brought by the contribution that it is of. All
but the calls block, each for a file or a few.
"""

import asyncio
import contextlib
import os
import re
import shutil
import threading
from collections.abc import Collection
from itertools import count as count_from
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.residuals import VectorHash, vector_digest
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.auditing import MAX_ASK_VECTOR_BYTES, PAGE_BYTES, VECTOR, AskVector
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.disk import disk_errors, make_directory
from manta_swarm.runtime.round_folder import RoundFolder, round_path

Vector = NDArray[np.float32]

_DIGEST = re.compile("[0-9a-f]{64}")
_VALUE_BYTES = 4


class VectorsFolder:
    """The vectors in one folder. For any number of threads."""

    def __init__(self, directory: Path, *, kept_rounds: int, max_bytes: int, is_pinned: bool = False) -> None:
        """Use ``directory``, which is made when it is first needed; vectors of the newest rounds stay, at most so many bytes of them.

        ``is_pinned``: older rounds don't make room for newer ones.

        Raises:
            StorageError: the disk refuses.
        """
        self._lock = threading.Lock()
        self._parts = count_from()
        self._rounds: dict[bytes, int] = {}  # by what they are kept by
        with disk_errors(directory):
            for path in directory.glob("[0-9]*/*"):
                if not path.parent.name.isdecimal() or _DIGEST.fullmatch(path.name) is None:
                    continue
                for part in path.glob("*.part"):  # what a crash left
                    part.unlink()
                self._rounds[bytes.fromhex(path.name)] = int(path.parent.name)
        self._folder = RoundFolder(directory, max_bytes=max_bytes)
        self._kept_rounds = kept_rounds
        self._is_pinned = is_pinned

    @property
    def rounds(self) -> dict[bytes, int]:
        """The rounds of what vectors are kept by."""
        return dict(self._rounds)

    @property
    def num_bytes(self) -> int:
        """What is here takes so many bytes, with what is being written. It waits for no other thread."""
        return self._folder.num_bytes

    def round_of(self, kept_by: bytes) -> int | None:
        """Return the round of what is kept by this; None: nothing is."""
        return self._rounds.get(kept_by)

    def all(self) -> dict[bytes, set[bytes]]:
        """Return the digests of the vectors that are here, by what they are kept by; the folders are looked through."""
        found = dict[bytes, set[bytes]]()
        for kept_by, round_ in list(self._rounds.items()):
            folder = self._folder.path(round_) / kept_by.hex()
            with disk_errors(folder):
                names = [path.name for path in folder.iterdir()] if folder.exists() else []
            found[kept_by] = {bytes.fromhex(name) for name in names if _DIGEST.fullmatch(name) is not None}
        return found

    def keep(self, round_: int, kept_by: bytes, digest: bytes, values: Vector) -> None:
        """Keep a vector (N,) of this round; that it has the digest is for the caller to know. A power cut may lose it.

        Raises:
            NoRoom: there is no room, not even in the place of older ones.
            StorageError: the disk refuses.
        """
        if self.has(kept_by, digest):
            return
        part = self.begin(round_, kept_by, digest, _VALUE_BYTES * len(values))
        try:
            part.write(np.ascontiguousarray(values, "<f4").data.cast("B"))
            part.finish()
        finally:
            part.close()

    def begin(self, round_: int, kept_by: bytes, digest: bytes, num_bytes: int) -> "VectorPart":
        """Make room for a vector that is written piece by piece; what is not finished is gone once it is closed.

        Raises:
            NoRoom, StorageError: as ``keep``.
        """
        with self._lock:
            self._forget(self._folder.make_room(round_, num_bytes, range(round_) if self._is_pinned else ()))
            folder = self._folder.path(round_) / kept_by.hex()
            if not folder.exists():
                make_directory(folder)
            part = VectorPart(self, round_, folder / digest.hex(), num_bytes, next(self._parts))
            self._folder.count(round_, num_bytes)
            self._rounds[kept_by] = round_
            return part

    def has(self, kept_by: bytes, digest: bytes) -> bool:
        """Return whether a vector is here; it is not read."""
        path = self._path(kept_by, digest)
        return path is not None and path.exists()

    def read(self, kept_by: bytes, digest: bytes) -> Vector | None:
        """Return a vector (N,), which has its digest; None: it is not here, or damaged."""
        path = self._path(kept_by, digest)
        return None if path is None else _read(path, digest)

    def page(self, kept_by: bytes, digest: bytes, first: int) -> bytes | None:
        """Return ``PAGE_BYTES`` of a vector from the byte ``first`` on, or what there is; None: nothing, or the vector is not here."""
        path = self._path(kept_by, digest)
        try:
            with open(os.devnull if path is None else path, "rb") as file:
                return os.pread(file.fileno(), PAGE_BYTES, first) or None
        except OSError:
            return None

    def keep_only(self, kept_by: bytes, digests: Collection[bytes]) -> None:
        """Remove all vectors that are kept by this but these.

        Raises:
            StorageError: the disk refuses.
        """
        with self._lock:
            round_ = self._rounds.get(kept_by)
            if round_ is None:
                return
            folder, names = self._folder.path(round_) / kept_by.hex(), {digest.hex() for digest in digests}
            with disk_errors(folder):
                for path in list(folder.iterdir()) if folder.exists() else ():
                    if _DIGEST.fullmatch(path.name) is not None and path.name not in names:
                        size = path.stat().st_size
                        path.unlink()
                        self._folder.count(round_, -size)
                if not digests:
                    shutil.rmtree(folder, ignore_errors=True)
                    with contextlib.suppress(OSError):  # there are others of the round
                        folder.parent.rmdir()
                    del self._rounds[kept_by]

    def prune(self, newest: int) -> None:
        """Remove what is too old, ``newest`` being the last committed round.

        Raises:
            StorageError: the disk refuses.
        """
        with self._lock:
            self._forget(self._folder.prune(newest - self._kept_rounds + 1))

    def _path(self, kept_by: bytes, digest: bytes) -> Path | None:
        round_ = self._rounds.get(kept_by)
        return None if round_ is None else self._folder.path(round_) / kept_by.hex() / digest.hex()

    def _forget(self, rounds: Collection[int]) -> None:
        for kept_by in [kept_by for kept_by, of_it in self._rounds.items() if of_it in rounds]:
            del self._rounds[kept_by]

    def _give_back(self, round_: int, num_bytes: int) -> None:
        with self._lock:
            self._folder.count(round_, -num_bytes)


class VectorPart:
    """A vector that is being written, for one thread at a time: whoever reads sees it once it is finished, and then whole."""

    def __init__(self, folder: VectorsFolder, round_: int, path: Path, num_bytes: int, number: int) -> None:
        """Use ``VectorsFolder.begin``."""
        self._folder = folder
        self._round = round_
        self._path = path
        self._num_bytes = num_bytes
        self._part = path.with_name(f"{path.name}-{number}.part")
        self._hash = VectorHash()
        self._written = 0
        self._is_over = False
        with disk_errors(self._part):
            self._file = self._part.open("wb", buffering=0)

    @property
    def digest(self) -> bytes:
        """The digest of what was written (``codec.residuals.vector_digest``)."""
        return self._hash.digest()

    def write(self, data: bytes | memoryview) -> None:
        """Write what comes next.

        Raises:
            StorageError: the disk refuses.
        """
        self._hash.update(data)
        self._written += len(data)
        with disk_errors(self._part):
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def finish(self) -> None:
        """Give the file its name: all of it is written. Where its round, or what it is kept by, was removed meanwhile, it is gone.

        Raises:
            StorageError: the disk refuses.
        """
        assert self._written == self._num_bytes
        with disk_errors(self._path), contextlib.suppress(FileNotFoundError):
            self._file.close()
            if self._path.exists():  # somebody else was faster
                return
            os.replace(self._part, self._path)
            self._is_over = True

    def close(self) -> None:
        """Remove the file, if it is not finished."""
        self._file.close()
        if not self._is_over:
            self._is_over = True
            self._part.unlink(missing_ok=True)
            self._folder._give_back(self._round, self._num_bytes)


def read_vector(directory: Path, round_: int, kept_by: bytes, digest: bytes) -> Vector | None:
    """Return a vector (N,) out of a folder that another process may be writing into; None: it is not there, or damaged."""
    return _read(round_path(directory, round_) / kept_by.hex() / digest.hex(), digest)


def _read(path: Path, digest: bytes) -> Vector | None:
    try:
        found = np.fromfile(path, "<f4").astype(np.float32, copy=False)
    except OSError:
        return None
    return found if vector_digest(found) == digest else None


async def serve_vectors(endpoint: Endpoint, *folders: VectorsFolder) -> None:
    """Hand pages of vectors to whoever asks; of what is not here an empty one."""

    def found(ask: AskVector) -> bytes | None:
        pages = (folder.page(ask.kept_by, ask.digest, ask.first) for folder in folders)
        return next((page for page in pages if page is not None), None)

    async def answer(_caller: PublicKey, request: bytes) -> bytes:
        page = await asyncio.to_thread(found, unpack(AskVector, request, max_bytes=MAX_ASK_VECTOR_BYTES))
        return page or b""

    await endpoint.serve(VECTOR, answer)
