"""What the log takes from strangers: headers and bodies, checked, stored and synced before an inclusion promise says so.

Nothing here writes to the log. Bytes are gathered in memory, checked in a thread of their own, and stored by another, all that wait under
one sync. Which contributions make a round is decided by ``protocol.closing``, for which the arrival of a body's last byte counts, not the
time that its checks and its sync take.

What is held is bounded by the places that ``protocol.closing`` gives: at most two tables of bodies, the open round's and the next one's;
the bodies of those that their cohort's made superfluous are let go once they are on the disk. What loses its place there is forgotten here
as soon as the next header comes (but see ``aggregator.intake.bodies``).

A header may list the claims of several keys, and any of them may bring it. Where some of the claims may not stand, the others do not lose
their work: the answer names whose, and the founder hands in without them.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from manta_swarm.aggregator.commit.deciding import Decider
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.intake.bodies import StoredContribution, Upload, Uploads
from manta_swarm.aggregator.intake.refusals import NotTheirs, bringer_of, check_lengths, check_trusted, is_too_much, noted
from manta_swarm.codec.coding import Body, body_groups, body_num_bytes, group_sizes, parse
from manta_swarm.network.blobs import Blob
from manta_swarm.network.log_client import BodyPart, HandIn, HeaderAnswer
from manta_swarm.network.rates import CallerFaults
from manta_swarm.protocol.closing import Closing, NotTaken
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import ClaimError, EncodingError, RemoteFault
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.ledger import KEPT_TABLES, Ledger
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import MAX_HEADER_BYTES, Claim, Header, InclusionPromise, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey

logger = logging.getLogger("manta.intake")


@dataclass(frozen=True, slots=True)
class CheckedContribution:
    """A contribution with its body, checked."""

    header: Header
    entry: bytes  # as the log is to have it
    blob: Blob
    body: Body


@dataclass(slots=True)
class _Batch:
    """Contributions that go to the disk together, each with its round, and what is done once they are there."""

    kept: list[tuple[int, StoredContribution]] = field(default_factory=list)
    stored: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Intake:
    """Answers the calls "header" and "body", by which contributions are handed in."""

    def __init__(
        self,
        context: RunContext,
        closing: Closing,
        changed: asyncio.Event,
        decider: Decider,
    ) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            context: of the run.
            closing: the rounds; shared with ``aggregator.commit.commits``, in the same event loop.
            changed: is set when a header or a body came.
            decider: has what gets a promise where it has to be before that.
        """
        self._context = context
        self._decider = decider
        self._endpoint = context.endpoint
        self._identity = context.identity
        self._closing = closing
        self._changed = changed
        self._codec = context.manifest.exchange.codec
        self._num_weights = num_weights = context.num_weights
        self._broken = context.broken
        self._uploads = Uploads(group_sizes(self._codec, num_weights), 2 * context.manifest.exchange.max_rows)
        self._handed: dict[bytes, CheckedContribution] = {}
        self._synced: dict[bytes, asyncio.Future[None]] = {}  # by contribution, from the arrival of its body on
        self._batch = _Batch()
        self._syncing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of checks and syncs: a caller who hangs up ends none of them
        self._is_closed = False
        self._gone = asyncio.Event()  # something that was handed in has its place in a table, or can have none
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="checks")
        self.faults = CallerFaults(context.clock)

    def _now(self) -> int:
        return round(self._context.clock.now_ms())

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

    def take_no_more(self) -> None:
        """Take nothing new from now on: it is told to come later."""
        self._is_closed = True

    async def nothing_waits(self) -> None:
        """Return once all that was promised a place in a table is in one."""
        while self._synced:
            self._gone.clear()
            await self._gone.wait()

    def restore_valid(self, kept: Sequence[StoredContribution], round: int) -> None:
        """Do as ``restore``, with what others kept: without what may not be in, or not beside what comes before it in ``kept``."""
        keys = dict[bytes, list[Listed]]()
        for one in kept:
            try:
                listed = self._context.ledger.listed(one.header, round)
                for key in listed.keys:
                    if any(not go_beside(listed, other, self._context.ledger.manifest) for other in keys.get(key, ())):
                        raise NotTaken("another contribution of these keys is in")
                self.restore([one], round)
            except RemoteFault as error:
                logger.info("not taken up round=%d reason=%s", round, error)
                continue
            for key in listed.keys:
                keys.setdefault(key, []).append(listed)

    def restore(self, kept: Sequence[StoredContribution], round: int) -> None:
        """Take contributions that were stored for ``round``, the next or the one after it, before this program's start.

        They have inclusion promises, or would have had one a moment later.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.set_result(None)
        for one in kept:
            listed = self._context.ledger.listed(one.header, round)
            digest = one.header.contribution.digest
            self._handed[digest] = self._checked(one.header, listed.body, one.body)
            self._uploads.restore(digest, one.header, listed)
            self._synced[digest] = over
            self._closing.restore(listed.founder, listed.by_key, listed.round, digest, round, self._now())
        self._let_go_superseded()

    def handed(self, contribution: bytes) -> CheckedContribution:
        """Return a contribution that is good."""
        return self._handed[contribution]

    async def synced(self, contributions: Sequence[bytes]) -> None:
        """Return once these contributions are on the disk.

        Raises:
            StorageError: the disk refused one.
        """
        try:
            await asyncio.gather(*(asyncio.shield(self._synced[each]) for each in contributions))
        except NotTaken:
            raise self._broken.told.result() from None

    def committed(self, round: int) -> None:
        """A round was committed: forget what was in it, and what was handed in for it and came to nothing."""
        self._forget_gone()
        self._uploads.forget_old(round)
        logger.info("intake round=%d refused=%s", round, dict(self.faults.by_reason))

    def _forget_gone(self) -> None:
        """Forget what has no place in a round any more, and count whose body did not come, or was not what its header says."""
        slow = set()
        for digest, _ in self._uploads:
            if self._closing.round_of(digest) is None:
                slow.add(self._uploads.forget(digest))
                self._handed.pop(digest, None)
                self._synced.pop(digest, None)
        for bringer, reason in self._closing.take_gone():
            if bringer not in slow:
                self.faults.note(bringer, reason)
        self._gone.set()

    def _let_go_superseded(self) -> None:
        """Forget the bodies that no table will need: they are on the disk, or about to be."""
        self._handed = {digest: handed for digest, handed in self._handed.items() if not self._closing.is_superseded(digest)}

    def _is_going_on(self) -> bool:
        return not self._is_closed and not self._broken

    # Headers.

    async def _on_header(self, caller: PublicKey, request: bytes) -> bytes:
        with noted(self.faults, caller):
            return pack(self._take_header(caller, request))

    def _take_header(self, caller: PublicKey, request: bytes) -> HeaderAnswer:
        ledger, now = self._context.ledger, self._now()
        if is_too_much(self.faults, caller):  # later, not no: what it brings may be good, and another member's
            return self._answer(HandIn.LATER, self._closing.round, now)
        header = unpack(Header, request, max_bytes=MAX_HEADER_BYTES)
        check_lengths(header, ledger.manifest.exchange.local_steps)
        digest = header.contribution.digest
        claims = [ledger.verified.claim(signed) for signed in header.claims]
        if caller not in [claim.key for claim in claims]:
            raise NotTheirs("a contribution of other keys than the one that brings it")
        listed_in = _listed_in(ledger, digest, claims)
        if listed_in is not None:
            return self._answer(HandIn.LISTED, listed_in, now)
        if ledger.finished:
            raise NotTaken("the run is finished")
        round_ = self._closing.round_for_header(digest, now)
        if round_ > ledger.manifest.num_rounds:
            raise NotTaken("the run has no round left for it")
        try:
            check_trusted(ledger, header, claims)
            self._take_checked(caller, header, ledger.listed(header, round_), round_, now)
        except ClaimError as error:
            if len(claims) == 1:
                raise
            return self._answer(HandIn.WITHOUT, round_, now, blamed=error.keys)
        except NotTaken as error:
            founder = ledger.verified.contribution(header.contribution).founder
            if error.keys and founder not in error.keys:  # the others have a place of their own
                return self._answer(HandIn.WITHOUT, round_, now, blamed=error.keys)
            return self._answer(HandIn.LATER, round_, now)
        self._forget_gone()
        self._changed.set()
        if self._is_stored(digest):
            return self._answer(HandIn.HAVE_PROMISE, round_, now, inclusion_promises=(self._inclusion_promise(round_, digest),))
        upload = self._uploads.get(digest)
        assert upload is not None
        return self._answer(HandIn.SEND_BODY, round_, now, there=upload.there)

    def _take_checked(self, caller: PublicKey, header: Header, listed: Listed, round_: int, now: int) -> None:
        """Give a header that may stand in the table of ``round_`` its place.

        Raises:
            NotTaken: there is no place for it, or none that it may have beside others of its keys.
        """
        digest, founder, ledger = header.contribution.digest, listed.founder, self._context.ledger
        if not self._is_going_on():
            raise NotTaken("the log is about to stop")
        bringer = self._uploads.bringer(digest, founder, bringer_of(caller), now, grace_ms(ledger.open_ms))
        taken_for = self._closing.header(
            founder, listed.by_key, listed.round, digest, now, bringer, self._context.callers.address_of(caller)
        )
        assert taken_for == round_  # for which it was checked
        if not self._is_whole(digest):
            is_awaited = not frozenset(listed.keys).isdisjoint(ledger.last_keys)
            self._uploads.place(digest, header, listed, bringer=bringer, is_awaited=is_awaited, now=now)

    def _answer(
        self,
        status: HandIn,
        round_: int,
        now: int,
        *,
        inclusion_promises: tuple[Signed[InclusionPromise], ...] = (),
        blamed: tuple[bytes, ...] = (),
        there: bytes = b"",
    ) -> HeaderAnswer:
        return HeaderAnswer(int(status), round_, self._closing.left_ms(now), inclusion_promises, blamed, there)

    def _is_stored(self, contribution: bytes) -> bool:
        synced = self._synced.get(contribution)
        return synced is not None and synced.done() and synced.exception() is None

    # Bodies.

    async def _on_body(self, caller: PublicKey, request: bytes) -> bytes:
        with noted(self.faults, caller):
            part = BodyPart.open(request)
            storing = self._take_part(caller, part)
        if storing is None:
            return b""
        await asyncio.shield(storing)  # a body that is wrong is counted where that is found, for its sender may be gone by then
        round_ = self._closing.round_of(part.contribution)
        if round_ is None:  # the round was committed while this waited: the header's answer says the rest
            raise NotTaken("the round is over: send the header again to learn what became of it")
        return pack(self._inclusion_promise(round_, part.contribution))

    def _take_part(self, caller: PublicKey, part: BodyPart) -> "asyncio.Future[None] | None":
        """Put a group in its place; return what is done once the body is on the disk, None while groups are missing.

        Raises:
            NotTaken: no header says what this is, it came too late, or another member brings it.
            RemoteFault: it is not the caller's, or no group of such a body.
        """
        if self._closing.round_of(part.contribution) is None or not self._is_going_on():
            raise NotTaken("no header of this body was taken, or its round is closed: hand it in again")
        upload = self._uploads.part(caller, bringer_of(caller), part, self._now())
        if upload.missing:
            return None
        return self._synced.get(part.contribution) or self._take_body(part.contribution, upload)

    def _is_whole(self, contribution: bytes) -> bool:
        upload = self._uploads.get(contribution)
        return upload is not None and not upload.missing

    def _take_body(self, digest: bytes, upload: Upload) -> "asyncio.Task[None]":
        """Have a body checked and stored whose last byte just came; return the task, which is over when it is on the disk.

        The task raises EncodingError where the body is not what its header says, NotTaken where it could not be stored.

        Raises:
            NotTaken: it came too late.
        """
        round_ = self._closing.arrived(digest, self._now())
        self._synced[digest] = task = self._begin(self._check_and_store(digest, upload, round_))
        return task

    async def _check_and_store(self, digest: bytes, upload: Upload, round_: int) -> None:
        data = b"".join(group for group in upload.groups if group is not None)
        try:
            handed = await asyncio.get_running_loop().run_in_executor(self._checks, self._checked, upload.header, upload.listed.body, data)
        except RemoteFault:
            self._closing.bad(digest)
            self._forget_gone()
            self._changed.set()
            raise
        self._closing.good(digest)
        self._handed[digest] = handed
        self._let_go_superseded()
        upload.groups.clear()
        self._changed.set()
        batch = self._batch
        batch.kept.append((round_, StoredContribution(upload.header, data)))
        if self._syncing is None or self._syncing.done():
            self._syncing = self._begin(self._sync())
        await asyncio.shield(batch.stored)

    def _checked(self, header: Header, root: bytes, data: bytes) -> CheckedContribution:
        """Return a contribution whose body is what its header says.

        Raises:
            EncodingError: it is not.
        """
        if len(data) != body_num_bytes(self._codec, self._num_weights):
            raise EncodingError("a body of another size than this run's")
        blob = Blob.of(body_groups(self._codec, data, self._num_weights))
        if blob.root != root:
            raise EncodingError("the body does not have the root that its header names")
        entry = entry_of(header)
        self._context.ledger.verified.entry(entry)  # read here, beside the writing path: that finds it read
        return CheckedContribution(header, entry, blob, parse(self._codec, data, self._num_weights))

    async def _sync(self) -> None:
        """Store all that waits, until nothing does: one sync covers everything that came during the one before.

        After a disk's error nothing is stored any more, and so nothing is promised: this program has to be started again.
        """
        while self._batch.kept:
            batch, self._batch = self._batch, _Batch()
            if not self._broken:
                storing = asyncio.ensure_future(self._decider.store(batch.kept))
                await asyncio.wait({storing})
                error = storing.exception()
                if isinstance(error, NotTaken):
                    batch.stored.set_exception(error)
                    continue
                self._broken.stop(error)
            if self._broken:
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
        self._broken.stop(None if isinstance(error, RemoteFault) else error)

    def _inclusion_promise(self, round_: int, contribution: bytes) -> Signed[InclusionPromise]:
        return Signed.sign(InclusionPromise(self._context.ledger.run, round_, contribution), self._identity)


def go_beside(one: Listed, other: Listed, manifest: Manifest) -> bool:
    """Return whether a contribution may be in beside another of its round with a key in common: a cohort's and a member's same claim alone.

    Where local steps are audited a cohort's goes beside all that do not have its founder.
    """
    if manifest.audits_steps and len(one.keys) > 1 and one.founder not in other.keys:
        return True
    lone, of_cohort = sorted((set(one.claims), set(other.claims)), key=len)
    return len(lone) == 1 and lone < of_cohort


def _listed_in(ledger: Ledger, contribution: bytes, claims: Sequence[Claim]) -> int | None:
    """Return the round whose table has all the work of a header, in this contribution or in another; None: no table that is kept has it."""
    for round_ in range(max(claims[0].round, ledger.round - KEPT_TABLES + 1), ledger.round + 1):
        if any(listed.contribution == contribution for listed in ledger.table_at(round_) or ()):
            return round_
    is_ours = all((claim.run, claim.base) == (ledger.run, ledger.commit_at(claim.round - 1)) for claim in claims)
    rounds = {ledger.claim_listed(claim.key, claim.round) for claim in claims}
    return rounds.pop() if is_ours and len(rounds) == 1 else None
