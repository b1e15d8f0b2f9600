"""What the monitor sees: the log's entries folded up, the aggregator's words, evaluations, pictures, tree heads; and what is wrong with it.

``look`` is called again and again. It reads what is new, never more than a part at a time, so that whoever asks meanwhile is answered.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.features.front_file import FrontSeen
from manta_swarm.aggregator.log.contents import SNAPSHOTS, STATUS
from manta_swarm.aggregator.log.storage import TREE_HEAD
from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.aggregator.log.witnessed import WITNESSED, Witnessed
from manta_swarm.aggregator.monitor.alarms import AlarmCause, Alarms, of_the_aggregator
from manta_swarm.aggregator.monitor.kept import KEPT, Keeping
from manta_swarm.aggregator.monitor.people import Credits, credits_of
from manta_swarm.aggregator.monitor.quality import Evaluations, Pictures
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.aggregator.monitor.view import View
from manta_swarm.aggregator.status import AggregatorStatus, unix_ms
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.errors import RemoteFault, StorageError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.rewards import TrainingSpec

KEPT_HEADS = 256
_ENTRIES_AT_A_TIME = 64  # 5 ms, or 20 ms where a ledger follows
_READ_AT_A_TIME = 512  # 32 MiB of the largest ones
_MAX_CERTIFICATE_BYTES = 262_144

TrainingSpecOf = Callable[[Manifest], TrainingSpec]


@dataclass(frozen=True, slots=True)
class HeadSeen:
    """A tree head, its signature checked."""

    head: TreeHead
    note: str
    seen_at: int


@dataclass(frozen=True, slots=True)
class SightUpdate:
    """Says what was new at one look."""

    rounds: int = 0
    head: bool = False
    live: bool = False
    quality: bool = False
    pictures: bool = False
    front: bool = False
    settled: bool = False
    alarms: bool = False

    @property
    def is_any(self) -> bool:
        """Whether there was anything new."""
        return any((self.rounds, self.head, self.live, self.quality, self.pictures, self.front, self.settled, self.alarms))


class Sight:
    """Reads and holds all that the page shows. One event loop uses it."""

    def __init__(self, directory: Path, training_spec_of: TrainingSpecOf = ManifestTrainingSpec) -> None:
        """See the run in ``directory``; nothing is read yet but its manifest.

        Raises:
            UserError: there is no log, or this version does not know its supernet.
            StorageError: it cannot be read.
        """
        self.log = StoredLog(directory)
        self.signed = self.log.manifest()
        self.manifest = self.signed.open()
        self.operator = self.log.operator()
        self.operators = Operators.of(self.manifest, self.signed.run)
        self._training_spec = training_spec_of(self.manifest)
        self.view = View(self.signed, self._training_spec)
        self._keeping = Keeping(directory / DIRECTORY / KEPT, self.signed, self.operator)
        self._has_recalled = False
        self.num_read = 0  # entries, opened or hashed again, of ``reading_to``
        self.status: AggregatorStatus | None = None
        self.live_read_at: int | None = None
        self.evaluations = Evaluations(directory / DIRECTORY)
        self.pictures = Pictures(directory / DIRECTORY, self.manifest.task)
        self.members_front = FrontSeen(directory / SNAPSHOTS)
        self.heads: deque[HeadSeen] = deque(maxlen=KEPT_HEADS)  # the newest last
        self.first_head: HeadSeen | None = None
        self._credits: tuple[object, Credits] | None = None
        self._witnessed: list[Witnessed] = []
        self.alarms = Alarms()
        self.started_at = unix_ms()
        self.looked_at = self.started_at
        self._directory = directory
        self._stamps: dict[str, tuple[int, int]] = {}
        self.reading_to = 0  # entries under the newest tree head, which may be more than were looked at
        self._judged: int | None = None  # the newest evaluation whose state was compared with the log's

    @property
    def newest_head(self) -> HeadSeen | None:
        """The newest tree head under which all entries were looked at."""
        return self.heads[-1] if self.heads else None

    @property
    def witnessed(self) -> list[Witnessed]:
        """The newest head that each witness has cosigned, of those under which all entries were looked at; the newest first."""
        found = [each for each in self._witnessed if each.head.size <= self.size]
        return sorted(found, key=lambda each: (-each.head.size, each.cosignature.key))

    @property
    def credits(self) -> Credits:
        """What every key and account has earned; of one round, and of the settlement, it is made once."""
        made_of = (id(self.view), self.view.round, self.view.settlement)
        if self._credits is None or self._credits[0] != made_of:
            self._credits = (made_of, credits_of(self.view.reputation))
        return self._credits[1]

    @property
    def size(self) -> int:
        """How many entries may be asked for."""
        return self.newest_head.head.size if self.newest_head is not None else 0

    async def look(self) -> SightUpdate:
        """Read what is new. What cannot be read keeps nobody from the rest."""
        causes: list[AlarmCause] = []
        rounds, was_settled, alarms = self.view.round, self.view.settlement is not None, self.alarms.on
        found: list[bool] = []
        looks = (
            self._look_at_log,
            self._look_at_witnesses,
            self._look_at_status,
            self._look_at_evaluations,
            self._look_at_pictures,
            self._look_at_front,
        )
        for look in looks:
            try:
                found.append(await look())
            except (OSError, ValueError, StorageError, RemoteFault) as error:
                found.append(False)
                causes.append(AlarmCause("unreadable", "warning", f"something of the run cannot be read: {self._told(error)}"))
        self.looked_at = now = unix_ms()
        self._judge_evaluation(now)
        causes += of_the_aggregator(self.status, self.started_at, now, is_finished=self.view.is_finished)
        if self.status is not None:
            causes += self.alarms.refused(self.status, now)
        self.alarms.look(causes, now)
        head, _, live, quality, pictures, front = found
        settled = self.view.settlement is not None and not was_settled
        return SightUpdate(self.view.round - rounds, head, live, quality, pictures, front, settled, self.alarms.on != alarms)

    async def look_back(self) -> None:
        """Compare the log with the tree heads that lie beside its snapshots: what it signed for then it still has to hold."""
        heads = await asyncio.to_thread(self._certificates)
        signed = await asyncio.to_thread(self._signed_size)  # read after them: the run goes on meanwhile
        for head in heads:
            await self._compare(head, signed)

    async def _look_at_log(self) -> bool:
        if not self._is_new(self._directory / TREE_HEAD):
            return False
        note = await asyncio.to_thread(self.log.tree_head)
        try:
            head = self.operators.open(note)
        except RemoteFault as error:
            self._forget_stamp(TREE_HEAD)
            raise StorageError(f"the newest tree head does not hold: {error}") from error
        before, self.reading_to = self.view.round, head.size
        self._keeping.reading_to = head.size
        await self._read_entries(head)
        if self.view.round == before + 1 and before:  # seen as it came; the aggregator's own word replaces this
            self.view.rounds.committed(self.view.round, unix_ms())
        if head.size != self.view.size or head.root != self.view.root():
            signed, seen = f"{head.size} entries of root {head.root.hex()[:16]}", f"{self.view.size} of {self.view.root().hex()[:16]}"
            text = f"the log is not the one that was seen before: it signs for {signed}, and {seen} were seen"
            self.alarms.keep(AlarmCause("fork", "alarm", text, self.view.round), unix_ms())
            return False
        newest = self.newest_head
        if newest is not None and newest.head.size == head.size:
            return False  # the same head, signed again
        self.heads.append(HeadSeen(head, note, unix_ms()))
        self.first_head = self.first_head or self.heads[-1]
        return True

    async def _look_at_witnesses(self) -> bool:
        if not self._is_new(self._directory / WITNESSED):
            return False
        self._witnessed = await asyncio.to_thread(self.log.witnessed)
        return True

    async def _read_entries(self, head: TreeHead) -> None:
        """Take the entries up to a tree head. Where this stops, by an error too, the next look goes on."""
        try:
            if not self._has_recalled:
                self.view = await self._keeping.recall(self.log, head.size, self._training_spec, self._note_read) or self.view
                self._has_recalled = True
            while self.view.size < head.size:
                start = self.view.size
                entries = await asyncio.to_thread(self.log.entries, start, min(start + _READ_AT_A_TIME, head.size))
                for place in range(0, len(entries), _ENTRIES_AT_A_TIME):
                    self.view.take(entries[place : place + _ENTRIES_AT_A_TIME])
                    self._note_read(self.view.size)
                    await asyncio.sleep(0)
                await self._keeping.keep(self.view)
        except BaseException:
            self._forget_stamp(TREE_HEAD)
            raise

    def _note_read(self, entries: int) -> None:
        self.num_read = entries

    async def _look_at_status(self) -> bool:
        if not self._is_new(self._directory / STATUS):
            return False
        self.status = await asyncio.to_thread(AggregatorStatus.read, self._directory)
        if self.status is None:
            return False
        for times in self.status.times:
            if times.committed_at is not None:
                self.view.rounds.committed(times.round, times.committed_at)
        return True

    async def _look_at_evaluations(self) -> bool:
        return await asyncio.to_thread(self.evaluations.read_on)

    async def _look_at_pictures(self) -> bool:
        with contextlib.suppress(FileNotFoundError):  # newer ones are just being written
            return await asyncio.to_thread(self.pictures.read_on)
        return False

    async def _look_at_front(self) -> bool:
        return await asyncio.to_thread(self.members_front.read_on)

    def _judge_evaluation(self, now: int) -> None:
        """Compare the state that was evaluated last with the one that the log names, and raise an alarm if they differ."""
        newest = self.evaluations.newest
        if newest is None or newest.round > self.view.round or newest.round == self._judged:
            return
        self._judged = newest.round
        named = self.view.rounds.state_of(newest.round) if newest.round else self.manifest.initial_state
        if newest.state != named.hex():
            text = f"the snapshot of round {newest.round} is not the state that the log names: {newest.state[:16]}, not {named.hex()[:16]}"
            self.alarms.keep(AlarmCause("divergence", "alarm", text, newest.round), now)

    def _signed_size(self) -> int:
        """Return how many entries the log signs for at this moment, which may be more than were looked at."""
        with contextlib.suppress(StorageError, RemoteFault):  # the next look says so
            return max(self.size, self.operators.open(self.log.tree_head()).size)
        return self.size

    async def _compare(self, head: TreeHead, signed: int) -> None:
        try:
            if head.size <= signed and await asyncio.to_thread(self.log.root, head.size) == head.root:
                return
        except StorageError as error:
            self.alarms.keep(AlarmCause("unreadable", "alarm", self._told(error)), unix_ms())
            return
        text = f"the log signed for {head.size} entries of root {head.root.hex()[:16]}, which it does not hold any more"
        self.alarms.keep(AlarmCause("fork", "alarm", text), unix_ms())

    def _told(self, error: Exception) -> str:
        """Return what is wrong, as everybody may read it: where on this computer the run lies is not for strangers."""
        return str(error).replace(str(self._directory), "DIR")[:500]

    def _certificates(self) -> list[TreeHead]:
        found = []
        for path in sorted((self._directory / SNAPSHOTS).glob("round-*.json"))[-KEPT_HEADS:]:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RemoteFault):  # not for us to judge: it may be half written
                with path.open("rb") as file:
                    note = json.loads(file.read(_MAX_CERTIFICATE_BYTES))["tree_head"]
                found.append(self.operators.open(note))
        return found

    def _is_new(self, path: Path) -> bool:
        """Return whether a file changed since this was asked last; where it is not there, it did not."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if self._stamps.get(path.name) == stamp:
            return False
        self._stamps[path.name] = stamp
        return True

    def _forget_stamp(self, name: str) -> None:
        self._stamps.pop(name, None)
