"""A peer's ear for commits: it waits for them at the log, passes them on to a few neighbours, and tells who asks it.

Nobody tells everybody anything: each peer learns of a commit from the log's answer or from one of those who know already.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from manta_swarm.network import waits
from manta_swarm.network.log_client import AfterRound, Commitment, LogClient, News, Told
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import OwnNode, Refused
from manta_swarm.peer.sync.heads import Heads
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import LedgerError, MantaError, OtherHistory, Unreachable
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import unless

_PUSHES = 2  # neighbours that are told of a commit, near ones and others
_MAX_REQUEST_BYTES = 128

logger = logging.getLogger("manta.peer")


class Ear:
    """Learns of commits, whichever way is first."""

    def __init__(
        self,
        node: OwnNode,
        log: LogClient,
        neighbours: Neighbours,
        heads: Heads,
        *,
        round: Callable[[], int],
        left_ms: Callable[[], float],
        take: Callable[[Told], None],
        show: Callable[[bool], None],
        far_ahead: Callable[[], None] = lambda: None,
        trains: bool = True,
    ) -> None:
        """Prepare; ``start`` answers others from then on.

        Args:
            node: this peer's.
            log: the line to the log.
            neighbours: the others of the run.
            heads: hold the log to what it signed.
            round: returns the newest round known.
            left_ms: returns how long the round after it still is open, as far as is known.
            take: is told all that is heard, often of a commit that it knows.
            show: is told whether the log is away.
            far_ahead: is told when somebody else than the log tells of a round that does not follow the newest.
            trains: this peer is counted as one that takes part.
        """
        self._node = node
        self._log = log
        self._neighbours = neighbours
        self._heads = heads
        self._round = round
        self._left_ms = left_ms
        self._take = take
        self._show = show
        self._far_ahead = far_ahead
        self._trains = trains
        self._newest: Commitment | None = None
        self._pushing: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()
        self._fault: OtherHistory | None = None  # a neighbour's news prove it

    @property
    def newest(self) -> Commitment | None:
        """The newest commit heard of."""
        return self._newest

    async def start(self) -> None:
        """Take commits that neighbours push, and tell them when they ask."""
        await self._node.serve("commit", self._on_pushed)
        await self._node.serve("commit-after", self._on_asked)

    async def close(self) -> None:
        """Pass nothing on any more."""
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
        pause_s = waits.LOG_AGAIN_S[0]
        while True:
            try:
                await self._check_whole()
                self._heard(await self._log.news(self._log.operator, 0, left_ms=None))
            except Unreachable as error:
                logger.info("log not heard reason=%s", error)
                self._show(True)
                with contextlib.suppress(Unreachable):
                    await self._log.line.meet(self._node)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, waits.LOG_AGAIN_S[1])
                continue
            self._show(False)
            return

    async def listen(self) -> None:
        """Wait for one commit after the other at the log; find it again when it was away. Ends when it is cancelled.

        Meanwhile neighbours are asked: one may have heard of a commit before the log went away.

        Raises:
            OtherHistory: the log does not go on from what it signed.
        """
        pause_s, has_met, knows_time = waits.LOG_AGAIN_S[0], True, True
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
                left_ms = max(0, round(self._left_ms())) if knows_time else None
                asked = self._round()
                told = await unless(self._woken, self._log.news(self._log.operator, asked, left_ms=left_ms, takes_part=self._trains))
                if told is None:
                    self._woken.clear()
                    has_met, knows_time = False, False
                    continue
                self._heard(told)
                is_news = told.commitment is not None and told.commitment.proven.round.round > asked
                if is_news or not knows_time:
                    pause_s, knows_time = waits.LOG_AGAIN_S[0], True
                    self._show(False)
                    continue
            except Unreachable as error:
                has_met, knows_time = False, False
                logger.info("log not heard reason=%s", error)
                self._show(True)
                self._heads.check_patience()
                await self._ask_a_neighbour()
            except OtherHistory:
                raise
            except MantaError as error:
                logger.warning("the log's news are refused reason=%s", error)
                knows_time = knows_time and not isinstance(error, Refused)  # it may know less than it did: see which head it shows
                self._log.line.turn_away(str(error))
            await asyncio.sleep(pause_s)  # also where it has nothing new to say: it may be finished, or have too many who wait
            pause_s = min(2 * pause_s, waits.LOG_AGAIN_S[1])

    async def _check_whole(self) -> None:
        """Look whether the log has all that it signed.

        Raises:
            OtherHistory: it goes another way.
            Unreachable: it is away, or it is not whole, which is as good as away.
        """
        if not await self._heads.compare():
            raise Unreachable("the log lacks entries that it signed for")

    async def _ask_a_neighbour(self) -> None:
        for key in self._neighbours.some(1):
            try:
                self._heard(await self._log.news(key, self._round(), left_ms=None))
                self._neighbours.met(key)
            except OtherHistory:
                raise
            except MantaError:
                self._neighbours.forget(key)

    def _heard(self, told: Told) -> None:
        commitment = told.commitment
        is_news = commitment is not None and (self._newest is None or commitment.proven.round.round > self._newest.proven.round.round)
        try:
            self._take(told)
        except LedgerError:
            if commitment is not None:
                self._heads.check_contradiction(commitment)
            raise
        if is_news and commitment is not None:
            if not told.is_from_log and self._newest is not None and commitment.proven.round.round > self._newest.proven.round.round + 1:
                self._far_ahead()
            self._newest = commitment
            self._heads.remember(commitment)
            for key in self._neighbours.mixed(_PUSHES):
                self._pushing.add(task := asyncio.create_task(self._push(key, pack(commitment.receipt))))
                task.add_done_callback(self._pushing.discard)

    async def _push(self, key: PublicKey, receipt: bytes) -> None:
        try:
            await self._node.call(key, "commit", receipt, timeout_s=waits.PUSH_S)
            self._neighbours.met(key)
        except MantaError:  # it hears of the commit at the log
            self._neighbours.forget(key)

    async def _on_pushed(self, sender: PublicKey, data: bytes) -> bytes:
        try:
            self._heard(Told(self._log.open(data), None, 0))
        except OtherHistory as fault:
            self._fault = fault
            self._woken.set()
            raise
        self._neighbours.met(sender)
        return b""

    async def _on_asked(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AfterRound, request, max_bytes=_MAX_REQUEST_BYTES)
        if self._newest is None or self._newest.proven.round.round <= ask.round:
            return pack(News((), (), 0))
        return pack(News((self._newest.receipt,), (), 0))
