"""Verdicts on an operator's disk until the log has them, and when an audited run has had all of them and is settled.

A waiting verdict stands in the log before a round's contributions, or before the settlement.

DIR/verdicts.waiting   entries (``runtime.appended_file``), appended to and synced before anybody hears that one was taken

What a crash tore off at the end, nobody was told of.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from manta_swarm.aggregator.log.contents import WAITING
from manta_swarm.aggregator.worker import Broken
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.errors import EncodingError, RemoteFault, StorageError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import MAX_SIGNED_BYTES, entry_of, open_entry
from manta_swarm.protocol.signed import Signed, is_signed
from manta_swarm.protocol.verdicts import Settlement, Verdict
from manta_swarm.runtime.appended_file import AppendedFile
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

_PAGE = 64  # that are looked at, one after the other, against one ledger
_REWRITTEN_BYTES = 1 << 20  # a file of more is written anew, without what the log has, once most of it is there

logger = logging.getLogger("manta.verdicts")


class HasLedger(Protocol):
    """Has a log's ledger, another one after each commit."""

    @property
    def ledger(self) -> Ledger:
        """The ledger as it is published."""


class Waiting:
    """The verdicts that wait on one operator's disk, for as long as its program runs."""

    def __init__(self, directory: Path, broken: Broken) -> None:
        """Take up what waits in a run's ``directory``.

        Args:
            directory: the run's.
            broken: ends the program once the disk fails.

        Raises:
            StorageError: the file cannot be read, or something in it is not what was written and synced.
        """
        self._file = AppendedFile(directory / WAITING, MAX_SIGNED_BYTES)
        self._broken = broken
        self._stored: dict[bytes, Signed[Verdict]] = {verdict.digest: verdict for verdict in _read(self._file)}
        self._size = self._file.path.stat().st_size if self._file.path.exists() else 0
        self._next: dict[bytes, Signed[Verdict]] = {}  # to be stored
        self._now: dict[bytes, Signed[Verdict]] = {}  # being stored
        self._storing: asyncio.Task[None] | None = None
        self._error: StorageError | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="verdicts")

    @property
    def stored(self) -> Mapping[bytes, Signed[Verdict]]:
        """The verdicts that are on the disk and wait, by digest."""
        return MappingProxyType(self._stored)

    def __contains__(self, digest: object) -> bool:
        """Whether a verdict waits, or is about to."""
        return digest in self._stored or digest in self._now or digest in self._next

    def all(self) -> list[Signed[Verdict]]:
        """Return the verdicts that wait, or are about to."""
        return [*self._stored.values(), *self._now.values(), *self._next.values()]

    async def add(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        """Store verdicts, those that come meanwhile by the same sync; they are on the disk when this returns.

        Raises:
            NotTaken: the disk failed.
        """
        self._next |= {verdict.digest: verdict for verdict in verdicts if verdict.digest not in self}
        wanted = {verdict.digest for verdict in verdicts}
        while not wanted.isdisjoint(self._next.keys() | self._now.keys()):
            self._check_disk()
            if not self._is_busy:
                self._storing = asyncio.create_task(self._store())
            assert self._storing is not None
            await asyncio.shield(self._storing)
        self._check_disk()

    def drop(self, digests: Iterable[bytes]) -> None:
        """Forget what the log has, or refuses."""
        for digest in digests:
            self._stored.pop(digest, None)

    async def drop_refused(self, log: HasLedger) -> None:
        """Forget what may not stand in the log any more, also because it stands there."""
        waiting = list(self._stored.values())
        for start in range(0, len(waiting), _PAGE):  # a ledger is another one two commits later, before which a page is long done
            refused = await asyncio.to_thread(_refused, log.ledger, waiting[start : start + _PAGE])
            for reason in refused.values():
                logger.info("verdict dropped reason=%s", reason)
            self.drop(refused)

    async def tidy(self) -> None:
        """Write the file anew, without what was forgotten, where that is worth it."""
        waiting = len(self._stored) * MAX_SIGNED_BYTES
        if not self._is_busy and self._size and (not self._stored or self._size > max(_REWRITTEN_BYTES, 2 * waiting)):
            self._storing = asyncio.create_task(self._rewrite())
            await asyncio.shield(self._storing)

    async def close(self) -> None:
        """Finish what is being written."""
        while self._is_busy:
            assert self._storing is not None
            await asyncio.wait((self._storing,))
        self._disk.shutdown(wait=True)

    @property
    def _is_busy(self) -> bool:
        return self._storing is not None and not self._storing.done()

    def _check_disk(self) -> None:
        if self._error is not None:
            raise NotTaken("the log could not store it and stops: hand it in again when it is back")

    async def _store(self) -> None:
        """Store all that is to be, by one sync."""
        self._now, self._next = self._next, {}
        is_done = await self._on_disk(self._append, list(self._now.values()))
        if is_done:
            self._stored |= self._now
        self._now = {}

    async def _rewrite(self) -> None:
        await self._on_disk(self._write_anew, list(self._stored.values()))

    async def _on_disk(self, work: Callable[[Sequence[Signed[Verdict]]], None], verdicts: Sequence[Signed[Verdict]]) -> bool:
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, work, verdicts)
        except StorageError as error:
            self._error = error
            self._broken.stop(error)
            return False
        return True

    def _append(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        self._size = self._file.append([entry_of(verdict) for verdict in verdicts])

    def _write_anew(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        self._size = self._file.write_anew([entry_of(verdict) for verdict in verdicts])


def _refused(ledger: Ledger, waiting: Sequence[Signed[Verdict]]) -> dict[bytes, str]:
    """Return by digest why some of these may not stand in the log any more."""
    refused = dict[bytes, str]()
    for verdict in waiting:
        try:
            ledger.check_verdict(verdict)
        except RemoteFault as error:
            refused[verdict.digest] = str(error)
    return refused


def _read(file: AppendedFile) -> list[Signed[Verdict]]:
    """Return what waits in a file, without what a crash tore off, which is cut off the file.

    Raises:
        StorageError: it cannot be read, or something in it is not what was written and synced.
    """
    found = list[Signed[Verdict]]()
    for entry in file.read(mend=True):
        try:
            verdict = open_entry(entry)
        except EncodingError as error:
            raise StorageError(f"{file.path} holds what this program did not write: {error}; use the version that wrote it") from error
        if not is_signed(verdict, Verdict):
            raise StorageError(f"{file.path} holds an entry that never waits there; restore it from a backup")
        found.append(verdict)
    return found


class Settling:
    """Decides when an audited run is settled. The time of the last round is not in the log: after a restart the wait begins anew."""

    def __init__(self, log: HasLedger, settle_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """Prepare.

        Args:
            log: the run's.
            settle_s: how long verdicts are waited for after the last round.
            clock: by which they are.
        """
        self._log = log
        self._settle_s = settle_s
        self._clock = clock
        self._since_s: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether the settlement is what the run still lacks."""
        ledger = self._log.ledger
        return ledger.finished and not ledger.settled

    def look(self) -> None:
        """Note the time if the settlement is due from now on."""
        if self._since_s is None and self.is_due:
            self._since_s = self._clock.now_s()

    def check(self, entries: Sequence[bytes]) -> None:
        """Check that a batch that may follow the log does not settle the run before its time.

        Raises:
            NotTaken: it does: verdicts are waited for here.
        """
        ledger = self._log.ledger
        if not self.is_due or not isinstance(ledger.verified.entry(entries[-1]), Settlement):
            return
        signed = [record for record in map(ledger.verified.entry, entries) if is_signed(record, Verdict)]
        left_s = self.left_s([ledger.verified.verdict(each) for each in signed])
        if left_s:
            raise NotTaken(f"verdicts are waited for, for {left_s:.0f} s more: settle the run later")

    def left_s(self, verdicts: Sequence[Verdict]) -> float:
        """Return how long verdicts are waited for, where these wait before the settlement that is due; 0: it may come now."""
        self.look()
        assert self._since_s is not None
        if self._log.ledger.reputation.decides_all(verdicts):
            return 0
        return max(0.0, self._since_s + self._settle_s - self._clock.now_s())
