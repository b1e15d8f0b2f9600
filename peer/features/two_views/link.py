"""One try at a microbatch of two sites: the link between the thread that computes this site's part, and the calls between the sites."""

import asyncio
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError

from manta_swarm.network import timeouts
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.runtime.tasks import unless_set

PART_BYTES = 1024 * 1024  # of what goes either way in one exchange

GAVE_UP = "the other site gave the microbatch up"


class Attempt(ABC):
    """One try at a microbatch, as the thread that computes it sees it: a link (``automl.models.linked.Link``)."""

    is_first = False

    def __init__(self, identity: bytes) -> None:
        """Begin."""
        self.id = identity
        self.place = 0  # of the next part
        self.over = asyncio.Event()
        self.reason = GAVE_UP
        self.bytes_sent = self.bytes_received = 0
        self._events = asyncio.get_running_loop()

    @abstractmethod
    async def swap(self, part: bytes, size: int) -> bytes:
        """Give the other site a part, and return what it gives, of ``size`` bytes at most."""

    def end(self, reason: str) -> None:
        """Let whoever waits for something of this try wait no longer."""
        if not self.over.is_set():
            self.reason = reason
            self.over.set()

    def exchange(self, data: bytes, size: int) -> bytes:
        """See ``Link``; called in the thread."""
        parts = []
        for start in range(0, max(len(data), size, 1), PART_BYTES):
            part = data[start : start + PART_BYTES]
            if self.over.is_set():  # and perhaps the event loop has ended
                raise Unreachable(self.reason)
            try:
                swapped = asyncio.run_coroutine_threadsafe(self._bounded(part, min(size - start, PART_BYTES)), self._events).result()
            except CancelledError:
                raise Unreachable(self.reason) from None
            self.bytes_sent, self.bytes_received = self.bytes_sent + len(part), self.bytes_received + len(swapped)
            parts.append(swapped)
        return b"".join(parts)

    async def _bounded(self, part: bytes, size: int) -> bytes:
        try:
            async with asyncio.timeout(timeouts.VIEWS_EXCHANGE_S):
                swapped = await unless_set(self.over, self.swap(part, size))
        except TimeoutError:
            raise Unreachable(f"the other site said nothing for {timeouts.VIEWS_EXCHANGE_S:g} s") from None
        if swapped is None:
            raise Unreachable(self.reason)
        self.place += 1
        return swapped


class FollowingAttempt(Attempt):
    """The right site's, which is called."""

    def __init__(self, identity: bytes) -> None:
        """Begin."""
        super().__init__(identity)
        self.asked = 0  # parts that the left site has asked for
        self.given: asyncio.Queue[bytes] = asyncio.Queue(1)  # by the thread ...
        self.taken: asyncio.Queue[bytes] = asyncio.Queue(1)  # ... and for it

    async def swap(self, part: bytes, size: int) -> bytes:
        """See ``Attempt``."""
        del size
        await self.given.put(part)
        return await self.taken.get()
