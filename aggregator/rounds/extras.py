"""The extras that were handed in between rounds, on the disk until the log has them: findings, plants and reveals.

DIR/extras.waiting   entries, one after the other, appended to and synced before anybody hears that one was taken

What is acknowledged stands before the claims of the next round, or of the one after if there are too many, unless the ledger would refuse
it by then: its auditor was found guilty, or its question was decided. An entry is stored as two numbers (8 bytes each, big-endian: how
much of the file was synced before it, its length), its bytes, and the SHA-256 of all of these. What a crash tore off at the end, nobody
was told of.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from aggregator.rounds.refusals import noted
from protocol.audits import SignedExtra, signer_of
from protocol.closing import NotTaken
from protocol.delegations import Delegation
from protocol.errors import EncodingError, RemoteFault, StorageError
from protocol.ledger import MAX_EXTRAS, Ledger
from protocol.records import MAX_ENTRY_BYTES, entry_of, open_entry
from protocol.signing import PublicKey, sha256
from swarm.budget import Faults
from swarm.disk import disk_errors, sync_directory, write_durably
from swarm.rpc import Endpoint

WAITING = "extras.waiting"
MAX_OF_ONE = MAX_EXTRAS // 8  # that wait, of one key that is no operator's
_NUMBER = 8
_HEAD = 2 * _NUMBER
_DIGEST = 32
_REWRITTEN_BYTES = 1 << 20  # a file of more is written anew, without what the log has, once most of it is there

logger = logging.getLogger("manta.extras")


class Extras:
    """Answers "extra", and keeps what was taken until a round has it."""

    def __init__(
        self, endpoint: Endpoint, path: Path, ledger: Callable[[], Ledger], faults: Faults, stop: Callable[[BaseException], None]
    ) -> None:
        """Take up what waits in the file at ``path``; ``start`` answers from then on.

        Args:
            endpoint: where others call.
            path: in the run's directory.
            ledger: returns the log's ledger as it is published.
            faults: of those who call.
            stop: is told of a disk that fails, after which this program cannot go on.

        Raises:
            StorageError: the file cannot be read, or something in it is not what was written and synced.
        """
        self._endpoint = endpoint
        self._path = path
        self._ledger = ledger
        self._faults = faults
        self._stop = stop
        self._stored: dict[bytes, SignedExtra] = {extra.digest: extra for extra in _read(path)}
        self._size = path.stat().st_size if path.exists() else 0
        self._batch: dict[bytes, SignedExtra] = {}  # to be stored next
        self._storing: asyncio.Task[None] | None = None
        self._error: StorageError | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="extras")

    async def start(self) -> None:
        """Answer from now on: a packed Entry by nothing, once it is on the disk."""
        await self._endpoint.serve("extra", self._on_extra)

    async def close(self) -> None:
        """Finish what is being written."""
        while self._storing is not None and not self._storing.done():
            await asyncio.wait((self._storing,))
        self._disk.shutdown(wait=True)

    async def hand_in(self, signed: SignedExtra) -> None:
        """Take an extra; it is on the disk when this returns. The same one again is welcome.

        Raises:
            EncodingError, SignatureError, LedgerError: it may not stand in this log.
            NotTaken: too many wait, or the disk failed; later there may be room.
        """
        digest = signed.digest
        if digest in self._stored:
            return
        if self._ledger().finished:
            raise NotTaken("the run is finished")
        self._ledger().check_extra(signed)
        if digest not in self._batch:
            self._check_room(signed)
            self._batch[digest] = signed
        while digest not in self._stored:
            if self._error is not None:
                raise NotTaken("the log could not store it and stops: hand it in again when it is back")
            if self._storing is None or self._storing.done():
                self._storing = asyncio.create_task(self._store())
            await asyncio.shield(self._storing)

    async def for_round(self) -> list[SignedExtra]:
        """Return what stands before the next round's claims, in the log's order; what the ledger refuses by now is forgotten."""
        waiting = [self._stored[digest] for digest in sorted(self._stored)]
        refused = await asyncio.to_thread(_refused, self._ledger(), waiting) if waiting else {}
        for digest, reason in refused.items():
            logger.info("extra dropped reason=%s", reason)
            del self._stored[digest]
        return [extra for extra in waiting if extra.digest not in refused][:MAX_EXTRAS]

    async def committed(self, extras: Sequence[SignedExtra]) -> None:
        """Forget what the log has now."""
        for extra in extras:
            self._stored.pop(extra.digest, None)
        is_idle = self._storing is None or self._storing.done()
        waiting = len(self._stored) * MAX_ENTRY_BYTES
        if is_idle and self._size and (not self._stored or self._size > max(_REWRITTEN_BYTES, 2 * waiting)):
            self._storing = asyncio.create_task(self._rewrite())
            await asyncio.shield(self._storing)

    async def _on_extra(self, caller: PublicKey, request: bytes) -> bytes:
        if self._faults.is_too_much(caller):
            raise NotTaken("too much of this key was refused lately: hand it in again later")
        with noted(self._faults, caller):
            if len(request) > MAX_ENTRY_BYTES:
                raise EncodingError(f"an entry has at most {MAX_ENTRY_BYTES} bytes")
            signed = open_entry(request)
            if not isinstance(signed, SignedExtra):
                raise EncodingError("an entry that is handed in otherwise")
            await self.hand_in(signed)
        return b""

    def _check_room(self, signed: SignedExtra) -> None:
        ledger = self._ledger()
        waiting = [*self._stored.values(), *self._batch.values()]
        if len(waiting) >= 2 * MAX_EXTRAS:
            raise NotTaken("too many findings wait for a round: hand it in again after the next one")
        extra = ledger.verified.extra(signed)
        opened = [ledger.verified.extra(each) for each in waiting]
        if isinstance(extra, Delegation) and any(isinstance(each, Delegation) and each.key == extra.key for each in opened):
            raise NotTaken("a delegation of this key waits for a round: its account changes once a round")
        signer = signer_of(extra)
        of_key = Counter(map(signer_of, opened))
        if signer not in ledger.manifest.operators and of_key[signer] >= MAX_OF_ONE:
            raise NotTaken(f"{MAX_OF_ONE} findings of this key wait for a round: hand it in again after the next one")

    async def _store(self) -> None:
        """Store all that waits, by one sync."""
        batch, self._batch = self._batch, {}
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, self._append, list(batch.values()))
        except StorageError as error:
            self._error = error
            self._stop(error)
        else:
            self._stored |= batch

    async def _rewrite(self) -> None:
        kept = list(self._stored.values())
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, self._write_anew, kept)
        except StorageError as error:
            self._error = error
            self._stop(error)

    def _append(self, extras: Sequence[SignedExtra]) -> None:
        is_new = not self._path.exists()
        with disk_errors(self._path), self._path.open("ab") as file:
            synced = file.tell()
            for extra in extras:
                file.write(_record(entry_of(extra), synced))
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
        if is_new:
            sync_directory(self._path.parent)

    def _write_anew(self, extras: Sequence[SignedExtra]) -> None:
        data = b"".join(_record(entry_of(extra), 0) for extra in extras)
        write_durably(self._path, data)
        self._size = len(data)


def _refused(ledger: Ledger, waiting: Sequence[SignedExtra]) -> dict[bytes, str]:
    """Return by digest why some of these may not stand in the log any more."""
    refused = dict[bytes, str]()
    for extra in waiting:
        try:
            ledger.check_extra(extra)
        except RemoteFault as error:
            refused[extra.digest] = str(error)
    return refused


def _record(entry: bytes, synced: int) -> bytes:
    data = b"".join((synced.to_bytes(_NUMBER, "big"), len(entry).to_bytes(_NUMBER, "big"), entry))
    return data + sha256(data)


def _read(path: Path) -> list[SignedExtra]:
    """Return what waits in a file, without what a crash tore off, which is cut off the file.

    Raises:
        StorageError: it cannot be read, or something in it is not what was written and synced.
    """
    if not path.exists():
        return []
    found, end, torn = list[SignedExtra](), 0, False
    with disk_errors(path), path.open("r+b") as file:
        for synced, entry, after in _scan(file):
            if torn and synced > end:
                raise StorageError(f"{path} is damaged after its first {end} bytes; restore it from a backup")
            if entry is None or torn:
                torn = True
                continue
            try:
                extra = open_entry(entry)
            except EncodingError as error:
                raise StorageError(f"{path} holds what this program did not write: {error}; use the version that wrote it") from error
            if not isinstance(extra, SignedExtra):
                raise StorageError(f"{path} holds an entry that never waits there; restore it from a backup")
            found.append(extra)
            end = after
        if file.seek(0, os.SEEK_END) > end:
            logger.warning("what a crash left unfinished is cut off path=%s", path)
            file.truncate(end)
            os.fsync(file.fileno())
    return found


def _scan(file: BinaryIO) -> Iterator[tuple[int, bytes | None, int]]:
    """Yield of each record what was synced before it, its entry (None: not the bytes that were written), and where it ends."""
    end = 0
    while True:
        head = file.read(_HEAD)
        synced, size = (int.from_bytes(head[at : at + _NUMBER], "big") for at in (0, _NUMBER))
        if len(head) < _HEAD or size > MAX_ENTRY_BYTES:
            return
        rest = file.read(size + _DIGEST)
        if len(rest) < size + _DIGEST:
            return
        end += _HEAD + len(rest)
        data, digest = rest[:-_DIGEST], rest[-_DIGEST:]
        yield synced, data if sha256(head + data) == digest else None, end
