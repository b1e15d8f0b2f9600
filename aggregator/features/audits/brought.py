"""Keeps what peers bring of audited contributions, and hands it to auditors: steps' means, residuals, and own vectors where a step fails.

DIR/brought/<round, 8 digits>/<digest of the contribution>/<digest of the vector>   float32, little-endian
DIR/brought/<round, 8 digits>/<digest of the contribution>.full                     there was no room for it: nobody is to blame

A vector is believed by its digest, which the signed contribution names. No vector is removed while it may be needed: where there is no
room, a contribution is not judged.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from manta_swarm.aggregator.intake.refusals import NotTheirs, is_too_much, noted
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Busy, Endpoint
from manta_swarm.network.vectors import VectorPart, VectorsFolder
from manta_swarm.protocol.auditing import (
    BRING,
    MAX_ASK_BYTES,
    MAX_PAGE_BYTES,
    MAX_WANTED,
    PAGE_BYTES,
    WANTED,
    AskWanted,
    PlacedContribution,
    VectorPage,
    WantedAnswer,
    WantedFate,
    WantedOf,
    vectors_of,
)
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, StorageError
from manta_swarm.protocol.records import Claim, Contribution, Header
from manta_swarm.protocol.reputation import Audit, Reputation
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.atomic_file import AtomicFile
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.disk import disk_errors
from manta_swarm.runtime.round_folder import NoRoom, round_path

FOLDER = "brought"
MAX_COMING = 16  # vectors that come at the same time
MAX_OF_ONE = 4  # of these, of one key
QUIET_S = 60.0  # after which one that does not come any more makes room for another
LEAST_RATE = 32_768  # bytes a second: one that comes more slowly makes room for another that waits
_MAX_OPENED = 64  # contributions that are remembered whole
_FULL = ".full"
_VALUE_BYTES = 4

logger = logging.getLogger("manta.audits")


@dataclass(frozen=True, slots=True)
class Audited:
    """A contribution that is audited."""

    audit: Audit
    header: Header
    contribution: Contribution
    claims: tuple[Claim, ...]


@dataclass(slots=True)
class _Coming:
    """A vector on its way. While a page of it is written, its thread alone has ``part`` and ``next``."""

    key: bytes  # who brings it
    began_s: float
    heard_s: float
    part: VectorPart | None = None
    next: int = 0  # place of the byte that comes next
    is_busy: bool = False  # a page is being written
    is_over: bool = False  # another one took its place: it is closed once it is not busy


class Facts(Protocol):
    """Tells what a log says of contributions (``aggregator.features.audits.facts``)."""

    @property
    def run(self) -> bytes:
        """The run's id."""

    @property
    def reputation(self) -> Reputation:
        """What verdicts add up to."""

    def header(self, round: int, contribution: bytes) -> Header:
        """Return a listed contribution with its claims, by its round and digest; it blocks."""

    def beacon(self, round: int) -> bytes:
        """Return the beacon of a round."""

    def base(self, round: int) -> tuple[bytes, int]:
        """Return the digest of the state that work for a round begins with, and the min exponent of its bodies."""

    async def left(self, audited: Audited) -> tuple[bool, ...]:
        """Return of each claim whether the residual that it names was left to its key (``protocol.listed.was_left``)."""


class BroughtVectors:
    """Keeps for one operator what peers bring of audited contributions."""

    def __init__(
        self, directory: Path, facts: Facts, *, num_weights: int, max_bytes: int, faults: CallerFaults, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Take up what is in the run's ``directory``, which blocks; ``serve`` answers from then on.

        Args:
            directory: the run's.
            facts: the log's, of an audited run.
            num_weights: N, values of a vector.
            max_bytes: on the disk.
            faults: counts what is nobody's to bring.
            clock: by which they come.

        Raises:
            StorageError: the disk refuses.
        """
        rules = facts.reputation.rules
        assert rules is not None
        self._pending_rounds = rules.pending_rounds
        self._directory = directory / FOLDER
        self._vector_bytes = _VALUE_BYTES * num_weights
        self.folder = VectorsFolder(self._directory, kept_rounds=self._pending_rounds, max_bytes=max_bytes, is_pinned=True)
        self._facts = facts
        self._faults = faults
        self._clock = clock
        self._here = self.folder.all()  # by contribution
        self._full = self._read_full()  # by contribution: the round of what was refused for want of room
        self._coming: dict[tuple[bytes, bytes], _Coming] = {}  # by contribution and vector
        self._working = set[asyncio.Task[None]]()  # on the disk
        # Of contributions that are audited; what is not audited any more is forgotten with the next round.
        self._failed: dict[bytes, dict[int, int]] = {}  # steps of which own vectors are needed, with the round when that was said first
        self._vectors: dict[bytes, tuple[bytes, ...]] = {}  # that are asked for
        self._opened = OrderedDict[bytes, Audited]()  # the last that were asked about
        self._broken = Counter[tuple[bytes, bytes]]()  # by contribution and key: vectors that it began and did not bring

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer from now on."""
        await endpoint.serve(WANTED, self._on_wanted)
        await endpoint.serve(BRING, self._on_bring)

    async def close(self) -> None:
        """Finish what is being written, and let go of what is not whole."""
        while self._working:
            await asyncio.wait(self._working)
        for which in list(self._coming):
            self._drop(which)
        while self._working:
            await asyncio.wait(self._working)

    # What there is.

    @property
    def num_bytes(self) -> int:
        """How many bytes what is here takes, with what is on its way."""
        return self.folder.num_bytes

    @property
    def num_full(self) -> int:
        """Contributions of which something was refused here for want of room."""
        return len(self._full)

    def audit_of(self, contribution: bytes) -> Audit | None:
        """Return the audit of a contribution; None: it is not audited, or not any more."""
        return self._facts.reputation.audits.get(contribution)

    @property
    def opened_lately(self) -> tuple[Audited, ...]:
        """The contributions that were asked about last."""
        return tuple(self._opened.values())

    async def opened(self, audit: Audit) -> Audited:
        """Return a contribution that is audited, read from the log unless it was lately."""
        contribution = audit.work.contribution
        if (found := self._opened.get(contribution)) is None:
            header = await asyncio.to_thread(self._facts.header, audit.round, contribution)
            claims = tuple(signed.unchecked() for signed in header.claims)
            found = Audited(audit, header, header.contribution.unchecked(), claims)
        self._opened[contribution] = found
        self._opened.move_to_end(contribution)
        while len(self._opened) > _MAX_OPENED:
            self._opened.popitem(last=False)
        return found

    async def lacking(self, audit: Audit) -> list[bytes]:
        """Return the digests of what is asked for of a contribution and is not here."""
        contribution = audit.work.contribution
        if (wanted := self._vectors.get(contribution)) is None:
            audited = await self.opened(audit)
            failed = tuple(self.needed(contribution))
            wanted = self._vectors[contribution] = vectors_of(audited.contribution, audited.claims, failed)
        here = self._here.get(contribution, ())
        return [vector for vector in wanted if vector not in here]

    def lacks_room(self, contribution: bytes) -> bool:
        """Return whether something of a contribution was refused here for want of room."""
        return contribution in self._full

    def need(self, contribution: bytes, step: int) -> None:
        """Ask for the own vectors of a step, too."""
        if step not in self._failed.setdefault(contribution, {}):
            self._failed[contribution][step] = self._facts.reputation.round
            self._vectors.pop(contribution, None)

    def needed(self, contribution: bytes) -> dict[int, int]:
        """Return the steps of which own vectors are asked for, in order, with the round since which they are."""
        return dict(sorted(self._failed.get(contribution, {}).items()))

    async def committed(self) -> None:
        """The log has a new round: remove what is too old, forget what is not audited any more.

        Raises:
            StorageError: the disk refuses.
        """
        reputation = self._facts.reputation
        for of_audits in (self._failed, self._vectors, self._opened):
            for contribution in of_audits.keys() - reputation.audits.keys():
                of_audits.pop(contribution)
        self._broken = Counter({which: count for which, count in self._broken.items() if which[0] in reputation.audits})
        newest = reputation.round if reputation.pending else reputation.round + self._pending_rounds  # all paid: nothing is looked at again
        oldest = newest - self._pending_rounds
        old = {contribution: round_ for contribution, round_ in self._full.items() if round_ <= oldest}
        await asyncio.to_thread(self.folder.prune, newest)
        for contribution in old:
            self._full.pop(contribution)
        self._here = {contribution: here for contribution, here in self._here.items() if self.folder.round_of(contribution) is not None}

    # What comes.

    async def _on_wanted(self, caller: PublicKey, request: bytes) -> bytes:
        with self._held_to_account(caller):
            asked = unpack(AskWanted, request, max_bytes=MAX_ASK_BYTES)
            answers = tuple([await self._wanted(caller, each) for each in asked.contributions])
        return pack(WantedAnswer(answers))

    async def _wanted(self, caller: PublicKey, placed: PlacedContribution) -> WantedOf:
        if placed.round >= self._facts.reputation.round:
            return WantedOf(int(WantedFate.LATER), ())
        audit = self.audit_of(placed.contribution)
        if audit is None:
            return WantedOf(int(WantedFate.NOTHING), ())
        self._check_theirs(caller, audit)
        lacking = (await self.lacking(audit))[:MAX_WANTED]
        return WantedOf(int(WantedFate.BRING if lacking else WantedFate.HELD), tuple(lacking))

    async def _on_bring(self, caller: PublicKey, request: bytes) -> bytes:
        with self._held_to_account(caller):
            page = unpack(VectorPage, request, max_bytes=MAX_PAGE_BYTES)
            audit = self.audit_of(page.contribution)
            if audit is None:
                raise NotTaken("this contribution is not audited, or not any more")
            self._check_theirs(caller, audit)
            if page.vector not in await self.lacking(audit):
                return b""  # another of its keys was faster
            if len(page.data) != min(PAGE_BYTES, self._vector_bytes - page.first):
                raise EncodingError("a page of a vector of another length")
            which = page.contribution, page.vector
            coming = self._begin(caller, which) if page.first == 0 else self._coming.get(which)
            if coming is None or coming.key != caller or page.first != coming.next:
                raise NotTaken("a vector is brought from its beginning, page by page")
            if coming.is_busy:
                raise Busy("a page of it is being written")
            coming.is_busy, coming.heard_s = True, self._clock.now_s()
            writing = self._begin_work(self._write(audit.round, which, coming, page.data))
            await asyncio.shield(writing)  # a caller that hangs up leaves no page half written
        return b""

    def _begin(self, key: bytes, which: tuple[bytes, bytes]) -> _Coming:
        """Give a vector that begins a place.

        Raises:
            Busy: there is none now.
        """
        self._make_place(key, which)
        now_s = self._clock.now_s()
        coming = self._coming[which] = _Coming(key, now_s, now_s)
        return coming

    def _make_place(self, key: bytes, which: tuple[bytes, bytes]) -> None:
        now_s = self._clock.now_s()
        for each, coming in list(self._coming.items()):
            if now_s - coming.heard_s >= QUIET_S:
                self._break_off(each)
        held = self._coming.get(which)
        if held is not None and held.key == key:
            if held.is_busy:
                raise Busy("a page of it is being written")
            self._break_off(which)  # it begins anew
        elif held is not None and self._is_slow(held, now_s):
            self._break_off(which)
        elif held is not None:
            if self._broken[which[0], held.key] <= self._broken[which[0], key]:
                raise Busy("another of its keys brings it")
            self._drop(which)  # who did not bring what it began has no place before the others
        if sum(coming.key == key for coming in self._coming.values()) >= MAX_OF_ONE:
            raise Busy("this key brings others of its vectors")
        if len(self._coming) >= MAX_COMING:
            slow = [each for each, coming in self._coming.items() if self._is_slow(coming, now_s)]
            if not slow:
                raise Busy("others bring their vectors")
            self._break_off(slow[0])

    @staticmethod
    def _is_slow(coming: _Coming, now_s: float) -> bool:
        since_s = now_s - coming.began_s
        return since_s >= QUIET_S and coming.next < since_s * LEAST_RATE

    async def _write(self, round_: int, which: tuple[bytes, bytes], coming: _Coming, data: bytes) -> None:
        is_whole = False
        try:
            is_whole = await asyncio.to_thread(self._store, round_, which, coming, data)
        except NoRoom:
            coming.is_over = True
            await self._refuse_for_room(round_, which[0])
        except EncodingError:
            self._broken[which[0], coming.key] += 1
            coming.is_over = True
            raise
        except StorageError as error:  # the log goes on without it, and nobody is to blame
            logger.error("what a peer brought could not be stored reason=%s", error)
            coming.is_over = True
            await self._refuse_for_room(round_, which[0])
        except BaseException:
            coming.is_over = True
            raise
        finally:
            coming.is_busy = False
            if is_whole and self.folder.has(*which):
                self._here.setdefault(which[0], set()).add(which[1])
            if is_whole or coming.is_over:
                if self._coming.get(which) is coming:
                    del self._coming[which]
                if coming.part is not None:
                    await asyncio.to_thread(coming.part.close)

    def _store(self, round_: int, which: tuple[bytes, bytes], coming: _Coming, data: bytes) -> bool:
        """Write a page; return whether the vector is whole now."""
        if coming.part is None:
            coming.part = self.folder.begin(round_, *which, self._vector_bytes)
        coming.part.write(data)
        coming.next += len(data)
        if coming.next < self._vector_bytes:
            return False
        if coming.part.digest != which[1]:
            raise EncodingError("another vector than the contribution names")
        coming.part.finish()
        return True

    async def _refuse_for_room(self, round_: int, contribution: bytes) -> NoReturn:
        """Refuse something of a contribution, which is not judged then, also after a restart.

        Raises:
            NotTaken: always.
        """
        self._full[contribution] = round_
        try:
            await asyncio.to_thread(AtomicFile(self._full_path(round_, contribution), 0).write, b"")
        except StorageError as error:
            logger.error("that there was no room is forgotten at the next start reason=%s", error)
        raise NotTaken("there is no room for it")

    def _begin_work(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._worked)
        return task

    def _worked(self, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # whoever brought it is told, if it is still there

    def _break_off(self, which: tuple[bytes, bytes]) -> None:
        """Let go of a vector that its key began and does not bring."""
        self._broken[which[0], self._coming[which].key] += 1
        self._drop(which)

    def _drop(self, which: tuple[bytes, bytes]) -> None:
        coming = self._coming.pop(which)
        coming.is_over = True
        if not coming.is_busy:
            self._close(coming)

    def _close(self, coming: _Coming) -> None:
        if coming.part is not None:
            self._begin_work(asyncio.to_thread(coming.part.close))

    def _full_path(self, round_: int, contribution: bytes) -> Path:
        return round_path(self._directory, round_) / f"{contribution.hex()}{_FULL}"

    def _read_full(self) -> dict[bytes, int]:
        with disk_errors(self._directory):
            paths = [path for path in self._directory.glob(f"*/*{_FULL}") if path.parent.name.isdecimal()]
        return {bytes.fromhex(path.name.removesuffix(_FULL)): int(path.parent.name) for path in paths}

    def _check_theirs(self, caller: PublicKey, audit: Audit) -> None:
        if caller not in audit.work.keys:
            raise NotTheirs("another's contribution")

    @contextlib.contextmanager
    def _held_to_account(self, caller: PublicKey) -> Iterator[None]:
        if is_too_much(self._faults, caller):
            raise NotTaken("too much that was wrong came from there lately")
        with noted(self._faults, caller):
            yield
