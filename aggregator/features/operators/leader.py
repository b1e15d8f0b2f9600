"""What the operator does whose turn it is to write: takes over, has contributions kept and batches decided, and tells the others.

One object a turn. Nothing here decides whose turn it is (``operators.leader_lease``); a leader that is not listened to any
more ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from manta_swarm.aggregator.commit.feed import OpenRounds
from manta_swarm.aggregator.features.operators.lending import MAX_SMALL_BYTES
from manta_swarm.aggregator.features.operators.own_operator import OwnOperator
from manta_swarm.aggregator.features.operators.service import (
    ACCEPT,
    BEAT,
    KEEP,
    MAX_PROMISED_BYTES,
    PROMISE,
    SIGN,
    AskKeep,
    AskPromise,
    AskSign,
    LeaderHeartbeat,
    Promised,
)
from manta_swarm.aggregator.features.operators.verdicts import VERDICTS
from manta_swarm.aggregator.intake import bodies
from manta_swarm.aggregator.states.state_keeper import Next
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob
from manta_swarm.network.rpc import Busy, Refused
from manta_swarm.protocol.ballots import (
    AcceptedBatch,
    Ballot,
    Certificate,
    EntryBatch,
    KeptUnderBallot,
    Outdated,
    Promise,
    Takeover,
    Vote,
    Voting,
)
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, StorageError, Unreachable
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verdicts import Verdict
from manta_swarm.runtime.clock import SYSTEM_CLOCK
from manta_swarm.runtime.tasks import wait_within

BEAT_S = 1.0
_AGAIN_S = (0.2, 2.0)  # first and longest pause until an operator that did not answer is asked again

logger = logging.getLogger("manta.operators")


class Deposed(Busy):
    """This operator's turn is over; ``promised`` is the term of the leader that the others listen to, or of this turn."""

    def __init__(self, promised: int) -> None:
        super().__init__("this operator does not write any more, and whether the log has it is not known here: try again")
        self.promised = promised


class Leader:
    """Leads the run's operators for one term."""

    def __init__(self, own_operator: OwnOperator, term: int) -> None:
        """Prepare; ``take_over`` begins."""
        self.has_others = True
        self._own_operator = own_operator
        self.ballot = Ballot(term, own_operator.key)
        self._since = 0
        self._one_by_one = asyncio.Lock()
        self._feed = asyncio.Event()
        self._told = 0  # beats
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_promises = asyncio.Event()

    def close(self) -> None:
        """See ``aggregator.commit.deciding.Decider``; the threads are the own operator's."""

    def end(self) -> None:
        """Promise nothing any more: whoever waits for an inclusion promise, or for an entry, is told to try again."""
        if not self._ended.done():
            self._ended.set_result(None)

    # Taking over.

    async def take_over(self) -> list[tuple[KeptUnderBallot, bodies.StoredContribution]]:
        """Have all that was decided, or has an inclusion promise; return the contributions for the rounds to come, kept by a quorum.

        Of some that exclude each other the first one counts. ``beat`` has to run beside it.

        Raises:
            Deposed: a later leader is listened to.
            Unreachable, RemoteFault, UserError: an operator that has more than this one does not give it any more.
            StorageError: the disk failed.
        """
        own_operator = self._own_operator
        try:
            note, own = await own_operator.promise(self.ballot)
        except Outdated as error:
            raise Deposed(error.promised) from error
        takeover = Takeover(self.ballot, len(own_operator.operators.keys), own_operator.operators.quorum)
        notes, promises = {own_operator.key: note}, dict[PublicKey, Promised]()
        takeover.add(own_operator.key, own)

        async def ask(key: PublicKey) -> None:
            answer = await own_operator.endpoint.call(
                key, PROMISE, pack(AskPromise(self.ballot)), timeout_s=timeouts.CALL_S, large_answer=True
            )
            said = unpack(Promised, answer, max_bytes=MAX_PROMISED_BYTES)
            if said.later:
                raise Outdated(said.later)
            size = own_operator.operators.signers(said.note).head.size
            if size:
                own_operator.operators.open(said.note)
            accepted = tuple([AcceptedBatch(offer.ballot, await own_operator.batch_of(key, offer)) for offer in said.accepted])
            takeover.add(key, Promise(size, accepted, said.kept))
            notes[key], promises[key] = said.note, said

        await self._ask_all(ask, lambda: takeover.is_ready)
        source, longest = takeover.longest()
        if longest.size > own_operator.log.head.size:
            others = [key for key in promises if key != source]
            await own_operator.go_on_to(notes[PublicKey(source)], PublicKey(source), others)
        elif not longest.size:
            empty = [note for note in notes.values() if own_operator.operators.signers(note).head.size == 0]
            await own_operator.disk.do(own_operator.log.count, own_operator.quorum_note(empty))
        self._has_promises.set()
        pending = takeover.to_propose()
        if pending is not None and pending.first == own_operator.log.head.size:
            logger.info("proposed again entries=%d", len(pending.entries))
            holders = [key for key in own_operator.others if key in promises and promises[key].accepted]
            await self._decide(pending, holders[0] if holders else own_operator.key)
        await own_operator.settled()
        self._since = own_operator.log.head.size
        return await self._taken_up(takeover)

    async def _taken_up(self, takeover: Takeover) -> list[tuple[KeptUnderBallot, bodies.StoredContribution]]:
        """Get the contributions that lack here, and have all of them kept under this ballot."""
        own_operator = self._own_operator
        found = []
        for kept, holders in takeover.kept():
            if kept.round <= own_operator.log.ledger.round:
                continue
            stored = await own_operator.contributions.found(kept, [PublicKey(key) for key in holders if key != own_operator.key])
            if stored is not None:
                found.append((KeptUnderBallot(self.ballot, self._since, kept.round, kept.contribution), stored))
            elif takeover.may_have_inclusion_promise(holders):
                raise Unreachable("who keeps a contribution that may have an inclusion promise does not give it")
        if found:
            await self._keep(found)
        return found

    # Contributions.

    async def store(self, contributions: Sequence[tuple[int, bodies.StoredContribution]]) -> None:
        """Return once contributions, each with the round that it counts in, are on a quorum's disks.

        Raises:
            NotTaken: the turn ended before that.
            StorageError: the disk failed.
        """
        kept = [
            (KeptUnderBallot(self.ballot, self._since, round_, bytes(stored.header.contribution.digest)), stored)
            for round_, stored in contributions
        ]
        try:
            await self._while_it_lasts(self._keep(kept))
        except (Deposed, Outdated) as error:
            raise NotTaken("another operator writes now: hand it in again") from error

    async def _keep(self, contributions: Sequence[tuple[KeptUnderBallot, bodies.StoredContribution]]) -> None:
        own_operator = self._own_operator
        await own_operator.contributions.keep(contributions)
        done = {own_operator.key}
        request = pack(AskKeep(tuple(kept for kept, _ in contributions)))

        async def ask(key: PublicKey) -> None:
            await own_operator.endpoint.call(key, KEEP, request, timeout_s=timeouts.BODY_S)
            done.add(key)

        await self._ask_all(ask, lambda: len(done) >= own_operator.operators.quorum)

    async def keep_verdicts(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        """Return once verdicts, which are on this operator's disk and may follow its log, are on a quorum's.

        Raises:
            Deposed: the turn ended before that.
            StorageError: the disk failed.
        """
        await self._while_it_lasts(self._keep_verdicts(verdicts))

    async def _keep_verdicts(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        own_operator = self._own_operator
        done = {own_operator.key}
        request = own_operator.verdicts.request(verdicts, self.ballot)

        async def ask(key: PublicKey) -> None:
            await own_operator.endpoint.call(key, VERDICTS, request, timeout_s=timeouts.CALL_S)
            done.add(key)

        await self._ask_all(ask, lambda: len(done) >= own_operator.operators.quorum)

    async def waiting_verdicts(self) -> list[Signed[Verdict]]:
        """Return the verdicts that wait at a quorum, this operator's not among them: nobody acknowledges one to an older leader any more.

        Raises:
            Deposed: the turn ended before that.
            StorageError: the disk failed.
        """
        found = list[Signed[Verdict]]()
        await self._while_it_lasts(self._gather_verdicts(found))
        return found

    async def _gather_verdicts(self, found: list[Signed[Verdict]]) -> None:
        own_operator = self._own_operator
        done = {own_operator.key}
        await own_operator.listen_to(self.ballot)

        async def ask(key: PublicKey) -> None:
            found.extend(await own_operator.verdicts.all_of(key, self.ballot))
            done.add(key)

        await self._ask_all(ask, lambda: len(done) >= own_operator.operators.quorum)

    # Batches.

    async def write(self, entries: Sequence[bytes], after: Next | None = None, found: Sequence[Blob] = ()) -> None:
        """Have entries decided, signed and committed; they count, and are on a quorum's disks, when this returns.

        Args:
            entries: of a round, or one that stands between rounds.
            after: what the round's table leads to.
            found: the bodies of that table.

        Raises:
            Deposed: the turn ended before that; whether they will be in the log is not known here.
            RemoteFault: they may not follow the log.
            StorageError: the disk failed.
        """
        await self._while_it_lasts(self._commit(entries, after, found))

    async def _commit(self, entries: Sequence[bytes], after: Next | None, found: Sequence[Blob]) -> None:
        log = self._own_operator.log
        async with self._one_by_one:
            batch = EntryBatch(log.head.size, tuple(entries), log.root_with(entries))
            if after is not None:
                self._own_operator.replays.know(batch, after, found)
            await self._decide(batch, None)

    async def _while_it_lasts(self, work: Coroutine[Any, Any, None]) -> None:
        """Return once ``work`` is done; the turn's end ends it.

        Raises:
            Deposed: the turn ended before that, or as ``work``.
        """
        working = asyncio.create_task(work)
        try:
            await asyncio.wait((working, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Deposed(self.ballot.term)
            working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _decide(self, batch: EntryBatch, source: PublicKey | None) -> None:
        """Have a batch decided; ``source`` has the bodies of one that is proposed again. None: it is this leader's own."""
        own_operator = self._own_operator
        voting = Voting(own_operator.run, self.ballot, batch, own_operator.operators.keys, own_operator.operators.quorum)
        try:
            voting.add(await own_operator.accept(self.ballot, batch, source))
        except Outdated as error:
            raise Deposed(error.promised) from error
        offer = pack(own_operator.offer(self.ballot, batch))

        async def ask_vote(key: PublicKey) -> None:
            answer = await own_operator.endpoint.call(key, ACCEPT, offer, timeout_s=timeouts.BODY_S)
            voting.add(unpack(Vote, answer, max_bytes=MAX_SMALL_BYTES))

        await self._ask_all(ask_vote, lambda: voting.certificate is not None)
        certificate = voting.certificate
        assert certificate is not None

        async def have_accept(key: PublicKey) -> None:
            # Who voted may be gone before it signs: another one that is there has to accept the batch, since it signs nothing else.
            if key not in voting.voters:
                await ask_vote(key)

        note = await self._signed(certificate, have_accept)
        await own_operator.apply(batch.first, batch.entries, note, is_own=source is None)
        if own_operator.log.head.size != batch.size:  # which a later leader's beats brought about meanwhile
            raise Deposed(own_operator.store.memory.promised.term)
        self.tell()

    async def _signed(self, certificate: Certificate, have_accept: Callable[[PublicKey], Awaitable[None]]) -> str:
        """Return the note of a decided head, with a quorum's signatures; ``have_accept`` lets one accept the batch that has not."""
        own_operator = self._own_operator
        notes = {own_operator.key: await own_operator.sign(certificate)}
        request = pack(AskSign(certificate))

        async def ask(key: PublicKey) -> None:
            await have_accept(key)
            note = (await own_operator.endpoint.call(key, SIGN, request, timeout_s=timeouts.CALL_S)).decode()
            found = own_operator.operators.signers(note)
            if (found.head.size, found.head.root, found.keys) != (certificate.size, certificate.root, frozenset({key})):
                raise EncodingError("the signature of another head, or by others")
            notes[key] = note

        await self._ask_all(ask, lambda: len(notes) >= own_operator.operators.quorum)
        return own_operator.quorum_note(list(notes.values()))

    # The others.

    def tell(self) -> None:
        """Tell the others at once where the run stands."""
        self._told += 1
        self._feed.set()
        self._feed = asyncio.Event()

    async def beat(self, rounds: OpenRounds) -> None:
        """Tell the others, again and again, that there is a leader and where the log and ``rounds`` stand, until this is cancelled.

        It goes on beside the takeover, once that has the promises that it needs: who is behind accepts and keeps nothing before it has
        what the log has.
        """
        own_operator = self._own_operator
        await self._has_promises.wait()

        async def beat_to(key: PublicKey) -> None:
            while True:
                told, feed = self._told, self._feed
                try:
                    request = pack(LeaderHeartbeat(self.ballot, rounds.left_ms(round(SYSTEM_CLOCK.now_ms())), own_operator.log.tree_head))
                    await own_operator.endpoint.call(key, BEAT, request, timeout_s=timeouts.PUSH_S)
                except MantaError as error:
                    logger.info("an operator does not hear reason=%s", error)
                if told == self._told:
                    await wait_within(feed, BEAT_S)

        async with asyncio.TaskGroup() as tasks:
            for key in own_operator.others:
                tasks.create_task(beat_to(key))

    async def _ask_all(self, ask: Callable[[PublicKey], Awaitable[None]], is_enough: Callable[[], bool]) -> None:
        """Ask the other operators, each until it answers, until it is enough.

        Raises:
            Deposed: so many listen to a later leader that it can't be enough.
        """
        own_operator = self._own_operator
        later: dict[PublicKey, int] = {}
        changed = asyncio.Event()

        async def ask_one(key: PublicKey) -> None:
            pause_s, longest_s = _AGAIN_S
            while True:
                try:
                    await ask(key)
                    return
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
                finally:
                    changed.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)

        tasks = [asyncio.create_task(ask_one(key)) for key in own_operator.others]
        try:
            while not is_enough():
                if len(later) > len(own_operator.operators.keys) - own_operator.operators.quorum:
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
    """Return the term of the later leader that an operator refused for; None: it was for something else."""
    words = str(Outdated(0)).split("0")
    if len(words) == 2 and reason.startswith(words[0]) and reason.endswith(words[1]):
        number = reason[len(words[0]) : len(reason) - len(words[1])]
        return int(number) if number.isdecimal() and len(number) < 20 else None
    return None
