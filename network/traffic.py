"""What a node sends and receives, counted, and held back where a person limits it: a bucket of bytes for each direction.

Counted is what passes through the doors of this process, the streams and the small calls, those of the DHT too, direct links over the
network, and what a gateway's HTTP carries; what libp2p, TLS, HTTP and TCP/IP add to it is not, nor what cohort peers on one computer tell
each other. A piece that is larger than the bucket overdraws it: so the average is the limit whatever the sizes are. Own calls go before the
answers to others.
"""

import asyncio
import heapq
from dataclasses import dataclass, field

from manta_swarm.network.rates import TokenBuckets
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

PIECE_BYTES = 16_384  # what is sent or received at a time under a limit: small beside what a second has
_BURST_S = 0.25  # of unused time that may be made up for

_OWN, _OTHERS = 0, 1


class Flow:
    """Counts and limits the bytes of one direction."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Count from zero, without a limit."""
        self._clock = clock
        self.total = 0  # bytes so far
        self._limit: int | None = None  # bytes a second
        self._rate: TokenBuckets[None] = TokenBuckets(1.0, PIECE_BYTES)  # where there is a limit
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
        if limit is None:
            self._rate = TokenBuckets(1.0, PIECE_BYTES)
        else:
            self._rate.owe(None, self._now_ms(), 0)  # so far by the limit before
            self._rate.a_second, self._rate.at_once = float(limit), max(limit * _BURST_S, PIECE_BYTES)
        self._limit = limit
        self._let_through()

    @property
    def is_awaited(self) -> bool:
        """Whether something is held back now."""
        return bool(self._waiting)

    def count(self, num_bytes: int) -> None:
        """Count bytes that have passed already: they are owed."""
        self.total += num_bytes
        if self._limit is not None:
            self._rate.owe(None, self._now_ms(), num_bytes)

    async def take(self, num_bytes: int, *, is_own: bool) -> None:
        """Wait until so many bytes may pass, and count them; ``is_own``: of a call of this node's, not of its answer to another's."""
        if num_bytes and (self._waiting or self._wait_ms(num_bytes)):
            self._count += 1
            passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (_OWN if is_own else _OTHERS, self._count, num_bytes, passed))
            self._let_through()
            await passed  # who is cancelled meanwhile is passed over

    def _now_ms(self) -> float:
        return 1000 * self._clock.now_s()

    def _wait_ms(self, num_bytes: int) -> int:
        """Count bytes that may pass and return 0; or return when they may."""
        wait_ms = 0 if self._limit is None else self._rate.wait_ms(None, self._now_ms(), num_bytes)
        if not wait_ms:
            self.total += num_bytes
        return wait_ms

    def _let_through(self) -> None:
        """Let those pass who may now; look again when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            _, _, num_bytes, passed = self._waiting[0]
            if not passed.done():
                if wait_ms := self._wait_ms(num_bytes):
                    self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._let_through)
                    return
                passed.set_result(None)
            heapq.heappop(self._waiting)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts and limits what a node sends and what it receives."""

    sent: Flow = field(default_factory=Flow)
    received: Flow = field(default_factory=Flow)
