"""What a node sends and receives, counted, and held back where a person limits it: a bucket of bytes for each direction.

Counted is what passes through the doors of this process, the streams and the small calls, those of the DHT too, and what a gateway's HTTP
carries; what libp2p, HTTP and TCP/IP add to it is not, nor what mates on one computer read from each other's memory. A bucket may be
overdrawn by one piece, and is refilled before the next one passes: so the average is the limit whatever the sizes are. Own calls go before
the answers to others.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

PIECE_BYTES = 16_384  # what is sent or received at a time under a limit: small beside what a second has
_BURST_S = 0.25  # of unused time that may be made up for

_OWN, _OTHERS = 0, 1


class Flow:
    """One direction."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Count from zero, without a limit; ``clock`` gives seconds and does not go back."""
        self._clock = clock
        self.total = 0  # bytes so far
        self._limit: int | None = None  # bytes a second
        self._level = 0.0  # bytes that may pass at once; below zero: owed
        self._since = 0.0  # when the level was looked at last
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []  # a heap: whose, which, bytes, until when
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int | None:
        """Bytes a second; None: as many as there are."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise ValueError("a limit is a positive number of bytes a second")
        self._refill()
        self._limit = limit
        if limit is None:
            self._level = 0.0
        self._let_pass()

    @property
    def is_awaited(self) -> bool:
        """Whether something is held back now."""
        return bool(self._waiting)

    def count(self, num_bytes: int) -> None:
        """Count bytes that have passed already: they are owed."""
        self.total += num_bytes
        if self._limit is not None:
            self._refill()
            self._level -= num_bytes

    async def take(self, num_bytes: int, *, is_own: bool) -> None:
        """Wait until so many bytes may pass, and count them; ``is_own``: of a call of this node's, not of its answer to another's."""
        if self._limit is not None and num_bytes:
            self._refill()
            if self._waiting or self._level <= 0:
                await self._turn(num_bytes, is_own)
                return
            self._level -= num_bytes
        self.total += num_bytes

    async def _turn(self, num_bytes: int, is_own: bool) -> None:
        self._count += 1
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (_OWN if is_own else _OTHERS, self._count, num_bytes, passed))
        self._let_pass()
        await passed  # who is cancelled meanwhile is passed over

    def _refill(self) -> None:
        now = self._clock()
        if self._limit is not None:
            most = max(self._limit * _BURST_S, PIECE_BYTES)
            self._level = min(self._level + (now - self._since) * self._limit, most)
        self._since = now

    def _let_pass(self) -> None:
        """Let those pass who may now; look again when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refill()
        while self._waiting and (self._limit is None or self._level > 0):
            _, _, num_bytes, passed = heapq.heappop(self._waiting)
            if passed.done():
                continue
            passed.set_result(None)
            self.total += num_bytes
            if self._limit is not None:
                self._level -= num_bytes
        if self._waiting:
            assert self._limit is not None
            self._timer = asyncio.get_running_loop().call_later((1 - self._level) / self._limit, self._let_pass)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Both directions of a node."""

    sent: Flow = field(default_factory=Flow)
    received: Flow = field(default_factory=Flow)
