"""The contributions that were handed in, on the disk: one file a round, appended to, synced before anybody gets a ticket.

DIR/bodies/round-00000012.bodies   contributions that count in round 12, one after the other

A contribution is stored as three numbers (8 bytes each, big-endian: how much of the file was synced before it, the lengths of its header
and its body), the packed header, the body, and the SHA-256 of all of these. What a crash tore off at the end, nobody has a ticket for; it
is told from damage by what was synced. The files of the newest rounds stay, so that the run can be computed again.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, StorageError, UserError
from protocol.records import MAX_HEADER_BYTES, Header
from protocol.signing import sha256
from runtime.disk import disk_errors, make_directory, sync_directory

_NUMBER = 8
_HEAD = 3 * _NUMBER
_DIGEST = 32
_NAME = "round-{:08d}.bodies"

logger = logging.getLogger("manta.bodies")


@dataclass(frozen=True, slots=True)
class Kept:
    """A contribution as it is stored."""

    header: Header
    body: bytes


@dataclass(frozen=True, slots=True)
class _Record:
    """A stored contribution, read again."""

    synced: int  # bytes of the file that were on the disk before it
    end: int
    kept: Kept | None  # None: these are not the bytes that were written


class Bodies:
    """The files of one log. Its methods block; one thread at a time appends."""

    def __init__(self, directory: Path, *, body_bytes: int, keep: int) -> None:
        """Use ``directory``, made when it is first needed, for bodies of ``body_bytes``; the files of the newest ``keep`` rounds stay."""
        self._directory = directory
        self._body_bytes = body_bytes
        self._keep = keep

    def append(self, kept: Sequence[tuple[int, Kept]]) -> None:
        """Store contributions, each with the round that it counts in; all are durable when this returns: one sync a file.

        Raises:
            StorageError: the disk refuses; nothing is to be promised of any of them.
        """
        try:
            if not self._directory.exists():
                make_directory(self._directory)
        except UserError as error:  # nobody chose this directory
            raise StorageError(str(error)) from error
        for round_ in sorted({round_ for round_, _ in kept}):
            path = self._path(round_)
            is_new = not path.exists()
            with disk_errors(path), path.open("ab") as file:
                synced = file.tell()
                for of_round, one in kept:
                    if of_round == round_:
                        file.write(_stored(one, synced))
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync_directory(self._directory)

    def read(self, round_: int, *, mend: bool = False) -> list[Kept]:
        """Return the contributions of a round, without what a crash tore off; ``mend`` cuts that off the file, before more is appended.

        Raises:
            StorageError: the file cannot be read, or something in it is not what was written and synced.
        """
        path = self._path(round_)
        if not path.exists():
            return []
        try:
            with disk_errors(path), path.open("rb") as file:
                records = list(self._scan(file))
        except EncodingError as error:
            raise StorageError(f"{path} holds what this program did not write: {error}; use the version that wrote it") from error
        whole = list(takewhile(lambda record: record.kept is not None, records))
        end = whole[-1].end if whole else 0
        if any(record.kept is not None and record.synced > end for record in records):
            raise StorageError(f"{path} is damaged after its first {end} bytes; restore it from a backup")
        if mend:
            self._cut(path, end)
        return [record.kept for record in whole if record.kept is not None]

    def _cut(self, path: Path, end: int) -> None:
        with disk_errors(path), path.open("r+b") as file:
            torn = file.seek(0, os.SEEK_END) - end
            if torn:
                logger.warning("what a crash left unfinished is cut off path=%s bytes=%d", path, torn)
            file.truncate(end)
            os.fsync(file.fileno())

    def prune(self, newest: int) -> None:
        """Remove the files of rounds that are too old, ``newest`` being the last committed one."""
        for round_ in self.rounds():
            if round_ <= newest - self._keep:
                with disk_errors(self._path(round_)):
                    self._path(round_).unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """Return the rounds that have a file, in order."""
        numbers = []
        for path in self._directory.glob(_NAME.replace("{:08d}", "*")):
            with contextlib.suppress(ValueError):
                numbers.append(int(path.stem.removeprefix("round-")))
        return sorted(numbers)

    def _path(self, round_: int) -> Path:
        return self._directory / _NAME.format(round_)

    def _scan(self, file: BinaryIO) -> Iterator[_Record]:
        """Yield what the file holds, up to where it does not even say how long the next contribution is."""
        end = 0
        while True:
            head = file.read(_HEAD)
            synced, header_bytes, body_bytes = (int.from_bytes(head[at : at + _NUMBER], "big") for at in range(0, _HEAD, _NUMBER))
            if len(head) < _HEAD or header_bytes > MAX_HEADER_BYTES or body_bytes != self._body_bytes:
                return
            rest = file.read(header_bytes + body_bytes + _DIGEST)
            if len(rest) < header_bytes + body_bytes + _DIGEST:
                return
            end += _HEAD + len(rest)
            data = memoryview(rest)[:-_DIGEST]
            kept = None
            if sha256(b"".join((head, data))) == rest[-_DIGEST:]:
                kept = Kept(unpack(Header, bytes(data[:header_bytes]), max_bytes=MAX_HEADER_BYTES), bytes(data[header_bytes:]))
            yield _Record(synced, end, kept)


def _stored(one: Kept, synced: int) -> bytes:
    header = pack(one.header)
    numbers = (number.to_bytes(_NUMBER, "big") for number in (synced, len(header), len(one.body)))
    data = b"".join((*numbers, header, one.body))
    return data + sha256(data)
