"""What the operator does whose turn it is to write: takes over, has contributions kept and batches decided, and tells the others.

One object a turn. Nothing here decides whose turn it is (``aggregator.operators.lease``); a writer that is not listened to any more ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aggregator.operators.messages import (
    ACCEPT,
    BEAT,
    KEEP,
    MAX_PROMISED_BYTES,
    MAX_SMALL_BYTES,
    PROMISE,
    SIGN,
    AskKeep,
    AskPromise,
    AskSign,
    Beat,
    Promised,
)
from aggregator.operators.seat import Seat
from aggregator.rounds import bodies
from aggregator.rounds.follower import Next
from protocol.ballots import Accepted, Ballot, Batch, Certificate, Kept, Outdated, Promise, Takeover, Vote, Voting
from protocol.closing import NotTaken
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, StorageError
from protocol.signing import PublicKey
from swarm import waits
from swarm.blobs import Blob
from swarm.rpc import Busy, Refused
from swarm.tasks import within

BEAT_S = 1.0
_AGAIN_S = 0.3  # until an operator that did not answer is asked again
Answer = TypeVar("Answer")

logger = logging.getLogger("manta.operators")


class Deposed(Busy):
    """A later writer was promised to be listened to; ``promised`` is its term."""

    def __init__(self, promised: int) -> None:
        super().__init__(f"operators listen to a writer of term {promised}")
        self.promised = promised


class Writer:
    """One turn's."""

    def __init__(self, seat: Seat, term: int) -> None:
        """Prepare; ``take_over`` begins."""
        self._seat = seat
        self.ballot = Ballot(term, seat.key)
        self._since = 0
        self._one_by_one = asyncio.Lock()
        self._news = asyncio.Event()
        self._told = 0  # beats
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.heard: set[PublicKey] = set()  # operators that answered the last beat

    def end(self) -> None:
        """Promise nothing any more: whoever waits for a ticket is told to hand in again."""
        if not self._ended.done():
            self._ended.set_result(None)

    # Taking over.

    async def take_over(self) -> list[tuple[Kept, bodies.Kept]]:
        """Have all that was decided, or has a ticket; return the contributions for the rounds to come, kept by a quorum.

        Of some that exclude each other the first one counts.

        Raises:
            Deposed: a later writer is listened to.
            StorageError: the disk failed.
        """
        seat = self._seat
        try:
            await seat.listen(self.ballot)
        except Outdated as error:
            raise Deposed(error.promised) from error
        takeover, notes, promises = Takeover(self.ballot, seat.operators.quorum), dict[PublicKey, str](), dict[PublicKey, Promised]()
        own = seat.store.memory.accepted_at(seat.log.head.size)
        own_kept = seat.kept_after(seat.log.ledger.round)
        takeover.add(seat.key, Promise(seat.log.head.size, () if own is None else (own,), own_kept))
        notes[seat.key] = seat.log.tree_head if seat.log.head.size else seat.empty_note()

        async def ask(key: PublicKey) -> None:
            answer = await seat.endpoint.call(key, PROMISE, pack(AskPromise(self.ballot)), timeout_s=waits.CALL_S, large_answer=True)
            said = unpack(Promised, answer, max_bytes=MAX_PROMISED_BYTES)
            if said.later:
                raise Outdated(said.later)
            size = seat.operators.signers(said.note).head.size
            if size:
                seat.operators.open(said.note)
            accepted = tuple([Accepted(offer.ballot, await seat.batch_of(key, offer)) for offer in said.accepted])
            takeover.add(key, Promise(size, accepted, said.kept))
            notes[key], promises[key] = said.note, said

        await self._ask_all(ask, lambda: takeover.is_ready)
        source, longest = takeover.longest()
        if longest.size > seat.log.head.size:
            await seat.go_on_to(notes[PublicKey(source)], PublicKey(source))
        elif not longest.size:
            empty = [note for note in notes.values() if seat.operators.signers(note).head.size == 0]
            await seat.on_disk(seat.log.count, seat.counted(empty))
        pending = takeover.to_propose()
        if pending is not None and pending.first == seat.log.head.size:
            logger.info("proposed again entries=%d", len(pending.entries))
            holders = [key for key in seat.others if key in promises and promises[key].accepted]
            await self._decide(pending, holders[0] if holders else seat.key)
        await seat.settled()
        self._since = seat.log.head.size
        return await self._taken_up(takeover)

    async def _taken_up(self, takeover: Takeover) -> list[tuple[Kept, bodies.Kept]]:
        """Get the contributions that lack here, and have all of them kept under this ballot."""
        seat = self._seat
        found = []
        for kept, holders in takeover.kept():
            if kept.round <= seat.log.ledger.round:
                continue
            stored = await seat.contribution(kept, [PublicKey(key) for key in holders if key != seat.key])
            if stored is not None:
                found.append((Kept(self.ballot, self._since, kept.round, kept.contribution), stored))
        if found:
            await self._keep(found)
        return found

    # Contributions.

    async def keep(self, contributions: Sequence[tuple[int, bodies.Kept]]) -> None:
        """Return once contributions, each with the round that it counts in, are on a quorum's disks.

        Raises:
            NotTaken: the turn ended before that.
            StorageError: the disk failed.
        """
        kept = [
            (Kept(self.ballot, self._since, round_, bytes(stored.header.contribution.digest)), stored) for round_, stored in contributions
        ]
        keeping = asyncio.create_task(self._keep(kept))
        try:
            await asyncio.wait((keeping, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not keeping.done():
                raise NotTaken("another operator writes now: hand it in again")
            try:
                keeping.result()
            except (Deposed, Outdated) as error:
                raise NotTaken("another operator writes now: hand it in again") from error
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self, contributions: Sequence[tuple[Kept, bodies.Kept]]) -> None:
        seat = self._seat
        await seat.keep(contributions)
        done = {seat.key}
        request = pack(AskKeep(tuple(kept for kept, _ in contributions)))

        async def ask(key: PublicKey) -> None:
            await seat.endpoint.call(key, KEEP, request, timeout_s=waits.BODY_S)
            done.add(key)

        await self._ask_all(ask, lambda: len(done) >= seat.operators.quorum)

    # Batches.

    async def commit(self, entries: Sequence[bytes], after: Next | None = None, found: Sequence[Blob] = ()) -> None:
        """Have entries decided, signed and committed; they count, and are on a quorum's disks, when this returns.

        Args:
            entries: of a round, or one that stands between rounds.
            after: what the round's table leads to, and ``found`` its bodies.

        Raises:
            Deposed: a later writer is listened to; whether they will be in the log is not known here.
            RemoteFault: they may not follow the log.
            StorageError: the disk failed.
        """
        log = self._seat.log
        async with self._one_by_one:
            batch = Batch(log.head.size, tuple(entries), log.root_with(entries))
            if after is not None:
                self._seat.computed(batch, after, found)
            await self._decide(batch, None)

    async def _decide(self, batch: Batch, source: PublicKey | None) -> None:
        """Have a batch decided; ``source`` has the bodies of one that is proposed again. None: it is this writer's own."""
        seat = self._seat
        voting = Voting(seat.run, self.ballot, batch, seat.operators.keys, seat.operators.quorum)
        try:
            voting.add(await seat.accept(self.ballot, batch, source))
        except Outdated as error:
            raise Deposed(error.promised) from error
        offer = pack(seat.offer(self.ballot, batch))

        async def ask_vote(key: PublicKey) -> None:
            answer = await seat.endpoint.call(key, ACCEPT, offer, timeout_s=waits.BODY_S)
            voting.add(unpack(Vote, answer, max_bytes=MAX_SMALL_BYTES))

        await self._ask_all(ask_vote, lambda: voting.certificate is not None)
        certificate = voting.certificate
        assert certificate is not None
        await seat.apply(batch.entries, await self._signed(certificate), is_own=source is None)
        self.tell()

    async def _signed(self, certificate: Certificate) -> str:
        """Return the note of a decided head, with a quorum's signatures."""
        seat = self._seat
        notes = {seat.key: await seat.sign(certificate)}
        request = pack(AskSign(certificate))

        async def ask(key: PublicKey) -> None:
            note = (await seat.endpoint.call(key, SIGN, request, timeout_s=waits.CALL_S)).decode()
            found = seat.operators.signers(note)
            if (found.head.size, found.head.root, found.keys) != (certificate.size, certificate.root, frozenset({key})):
                raise EncodingError("the signature of another head, or by others")
            notes[key] = note

        await self._ask_all(ask, lambda: len(notes) >= seat.operators.quorum)
        return seat.counted(list(notes.values()))

    # The others.

    def tell(self) -> None:
        """Tell the others at once where the run stands."""
        self._told += 1
        self._news.set()
        self._news = asyncio.Event()

    async def beat(self, left_ms: Callable[[], int]) -> None:
        """Tell the others, again and again, that there is a writer and where the run stands, until this is cancelled."""
        seat = self._seat

        async def beat_to(key: PublicKey) -> None:
            while True:
                told, news = self._told, self._news
                try:
                    request = pack(Beat(self.ballot, left_ms(), seat.log.tree_head))
                    await seat.endpoint.call(key, BEAT, request, timeout_s=waits.PUSH_S)
                    self.heard.add(key)
                except MantaError:
                    self.heard.discard(key)
                if told == self._told:
                    await within(news, BEAT_S)

        async with asyncio.TaskGroup() as tasks:
            for key in seat.others:
                tasks.create_task(beat_to(key))

    async def _ask_all(self, ask: Callable[[PublicKey], Awaitable[None]], is_enough: Callable[[], bool]) -> None:
        """Ask the other operators, each until it answers, until it is enough.

        Raises:
            Deposed: so many listen to a later writer that it can't be enough.
        """
        seat = self._seat
        later: dict[PublicKey, int] = {}
        changed = asyncio.Event()

        async def ask_one(key: PublicKey) -> None:
            while True:
                try:
                    await ask(key)
                except Outdated as error:
                    later[key] = error.promised
                except Refused as error:
                    if (term := later_term(str(error))) is not None:
                        later[key] = term
                    else:
                        logger.info("an operator refuses reason=%s", error)
                except StorageError:
                    raise
                except (MantaError, UnicodeDecodeError) as error:
                    logger.info("an operator does not answer reason=%s", error)
                else:
                    changed.set()
                    return
                changed.set()
                await asyncio.sleep(_AGAIN_S)

        tasks = [asyncio.create_task(ask_one(key)) for key in seat.others]
        try:
            while not is_enough():
                if len(later) > len(seat.operators.keys) - seat.operators.quorum:
                    raise Deposed(max(later.values()))
                for task in tasks:
                    if task.done():
                        task.result()
                changed.clear()
                await changed.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def later_term(reason: str) -> int | None:
    """Return the term of the later writer that an operator refused for; None: it was for something else."""
    words = str(Outdated(0)).split("0")
    if len(words) == 2 and reason.startswith(words[0]) and reason.endswith(words[1]):
        number = reason[len(words[0]) : len(reason) - len(words[1])]
        return int(number) if number.isdecimal() and len(number) < 20 else None
    return None
