"""Subscribes to commits: waits for them at the log by long polling, and forwards each one that is news to a few neighbours.

A peer learns of a commit from the log's answer or from a neighbour that knows it already, and tells whoever asks. What it hears comes out
as updates, one after the other; whoever takes an update says whether it holds.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from types import TracebackType

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import AfterRound, FeedAnswer, FeedUpdate, ProvenCommit
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.sync.consistency_checker import ConsistencyChecker
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import LedgerError, MantaError, OtherHistory, Unreachable
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import unless_set

_PUSHES = 2  # neighbours that are told of a commit, near ones and others
_MAX_REQUEST_BYTES = 128

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class LogIsAway:
    """The news that the log does not answer, or answers again."""

    is_away: bool


class RunUpdate:
    """What the log or a neighbour says of where the run stands. Entered, it is taken; an error of ours goes back to whoever told it."""

    def __init__(self, told: FeedUpdate, *, is_far_ahead: bool) -> None:
        """Wait to be taken; ``is_far_ahead``: somebody else than the log tells of a round that does not follow the newest."""
        self.told = told
        self.is_far_ahead = is_far_ahead
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> "RunUpdate":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> bool:
        if isinstance(error, MantaError):
            self.refuse(error)
            return True
        if not self.taken.done():
            self.taken.set_result(None)
        return False

    def refuse(self, error: MantaError) -> None:
        """Say that the update does not hold."""
        if not self.taken.done():
            self.taken.set_exception(error)


class CommitSubscriber:
    """Learns of commits from the log or from neighbours, whichever is first, and forwards them. All methods run in one event loop."""

    def __init__(
        self,
        context: RunContext,
        progress: Progress,
        neighbours: Neighbours,
        consistency_checker: ConsistencyChecker,
        *,
        trains: bool = True,
    ) -> None:
        """Prepare; ``start`` answers others from then on.

        Args:
            context: of the run.
            progress: says which round is the newest that is known, and how long the one after it is still open.
            neighbours: the others of the run.
            consistency_checker: holds the log to what it signed.
            trains: this peer is counted as one that takes part.
        """
        self._node = context.node
        self._log = context.log
        self._clock = context.clock
        self._progress = progress
        self._neighbours = neighbours
        self._consistency_checker = consistency_checker
        self._trains = trains
        self._newest: ProvenCommit | None = None
        self._pushing: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()
        self._fault: OtherHistory | None = None  # a neighbour's news prove it
        self._updates: deque[RunUpdate | LogIsAway] = deque()
        self._has_updates = asyncio.Event()
        self._is_closed = False

    async def next_update(self) -> RunUpdate | LogIsAway:
        """Return what is heard next, once something is."""
        while not self._updates:
            self._has_updates.clear()
            await self._has_updates.wait()
        return self._updates.popleft()

    @property
    def newest(self) -> ProvenCommit | None:
        """The newest commit heard of."""
        return self._newest

    async def start(self) -> None:
        """Take commits that neighbours push, and tell them when they ask."""
        await self._node.serve("commit", self._on_pushed)
        await self._node.serve("commit-after", self._on_asked)

    async def close(self) -> None:
        """Pass nothing on any more."""
        self._is_closed = True
        for update in self._updates:
            if isinstance(update, RunUpdate):
                update.refuse(Unreachable("this peer leaves"))
        pushing = list(self._pushing)
        for task in pushing:
            task.cancel()
        await asyncio.gather(*pushing, return_exceptions=True)

    def wake(self) -> None:
        """This computer was away: whatever is waited for may have come long ago, over a connection that is no more."""
        self._woken.set()

    async def first_look(self) -> None:
        """Find out where the run stands, however long the log takes to come back, with all that it had before.

        Raises:
            OtherHistory: it does not go on from what it signed.
        """
        pause_s = timeouts.LOG_AGAIN_S[0]
        while True:
            try:
                await self._check_whole()
                await self._hear(self._log.next_update(self._log.operator, 0, left_ms=None))
            except Unreachable as error:
                logger.info("log not heard reason=%s", error)
                self._tell_away(True)
                with contextlib.suppress(Unreachable):
                    await self._log.line.meet(self._node)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, timeouts.LOG_AGAIN_S[1])
                continue
            self._tell_away(False)
            return

    async def listen(self) -> None:
        """Wait for one commit after the other at the log; find it again when it was away. Ends when it is cancelled.

        Meanwhile neighbours are asked: one may have heard of a commit before the log went away.

        Raises:
            OtherHistory: the log does not go on from what it signed.
        """
        pause_s, has_met, knows_time = timeouts.LOG_AGAIN_S[0], True, True
        while True:
            if self._fault is not None:
                raise self._fault
            if not has_met:
                # A restarted node knows nobody, and newcomers who ask it for members would never find this one.
                with contextlib.suppress(Unreachable):
                    await self._log.line.meet(self._node)
                    has_met = True
            try:
                if not knows_time:
                    await self._check_whole()
                # A log that was away may have its round open for longer than was known here: it is asked for that before it is waited for.
                left_ms = max(0, round(self._progress.pace.left_ms(self._clock.now_ms()))) if knows_time else None
                asked = self._progress.newest_round
                told = await unless_set(
                    self._woken, self._log.next_update(self._log.operator, asked, left_ms=left_ms, takes_part=self._trains)
                )
                if told is None:
                    self._woken.clear()
                    has_met, knows_time = False, False
                    continue
                await self._pass_on(told)
                is_news = told.proven_commit is not None and told.proven_commit.proven.round.round > asked
                if is_news or not knows_time:
                    pause_s, knows_time = timeouts.LOG_AGAIN_S[0], True
                    self._tell_away(False)
                    continue
            except Unreachable as error:
                has_met, knows_time = False, False
                logger.info("log not heard reason=%s", error)
                self._tell_away(True)
                self._consistency_checker.check_rollback_time()
                await self._ask_a_neighbour()
            except OtherHistory:
                raise
            except MantaError as error:
                logger.warning("the log's news are refused reason=%s", error)
                knows_time = knows_time and not isinstance(error, Refused)  # it may know less than it did: see which head it shows
                self._log.line.turn_away(str(error))
            await asyncio.sleep(pause_s)  # also where it has nothing new to say: it may be finished, or have too many who wait
            pause_s = min(2 * pause_s, timeouts.LOG_AGAIN_S[1])

    async def _check_whole(self) -> None:
        """Look whether the log has all that it signed.

        Raises:
            OtherHistory: it goes another way.
            Unreachable: it is away, or it is not whole, which is as good as away.
        """
        if not await self._consistency_checker.compare():
            raise Unreachable("the log lacks entries that it signed for")

    async def _ask_a_neighbour(self) -> None:
        for key in self._neighbours.some(1):
            try:
                await self._hear(self._log.next_update(key, self._progress.newest_round, left_ms=None))
                self._neighbours.met(key)
            except OtherHistory:
                raise
            except MantaError:
                self._neighbours.forget(key)

    def _tell_away(self, is_away: bool) -> None:
        self._put(LogIsAway(is_away))

    def _put(self, update: RunUpdate | LogIsAway) -> None:
        self._updates.append(update)
        self._has_updates.set()

    async def _hear(self, feed: Awaitable[FeedUpdate]) -> None:
        await self._pass_on(await feed)

    async def _pass_on(self, told: FeedUpdate) -> None:
        """Return once what was told is taken; forward a commit that is news.

        Raises:
            LedgerError: it contradicts a commit known before.
            OtherHistory: that proves that the log has two histories.
            Unreachable: this peer leaves.
        """
        if self._is_closed:
            raise Unreachable("this peer leaves")
        proven_commit = told.proven_commit
        round_ = 0 if proven_commit is None else proven_commit.proven.round.round
        before = None if self._newest is None else self._newest.proven.round.round
        update = RunUpdate(told, is_far_ahead=not told.is_from_log and before is not None and round_ > before + 1)
        self._put(update)
        try:
            await update.taken
        except LedgerError:
            if proven_commit is not None:
                self._consistency_checker.check_contradiction(proven_commit)
            raise
        if proven_commit is not None and (self._newest is None or round_ > self._newest.proven.round.round) and not self._is_closed:
            self._newest = proven_commit
            self._consistency_checker.remember(proven_commit)
            for key in self._neighbours.mixed(_PUSHES):
                self._pushing.add(task := asyncio.create_task(self._push(key, pack(proven_commit.receipt))))
                task.add_done_callback(self._pushing.discard)

    async def _push(self, key: PublicKey, receipt: bytes) -> None:
        try:
            await self._node.call(key, "commit", receipt, timeout_s=timeouts.PUSH_S)
            self._neighbours.met(key)
        except MantaError:  # it hears of the commit at the log
            self._neighbours.forget(key)

    async def _on_pushed(self, sender: PublicKey, data: bytes) -> bytes:
        try:
            await self._pass_on(FeedUpdate(self._log.open(data), None, 0))
        except OtherHistory as fault:
            self._fault = fault
            self._woken.set()
            raise
        self._neighbours.met(sender)
        return b""

    async def _on_asked(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AfterRound, request, max_bytes=_MAX_REQUEST_BYTES)
        if self._newest is None or self._newest.proven.round.round <= ask.round:
            return pack(FeedAnswer((), (), 0))
        return pack(FeedAnswer((self._newest.receipt,), (), 0))
