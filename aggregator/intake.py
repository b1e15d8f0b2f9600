"""What the log takes from strangers: headers and bodies, checked, stored and synced before a ticket says so.

Nothing here writes to the log. Bytes are gathered in memory, checked in a thread of their own, and stored by another, all that wait under
one sync. Which contributions make a round is decided by ``protocol.closing``, for which the arrival of a body's last byte counts, not the
time that its checks and its sync take.

What is held is bounded by the places that ``protocol.closing`` gives: at most two tables of bodies, the open round's and the next one's,
and one body of a founder. What loses its place there is forgotten here as soon as the next header comes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from aggregator.bodies import Bodies, Kept
from exact.coding import Body, body_groups, body_num_bytes, group_sizes, parse
from protocol.closing import Closing, NotTaken
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, LedgerError, RemoteFault, SignatureError
from protocol.ledger import KEPT_TABLES, Ledger, Listed
from protocol.records import Header, SignedTicket, Ticket
from protocol.signing import Identity, PublicKey
from swarm.blobs import Blob
from swarm.budget import Faults
from swarm.messages import MAX_HEADER_BYTES, BodyPart, HandIn, HeaderAnswer
from swarm.rpc import Endpoint

logger = logging.getLogger("manta.intake")

_REASONS: tuple[tuple[type[RemoteFault], str], ...] = (
    (EncodingError, "malformed"),
    (SignatureError, "signature"),
    (LedgerError, "not for this log"),
)


class NotTheirs(RemoteFault):
    """A contribution or a body that another key than its members' brings."""


class Ignored(RemoteFault):
    """A key that did so much wrong lately that its calls are not looked at for a while."""


@dataclass(slots=True)
class _Upload:
    """A body on its way."""

    header: Header
    keys: frozenset[bytes]
    root: bytes
    groups: list[bytes | None]  # none once they are checked
    missing: int


@dataclass(frozen=True, slots=True)
class Handed:
    """A contribution with its body, checked."""

    header: Header
    blob: Blob
    body: Body


@dataclass(slots=True)
class _Batch:
    """Contributions that go to the disk together, each with its round, and what is done once they are there."""

    kept: list[tuple[int, Kept]] = field(default_factory=list)
    stored: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def now_ms() -> int:
    """Return the time by a clock that does not go back."""
    return time.monotonic_ns() // 1_000_000


class Intake:
    """Answers "header" and "body"."""

    def __init__(
        self,
        endpoint: Endpoint,
        identity: Identity,
        ledger: Callable[[], Ledger],
        closing: Closing,
        bodies: Bodies,
        num_weights: int,
        on_change: Callable[[], None],
    ) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            ledger: returns the log's ledger as it is published.
            closing: the rounds; shared with ``aggregator.commits``, in the same event loop.
            on_change: is called when a header or a body came.
        """
        self._endpoint = endpoint
        self._identity = identity
        self._ledger = ledger
        self._closing = closing
        self._bodies = bodies
        self._on_change = on_change
        self._codec = ledger().manifest.exchange.codec
        self._num_weights = num_weights
        self._sizes = group_sizes(self._codec, num_weights)
        self._uploads: dict[bytes, _Upload] = {}
        self._handed: dict[bytes, Handed] = {}
        self._synced: dict[bytes, asyncio.Future[None]] = {}  # by contribution, from the arrival of its body on
        self._batch = _Batch()
        self._syncing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of checks and syncs: a caller who hangs up ends none of them
        self._is_closed = False
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="checks")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="bodies")
        self.faults = Faults(time.monotonic)
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()  # done once this program cannot go on

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve("header", self._on_header)
        await self._endpoint.serve("body", self._on_body)

    async def close(self) -> None:
        """Take nothing more, and finish what is being checked and written."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._checks.shutdown(wait=True)
        self._disk.shutdown(wait=True)

    def restore(self, kept: Sequence[Kept], round: int) -> None:
        """Take contributions that were stored for ``round``, the next or the one after it, before this program's start.

        They have tickets, or would have had one a moment later.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.set_result(None)
        for one in kept:
            listed = self._ledger().listed(one.header, round)
            digest = one.header.contribution.digest
            self._handed[digest] = self._checked(one.header, listed.row.body, one.body)
            self._uploads[digest] = _Upload(one.header, frozenset(listed.keys), listed.row.body, [], 0)
            self._synced[digest] = over
            self._closing.restore(listed.row.founder, digest, round, now_ms())

    def handed(self, contribution: bytes) -> Handed:
        """Return a contribution that is good."""
        return self._handed[contribution]

    def stop(self, error: BaseException | None) -> None:
        """Say that this program cannot go on; None says nothing. What comes from now on gets no ticket."""
        if error is not None and not self.broken.done():
            self.broken.set_result(error)

    async def synced(self, contributions: Sequence[bytes]) -> None:
        """Return once these are on the disk.

        Raises:
            StorageError: the disk refused one.
        """
        try:
            await asyncio.gather(*(asyncio.shield(self._synced[each]) for each in contributions))
        except NotTaken:
            raise self.broken.result() from None

    def forget_others(self, round: int) -> None:
        """A round was committed: forget what was in it, and uploads for it that came to nothing."""
        self._forget_gone()
        logger.info("intake round=%d refused=%s", round, dict(self.faults.by_reason))

    def _forget_gone(self) -> None:
        """Forget what has no place in a round any more, and count whose body did not come, or was not what its header says."""
        for digest in [digest for digest in self._uploads if self._closing.round_of(digest) is None]:
            del self._uploads[digest]
            self._handed.pop(digest, None)
            self._synced.pop(digest, None)
        for founder, reason in self._closing.take_gone():
            self.faults.note(founder, reason)

    def _is_going_on(self) -> bool:
        return not self._is_closed and not self.broken.done()

    # Headers.

    async def _on_header(self, caller: PublicKey, request: bytes) -> bytes:
        with _noted(self.faults, caller):
            return pack(self._take_header(caller, request))

    def _take_header(self, caller: PublicKey, request: bytes) -> HeaderAnswer:
        if self.faults.is_too_much(caller):
            raise Ignored("too much of this key was refused lately: wait a minute")
        header = unpack(Header, request, max_bytes=MAX_HEADER_BYTES)
        ledger, now, digest = self._ledger(), now_ms(), header.contribution.digest
        claims = [ledger.verified.claim(signed) for signed in header.claims]
        if caller not in [claim.key for claim in claims]:
            raise NotTheirs("a contribution of other keys than the one that brings it")
        for round_ in range(max(claims[0].round, ledger.round - KEPT_TABLES + 1), ledger.round + 1):
            if any(listed.row.contribution == digest for listed in ledger.table_at(round_) or ()):
                return HeaderAnswer(int(HandIn.LISTED), round_, self._closing.left_ms(now), ())
        if ledger.finished:
            raise NotTaken("the run is finished")
        round_ = self._closing.round_for_header(digest, now)
        if round_ > ledger.manifest.num_rounds:
            raise NotTaken("the run has no round left for it")
        listed = ledger.listed(header, round_)
        self._check_body_is_new(listed, digest)
        try:
            if not self._is_going_on():
                raise NotTaken("the log is about to stop")
            taken_for = self._closing.header(listed.row.founder, digest, now)
            assert taken_for == round_  # for which it was checked
        except NotTaken:
            return HeaderAnswer(int(HandIn.LATER), round_, self._closing.left_ms(now), ())
        self._forget_gone()
        left_ms = self._closing.left_ms(now)
        self._on_change()
        if self._is_stored(digest):
            return HeaderAnswer(int(HandIn.HAVE_TICKET), round_, left_ms, (self._ticket(round_, digest),))
        if digest not in self._uploads:
            groups: list[bytes | None] = [None] * len(self._sizes)
            self._uploads[digest] = _Upload(header, frozenset(listed.keys), listed.row.body, groups, len(groups))
        return HeaderAnswer(int(HandIn.SEND_BODY), round_, left_ms, ())

    def _is_stored(self, contribution: bytes) -> bool:
        synced = self._synced.get(contribution)
        return synced is not None and synced.done() and synced.exception() is None

    def _check_body_is_new(self, listed: Listed, contribution: bytes) -> None:
        """Refuse a body that another contribution of the round names: it was copied, or the two agreed on it.

        Raises:
            LedgerError: it is not new.
        """
        for digest, upload in self._uploads.items():
            if digest != contribution and upload.root == listed.row.body and upload.keys.isdisjoint(listed.keys):
                raise LedgerError("another contribution of the round names this body")

    # Bodies.

    async def _on_body(self, caller: PublicKey, request: bytes) -> bytes:
        with _noted(self.faults, caller):
            part = BodyPart.open(request)
            storing = self._take_part(caller, part)
        if storing is None:
            return b""
        await asyncio.shield(storing)  # a body that is wrong is counted where that is found, for its sender may be gone by then
        round_ = self._closing.round_of(part.contribution)
        if round_ is None:  # the round was committed while this waited: the header's answer says the rest
            raise NotTaken("the round is over: send the header again to learn what became of it")
        return pack(self._ticket(round_, part.contribution))

    def _take_part(self, caller: PublicKey, part: BodyPart) -> "asyncio.Future[None] | None":
        """Put a group in its place; return what is done once the body is on the disk, None while groups are missing.

        Raises:
            NotTaken: no header says what this is, or it came too late.
            RemoteFault: it is not the caller's, or no group of such a body.
        """
        upload = self._uploads.get(part.contribution)
        if upload is None or self._closing.round_of(part.contribution) is None or not self._is_going_on():
            raise NotTaken("no header of this body was taken, or its round is closed: hand it in again")
        if caller not in upload.keys:
            raise NotTheirs("a body of other keys than the one that brings it")
        if not 0 <= part.place < len(self._sizes) or len(part.data) != self._sizes[part.place]:
            raise EncodingError("a group of a body with another place or size than bodies of this run have")
        if upload.missing and upload.groups[part.place] is None:
            upload.groups[part.place] = bytes(part.data)
            upload.missing -= 1
        if upload.missing:
            return None
        return self._synced.get(part.contribution) or self._take_body(part.contribution, upload)

    def _take_body(self, digest: bytes, upload: _Upload) -> "asyncio.Task[None]":
        """Have a body checked and stored whose last byte just came; return the task, which is over when it is on the disk.

        The task raises EncodingError where the body is not what its header says, NotTaken where it could not be stored.

        Raises:
            NotTaken: it came too late.
        """
        round_ = self._closing.arrived(digest, now_ms())
        self._synced[digest] = task = self._begin(self._check_and_store(digest, upload, round_))
        return task

    async def _check_and_store(self, digest: bytes, upload: _Upload, round_: int) -> None:
        data = b"".join(group for group in upload.groups if group is not None)
        try:
            handed = await asyncio.get_running_loop().run_in_executor(self._checks, self._checked, upload.header, upload.root, data)
        except RemoteFault:
            self._closing.bad(digest)
            self._forget_gone()
            self._on_change()
            raise
        self._closing.good(digest)
        self._handed[digest] = handed
        upload.groups.clear()
        self._on_change()
        batch = self._batch
        batch.kept.append((round_, Kept(upload.header, data)))
        if self._syncing is None or self._syncing.done():
            self._syncing = self._begin(self._sync())
        await asyncio.shield(batch.stored)

    def _checked(self, header: Header, root: bytes, data: bytes) -> Handed:
        """Return a contribution whose body is what its header says.

        Raises:
            EncodingError: it is not.
        """
        if len(data) != body_num_bytes(self._codec, self._num_weights):
            raise EncodingError("a body of another size than this run's")
        blob = Blob.of(body_groups(self._codec, data, self._num_weights))
        if blob.root != root:
            raise EncodingError("the body does not have the root that its header names")
        return Handed(header, blob, parse(self._codec, data, self._num_weights))

    async def _sync(self) -> None:
        """Store all that waits, until nothing does: one sync covers everything that came during the one before.

        After a disk's error nothing is stored any more, and so nothing is promised: this program has to be started again.
        """
        while self._batch.kept:
            batch, self._batch = self._batch, _Batch()
            if not self.broken.done():
                storing = asyncio.get_running_loop().run_in_executor(self._disk, self._bodies.append, batch.kept)
                await asyncio.wait({storing})
                self.stop(storing.exception())
            if self.broken.done():
                batch.stored.set_exception(NotTaken("the log could not store it and stops: hand it in again when it is back"))
            else:
                batch.stored.set_result(None)

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run ``work`` on its own; what it raises that is no stranger's fault stops the program."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        self.stop(None if isinstance(error, RemoteFault) else error)

    def _ticket(self, round_: int, contribution: bytes) -> SignedTicket:
        return SignedTicket.sign(Ticket(self._ledger().run, round_, contribution), self._identity)


class _noted:
    """Counts what is refused inside of it, by the caller's key."""

    def __init__(self, faults: Faults, caller: PublicKey) -> None:
        self._faults = faults
        self._caller = caller

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, NotTaken | Ignored):
            return  # that is nobody's fault, or was counted
        if isinstance(error, NotTheirs):
            self._faults.note(self._caller, "another's identity")
        elif isinstance(error, RemoteFault):
            reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")
            self._faults.note(self._caller, reason)
