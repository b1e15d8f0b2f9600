"""Answers the other operators of the run, and nobody else: by promises, votes, signatures, and what is kept, lent or in the log.

What they say is bounded and strictly parsed all the same.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from manta_swarm.aggregator.features.operators.forwarding import MAX_FORWARDED_BYTES
from manta_swarm.aggregator.features.operators.joining import POSITION
from manta_swarm.aggregator.features.operators.leader_lease import LeaderLease
from manta_swarm.aggregator.features.operators.lending import (
    ENTRIES,
    LENT,
    MAX_PAGE_ENTRIES,
    MAX_SMALL_BYTES,
    PART_BYTES,
    AskLogEntries,
    AskPart,
    EntriesPage,
    part_of,
)
from manta_swarm.aggregator.features.operators.own_operator import Offer, OwnOperator
from manta_swarm.aggregator.features.operators.verdicts import VERDICTS, WAITING, AskVerdicts, AskWaiting
from manta_swarm.network.rpc import Endpoint, Handler
from manta_swarm.protocol.ballots import MAX_KEPT, Ballot, Certificate, KeptUnderBallot, Outdated
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, RemoteFault, StorageError, Unreachable
from manta_swarm.protocol.notes import MAX_NOTE_BYTES
from manta_swarm.protocol.operators import LATER
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

PROMISE, ACCEPT, SIGN, KEEP, BEAT = "operators-promise", "operators-accept", "operators-sign", "operators-keep", "operators-beat"
MAX_NOTED_BYTES = 8192
MAX_PROMISED_BYTES = 256 * MAX_KEPT

SILENT_S = 5.0  # who was not heard for so long is not taken for the leader any more

logger = logging.getLogger("manta.operators")


@dataclass(frozen=True, slots=True)
class AskPromise:
    """Asks to listen to no older ballot any more."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Promised:
    """The answer to ``AskPromise``; where a later ballot was promised it says that one's term, and nothing else counts."""

    later: int
    note: str  # of its log's head, which counts where the log is not empty
    accepted: tuple[Offer, ...]  # at most one
    kept: tuple[KeptUnderBallot, ...]

    def __post_init__(self) -> None:
        if self.later < 0 or len(self.note) > MAX_NOTE_BYTES or len(self.accepted) > 1 or len(self.kept) > MAX_KEPT:
            raise ValueError("a promise about more than one batch, or with more contributions than an operator keeps")


@dataclass(frozen=True, slots=True)
class AskKeep:
    """Asks to keep contributions, each lent under its digest; the answer, empty, comes once they are on the disk."""

    kept: tuple[KeptUnderBallot, ...]  # under one ballot

    def __post_init__(self) -> None:
        if not 0 < len(self.kept) <= MAX_KEPT or len({each.ballot for each in self.kept}) > 1:
            raise ValueError("nothing to keep, or too much, or under several ballots")


@dataclass(frozen=True, slots=True)
class AskSign:
    """Shows that a batch is decided, and asks for the signature of the head after it; the answer is a note."""

    certificate: Certificate


@dataclass(frozen=True, slots=True)
class LeaderHeartbeat:
    """The leader's word that it writes, and where the run stands."""

    ballot: Ballot
    left_ms: int  # how long headers for the open round still have
    note: str  # the newest head, which counts

    def __post_init__(self) -> None:
        if not 0 <= self.left_ms <= 2**40 or len(self.note) > MAX_NOTE_BYTES:
            raise ValueError("a beat of no time, or of too long a note")


class NoOperator(RemoteFault):
    """A caller that is no operator of the run."""


@dataclass(frozen=True, slots=True)
class LeaderNews:
    """What an operator last heard from the leader."""

    ballot: Ballot
    at_s: float
    left_ms: int

    @property
    def key(self) -> PublicKey:
        """The leader's key."""
        return PublicKey(self.ballot.leader)


class OperatorsService:
    """Answers the other operators of a run."""

    def __init__(
        self,
        endpoint: Endpoint,
        own_operator: OwnOperator,
        leader_lease: LeaderLease,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            endpoint: where the others call.
            own_operator: this operator's.
            leader_lease: says whose turn it is to write.
            clock: by which they are heard.
        """
        self._endpoint = endpoint
        self._own_operator = own_operator
        self._leader_lease = leader_lease
        self._clock = clock
        self._heard: LeaderNews | None = None
        self._was_heard = asyncio.Event()  # since ``next_heard`` returned
        self._catching_up: asyncio.Task[None] | None = None
        self._source: PublicKey | None = None  # whom that asks

    @property
    def leader(self) -> LeaderNews | None:
        """The leader, if it was heard lately."""
        heard = self._heard
        return None if heard is None or self._clock.now_s() - heard.at_s > SILENT_S else heard

    @property
    def leader_key(self) -> PublicKey | None:
        """The leader's key, if it was heard lately."""
        return None if self.leader is None else self.leader.key

    async def next_heard(self) -> LeaderNews:
        """Return the leader once it is heard again."""
        await self._was_heard.wait()
        self._was_heard.clear()
        assert self._heard is not None
        return self._heard

    def left_ms(self) -> int:
        """Return how long headers for the open round still have, as the leader said last."""
        heard = self.leader
        return 0 if heard is None else max(0, heard.left_ms - int(1000 * (self._clock.now_s() - heard.at_s)))

    async def start(self) -> None:
        """Answer from now on."""
        handlers: dict[str, Handler] = {
            PROMISE: self._on_promise,
            ACCEPT: self._on_accept,
            SIGN: self._on_sign,
            KEEP: self._on_keep,
            VERDICTS: self._on_verdicts,
            WAITING: self._on_waiting,
            BEAT: self._on_beat,
            LENT: self._on_lent,
            ENTRIES: self._on_entries,
            POSITION: self._on_position,
        }
        for method, handler in handlers.items():
            await self._endpoint.serve(method, self.among_operators(handler))

    def among_operators(self, handler: Handler) -> Handler:
        """Return a handler that answers the run's operators only."""

        async def held(caller: PublicKey, request: bytes) -> bytes:
            if caller not in self._own_operator.others:
                raise NoOperator("this is for the run's operators")
            return await handler(caller, request)

        return held

    async def follow_no_more(self) -> None:
        """End getting what the leader that was heard last has more: it may never answer."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)

    async def _on_promise(self, caller: PublicKey, request: bytes) -> bytes:
        ballot = unpack(AskPromise, request, max_bytes=MAX_SMALL_BYTES).ballot
        _check_own(ballot, caller)
        if not await self._leader_lease.may_be_of(caller):
            raise RemoteFault("it is another operator's turn to write")
        own_operator = self._own_operator
        try:
            note, promise = await own_operator.promise(ballot)
        except Outdated as error:
            return pack(Promised(error.promised, "", (), ()))
        offers = tuple([own_operator.offer(accepted.ballot, accepted.batch) for accepted in promise.accepted])
        answer = pack(Promised(0, note, offers, promise.kept))
        if len(answer) > MAX_PROMISED_BYTES:
            raise StorageError("more is kept than one answer tells")
        return answer

    async def _on_accept(self, caller: PublicKey, request: bytes) -> bytes:
        offer = unpack(Offer, request, max_bytes=MAX_SMALL_BYTES)
        _check_own(offer.ballot, caller)
        return pack(await self._own_operator.accept(offer.ballot, await self._own_operator.batch_of(caller, offer), caller))

    async def _on_sign(self, _caller: PublicKey, request: bytes) -> bytes:
        return (await self._own_operator.sign(unpack(AskSign, request, max_bytes=MAX_SMALL_BYTES).certificate)).encode()

    async def _on_keep(self, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskKeep, request, max_bytes=MAX_FORWARDED_BYTES)
        own_operator = self._own_operator
        own_operator.coming.check()
        _check_own(ask.kept[0].ballot, caller)
        own_operator.store.memory.listening_to(ask.kept[0].ballot)
        kept = []
        for one in ask.kept:
            if not own_operator.log.ledger.round - 1 <= one.round <= own_operator.log.ledger.round + LATER:
                raise EncodingError("a contribution for a round that is not open")
            held = own_operator.contributions.held.get(one.contribution)
            kept.append((one, await own_operator.contributions.borrowed(caller, one.contribution) if held is None else held[1]))
        await own_operator.contributions.keep(kept)
        return b""

    async def _on_verdicts(self, caller: PublicKey, request: bytes) -> bytes:
        ask, heard = unpack(AskVerdicts, request, max_bytes=MAX_FORWARDED_BYTES), self.leader
        for ballot in ask.ballot:
            _check_own(ballot, caller)
            self._own_operator.store.memory.listening_to(ballot)
        await self._own_operator.verdicts.keep(ask, heard.ballot if heard is not None and heard.key == caller else None)
        return b""

    async def _on_waiting(self, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskWaiting, request, max_bytes=MAX_SMALL_BYTES)
        _check_own(ask.ballot, caller)
        await self._own_operator.listen_to(ask.ballot)
        return self._own_operator.verdicts.page(ask.after)

    async def _on_beat(self, caller: PublicKey, request: bytes) -> bytes:
        beat = unpack(LeaderHeartbeat, request, max_bytes=MAX_NOTED_BYTES)
        _check_own(beat.ballot, caller)
        self._own_operator.store.memory.listening_to(beat.ballot)
        self._heard = LeaderNews(beat.ballot, self._clock.now_s(), beat.left_ms)
        self._was_heard.set()
        head = self._own_operator.operators.open(beat.note)
        is_new = head.size > self._own_operator.log.head.size or (self._own_operator.log.tree_head != beat.note and not head.size)
        if is_new and (self._catching_up is None or self._catching_up.done() or self._source != caller):
            if self._catching_up is not None:  # who wrote before may stand still
                self._catching_up.cancel()
            self._catching_up, self._source = asyncio.create_task(self._catch_up(beat.note, caller)), caller
        return b""

    async def _catch_up(self, note: str, source: PublicKey) -> None:
        with contextlib.suppress(StorageError):  # which stops the program: this operator tells
            try:
                await self._own_operator.go_on_to(note, source)
            except StorageError:
                raise
            except MantaError as error:
                logger.warning("the log did not go on reason=%s", error)

    async def _on_lent(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskPart, request, max_bytes=MAX_SMALL_BYTES)
        data = self._own_operator.lent(ask.digest)
        if data is None:
            raise Unreachable("nothing is lent under this digest")
        return part_of(data, ask.offset)

    async def _on_position(self, _caller: PublicKey, _request: bytes) -> bytes:
        return pack(self._own_operator.coming.told())

    async def _on_entries(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskLogEntries, request, max_bytes=MAX_SMALL_BYTES)
        limit = min(ask.end - ask.start, MAX_PAGE_ENTRIES)
        entries = await asyncio.to_thread(self._own_operator.log.entries, ask.start, limit, PART_BYTES)
        total, page = 0, list[bytes]()
        for entry in entries:
            total += len(entry) + 8
            if page and total > PART_BYTES:
                break
            page.append(entry)
        return pack(EntriesPage(tuple(page)))


def _check_own(ballot: Ballot, caller: PublicKey) -> None:
    if ballot.leader != caller:
        raise NoOperator("a ballot of another operator than the caller")
