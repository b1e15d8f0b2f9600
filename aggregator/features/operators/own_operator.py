"""What one operator of several has accepted, signed and keeps, and its copy of the run, which goes on as the log does.

It may be the leader's or a follower's; a follower can become the leader at any moment. What a batch says is computed again here before it
is accepted (``protocol.ballots`` has the rules). What others ask is answered by ``aggregator.features.operators.service``.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.operators.contributions import BatchReplays, Contributions, ReplayedBatch, folded
from manta_swarm.aggregator.features.operators.joining import Coming, take_states
from manta_swarm.aggregator.features.operators.lending import (
    ENTRIES,
    MAX_PAGE_ENTRIES,
    AskLogEntries,
    EntriesPage,
    LentBytes,
    borrow,
    entries_bytes,
    entries_from,
)
from manta_swarm.aggregator.features.operators.store import MAX_BATCH_BYTES, Store
from manta_swarm.aggregator.features.operators.verdicts import KeptVerdicts
from manta_swarm.aggregator.states.opening import put_state
from manta_swarm.aggregator.worker import WorkerThread
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.network import timeouts
from manta_swarm.protocol.ballots import Ballot, Certificate, EntryBatch, Promise, Vote, accept
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, LedgerError, StorageError, UserError
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.notes import TreeHead, sign_tree_head, split_note
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import PublicKey, sha256

logger = logging.getLogger("manta.operators")


@dataclass(frozen=True, slots=True)
class Offer:
    """A batch, its entries lent: one that the leader asks to accept, by a ``protocol.ballots.Vote``, or one that was accepted."""

    ballot: Ballot
    first: int
    size: int
    root: bytes
    entries: LentBytes

    def __post_init__(self) -> None:
        check_digest(self.root, "root")
        if not 0 <= self.first < self.size <= MAX_SIZE:
            raise ValueError("a batch without entries, or out of range")


class OwnOperator:
    """What one operator of several accepted, signed and keeps, and its copy of the run."""

    def __init__(self, context: RunContext) -> None:
        """Take up what was remembered.

        Raises:
            StorageError: what was remembered cannot be read.
        """
        self.endpoint = context.endpoint
        self.identity = context.identity
        self.log = context.log
        self.operators = Operators.of(context.manifest, context.ledger.run)
        self.others = tuple(key for key in self.operators.keys if key != context.key)
        self.store = Store(context.directory)
        self._context = context
        self._commits: asyncio.Queue[None] = asyncio.Queue()  # that others made, or that were taken up from before
        self._catching_up = asyncio.Lock()
        self._going_on = asyncio.Lock()  # the log
        # Only this thread changes the log and what must not be forgotten: each is looked at and replaced in one go.
        self.disk = WorkerThread("operators", context.broken)
        self.replays = BatchReplays(context.log, context.state_keeper)
        self._applying: set[asyncio.Task[None]] = set()
        self._batches: dict[bytes, bytes] = {}  # lent, by digest
        self.coming = Coming(self.endpoint, self.log, self.store, self.others, self.disk)
        self.verdicts = KeptVerdicts(self.endpoint, self.log, context.waiting)
        body_bytes = body_num_bytes(context.manifest.exchange.codec, context.num_weights)
        self.contributions = Contributions(self.endpoint, self.log, self.store, context.bodies, self.disk, body_bytes)

    @property
    def key(self) -> PublicKey:
        """This operator's key."""
        return self.identity.public_key

    @property
    def run(self) -> bytes:
        """The run's id."""
        return self.log.ledger.run

    async def next_commit(self) -> None:
        """Return once a round, or the settlement, that others committed is in the log here; each is told once."""
        await self._commits.get()

    async def close(self) -> None:
        """Finish what is being written."""
        await self.settled()
        self.replays.close()
        self.disk.close()

    # Promises.

    async def promise(self, ballot: Ballot) -> tuple[str, Promise]:
        """Promise to listen to no older ballot; return the note of the log's head, and what is said with the promise.

        Raises:
            Outdated: a later one was promised.
            Busy: it takes no part yet.
            StorageError: the disk failed.
        """
        self.coming.check()
        return await self.disk.do(self._promise, ballot)

    def _promise(self, ballot: Ballot) -> tuple[str, Promise]:
        self.store.remember(self.store.memory.listening_to(ballot))
        log = self.log
        accepted = self.store.memory.accepted_at(log.head.size)
        kept = tuple(one for one in self.store.kept if one.round > log.ledger.round)
        note = log.tree_head if log.head.size else self.empty_note()
        return note, Promise(log.head.size, () if accepted is None else (accepted,), kept)

    async def listen_to(self, ballot: Ballot) -> None:
        """Listen to no older ballot any more; remembered when this returns.

        Raises:
            Outdated: a later one was promised.
            Busy: this operator takes no part yet.
            StorageError: the disk failed.
        """
        self.coming.check()
        if self.store.memory.listening_to(ballot) != self.store.memory:
            await self.disk.do(self._listen_to, ballot)

    def _listen_to(self, ballot: Ballot) -> None:
        self.store.remember(self.store.memory.listening_to(ballot))

    # Batches.

    def offer(self, ballot: Ballot, batch: EntryBatch) -> Offer:
        """Return how a batch is offered to others, who may borrow its entries from now on."""
        data = entries_bytes(batch.entries)
        digest = sha256(data)
        self._batches = {**dict(list(self._batches.items())[-2:]), digest: data}
        return Offer(ballot, batch.first, batch.size, batch.root, LentBytes(digest, len(data)))

    def lent(self, digest: bytes) -> bytes | None:
        """Return what is lent under a digest; None: nothing is."""
        if digest in self._batches:
            return self._batches[digest]
        return self.contributions.lent(digest)

    async def batch_of(self, key: PublicKey, offer: Offer) -> EntryBatch:
        """Return the batch that the operator ``key`` offers, or has accepted; whether it is any good is not checked.

        Raises:
            Unreachable, Refused: it does not give it.
            EncodingError: it gives something else.
        """
        for one in self.store.memory.accepted:
            if (one.batch.first, one.batch.size, one.batch.root) == (offer.first, offer.size, offer.root):
                return one.batch
        if offer.entries.num_bytes > MAX_BATCH_BYTES:
            raise EncodingError("a batch of more entries than a round has")
        data = await borrow(self.endpoint, key, offer.entries.digest, offer.entries.num_bytes)
        if sha256(data) != offer.entries.digest:
            raise EncodingError("other entries than were offered")
        batch = EntryBatch(offer.first, entries_from(data), offer.root)
        if batch.size != offer.size:
            raise EncodingError("more entries than were offered, or fewer")
        return batch

    async def accept(self, ballot: Ballot, batch: EntryBatch, source: PublicKey | None) -> Vote:
        """Accept a batch that is good, and return the vote; its leader ``source`` has the bodies that lack. None: it is this one's own.

        Raises:
            Outdated, NotNext: it may not be accepted now.
            RemoteFault: it is no good.
            Busy: this operator takes no part yet.
            StorageError: the disk failed.
        """
        self.coming.check()
        if batch.size > self.log.head.size:
            self.store.memory.accepting(ballot, batch, self.log.head.size)
            if source is not None:
                await self.settled()
                await self.replays.check(batch, self.contributions, source)
                self._context.settling.check(batch.entries)
        await self.disk.do(self._accept, ballot, batch)
        return accept(self.run, ballot, batch.size, batch.root, self.identity)

    def _accept(self, ballot: Ballot, batch: EntryBatch) -> None:
        memory = self.store.memory
        # What counts already is voted for again: a leader may have to propose it that does not have it yet.
        is_in_log = self._is_in_log(batch.size, batch.root)
        self.store.remember(memory.listening_to(ballot) if is_in_log else memory.accepting(ballot, batch, self.log.head.size))

    def _is_in_log(self, size: int, root: bytes) -> bool:
        return size <= self.log.head.size and self.log.head_of(size).root == root

    async def sign(self, certificate: Certificate) -> str:
        """Return the head that a certificate is about, signed as a note: of the batch that was accepted last, or of what the log has.

        Raises:
            RemoteFault: it proves nothing, is about another batch, or another root was signed.
            Busy: this operator takes no part yet.
            StorageError: the disk failed.
        """
        self.coming.check()
        certificate.check(self.run, self.operators.keys, self.operators.quorum)
        await self.disk.do(self._remember_signing, certificate)
        return self._note(certificate.size, certificate.root)

    def _remember_signing(self, certificate: Certificate) -> None:
        if self._is_in_log(certificate.size, certificate.root):
            return
        accepted = self.store.memory.accepted_at(self.log.head.size)
        if accepted is None or (accepted.batch.size, accepted.batch.root) != (certificate.size, certificate.root):
            raise LedgerError("a batch was decided that this operator has not accepted: it will get the entries when they count")
        # Remembered from this line on: no other root of that size is signed here, ever.
        self.store.remember(self.store.memory.signing(certificate, self.log.head.size))

    def empty_note(self) -> str:
        """Return the head of the empty log, signed by this operator."""
        head = self.log.head_of(0)
        return self._note(head.size, head.root)

    def _note(self, size: int, root: bytes) -> str:
        return sign_tree_head(TreeHead(self.operators.name, size, root), self.operators.name, self.identity)

    def quorum_note(self, notes: Sequence[str]) -> str:
        """Return the note that several operators' notes of one head come to together.

        Raises:
            SignatureError: too few signed.
        """
        text, _ = split_note(notes[0])
        lines = dict.fromkeys(line for note in notes for line in note[len(text) + 1 :].splitlines(keepends=True))
        return self.operators.quorum_note(f"{text}\n{''.join(lines)}")

    # The log.

    async def go_on_to(self, note: str, source: PublicKey, others: Sequence[PublicKey] = ()) -> None:
        """Take the log up to a head that counts, whose entries the operator ``source`` has; ``others`` are there too, and may have states.

        Raises:
            RemoteFault: the note does not count, or ``source`` has other entries.
            Unreachable: it does not give them.
            StorageError: the disk failed.
        """
        head = self.operators.open(note)
        async with self._catching_up:
            await self.settled()
            first = self.log.head.size
            if head.size <= first:
                if not head.size:
                    await self.disk.do(self.log.count, note)
                return
            accepted = self.store.memory.accepted_at(first)
            if accepted is not None and (accepted.batch.size, accepted.batch.root) == (head.size, head.root):
                entries: Sequence[bytes] = accepted.batch.entries
            else:
                entries = await self._entries(first, head.size, source)
            if self.log.root_with(entries) != head.root:
                raise EncodingError("other entries than those that were signed for")
            if not self.replays.leads_to(head.root):
                await self._get_states(entries, [source, *others])
            await self.apply(first, entries, note)

    async def _entries(self, start: int, end: int, source: PublicKey) -> list[bytes]:
        entries = list[bytes]()
        while start + len(entries) < end:
            ask = pack(AskLogEntries(start + len(entries), min(end, start + len(entries) + MAX_PAGE_ENTRIES)))
            answer = await self.endpoint.call(source, ENTRIES, ask, timeout_s=timeouts.BODY_S, large_answer=True)
            page = unpack(EntriesPage, answer, max_bytes=len(answer)).entries
            if not page:
                raise EncodingError("fewer entries than were signed for")
            entries += page
        return entries[: end - start]

    async def _get_states(self, entries: Sequence[bytes], sources: Sequence[PublicKey]) -> None:
        """Have the state after these entries in the folder, before the log is."""
        base = self.log.ledger
        ledger = await self.replays.compute.do(folded, base, entries)
        if ledger.round > base.round:
            try:  # who wrote before may stand still, and some pieces would wait for it if all were asked
                await take_states(self.endpoint, self._context.directory, ledger, sources)
            except UserError as error:
                logger.info("a state is looked for everywhere reason=%s", error)
                await take_states(self.endpoint, self._context.directory, ledger, self.others)

    async def apply(self, first: int, entries: Sequence[bytes], note: str, *, is_own: bool = False) -> None:
        """Commit entries that count, and take the run's state to where they lead; once begun it is not left half done.

        Args:
            first: how long the log is before them; where it has gone on since, by another way, nothing is done.
            entries: after those.
            note: of the head after them.
            is_own: they are of the leader here, which then does the rest of a commit itself.

        Raises:
            RemoteFault: they may not follow the log.
            StorageError: the disk failed.
        """
        applying = asyncio.create_task(self._apply(first, list(entries), note, is_own=is_own))
        self._applying.add(applying)
        applying.add_done_callback(self._applied)
        await asyncio.shield(applying)

    def _applied(self, task: "asyncio.Task[None]") -> None:
        self._applying.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # whoever began it may not wait any more
            logger.info("entries were not applied reason=%s", error)

    async def settled(self) -> None:
        """Return once the state is that of the log."""
        while self._applying:
            await asyncio.wait(self._applying)

    async def _apply(self, first: int, entries: list[bytes], note: str, *, is_own: bool) -> None:
        async with self._going_on:
            if self.log.head.size == first:
                await self._go_on(entries, note, is_own=is_own)

    async def _go_on(self, entries: list[bytes], note: str, *, is_own: bool) -> None:
        before, was_settled = self.log.ledger.round, self.log.ledger.settled
        try:
            await self.disk.do(self.log.commit, entries, note)
            ledger = self.log.ledger
            replayed = self.replays.take()
            if ledger.round > before:
                if replayed is not None and replayed.after.blob.root == ledger.state:
                    await self._adopt(replayed, is_own=is_own)
                else:
                    await self._load_state(ledger)
            await self.disk.do(self.contributions.forget, ledger.round)
        except StorageError as error:
            self._context.broken.stop(error)
            raise
        if not is_own and (self.log.ledger.round > before or self.log.ledger.settled != was_settled):
            self._commits.put_nowait(None)

    async def _adopt(self, replayed: ReplayedBatch, *, is_own: bool) -> None:
        after = replayed.after
        self._context.state_keeper.adopt(after.state)
        for blob in replayed.bodies:
            self._context.blob_store.put(blob, "body")
        self._context.blob_store.put(after.mean, "mean")
        self._context.blob_store.put(after.blob, "state")
        if after.state.round == self._context.state_keeper.plan.teacher_round:
            self._context.blob_store.pin(after.blob)
        if is_own:
            return
        await self.disk.do(self._context.state_keeper.save, after.state, self.log.head, self.log.tree_head)
        await self.disk.do(self._context.bodies.prune, after.state.round)

    async def _load_state(self, ledger: Ledger) -> None:
        """Take up a state that was got from others, or that a round led to whose arithmetic was not done here."""
        state = await self.replays.compute.do(self._context.state_keeper.snapshots.load, ledger.round, ledger.state)
        self._context.state_keeper.adopt(state)
        await self.replays.compute.do(put_state, self._context.blob_store, self.log, self._context.state_keeper)
        await self.disk.do(self._context.state_keeper.snapshots.certify, ledger.round, self.log.head, self.log.tree_head)
