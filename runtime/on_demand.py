"""A child process that computes beside a peer: for its share of the time, and not while nothing is to be computed at all."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from manta_swarm.runtime.tasks import first_of, wait_within

Result = TypeVar("Result")


class Closable(Protocol):
    """A process that can be ended."""

    async def close(self) -> None:
        """End the process."""


Process = TypeVar("Process", bound=Closable)


class OnDemandProcess(Generic[Process]):
    """A process that runs only while it has something to do and may work."""

    def __init__(self, start: Callable[[], Awaitable[Process]]) -> None:
        """Let it not work, until ``share`` says more; ``start`` starts it."""
        self._start = start
        self._process: Process | None = None
        self.loaded: bytes | None = None  # digest of the state that it has
        self.share = 0.0  # of the time that it may work
        self.is_paused = False
        self.changed = asyncio.Event()  # may it work, or is there something to do: whoever waits clears it

    @property
    def may_work(self) -> bool:
        """Whether the process may work now."""
        return self.share > 0 and not self.is_paused

    def limit(self, share: int, duty: int) -> None:
        """Let it work at most so many hundredths of the time, and no more than microbatches may."""
        self.share = min(share, duty) / 100
        self.changed.set()

    def pause(self) -> None:
        """Let it do nothing until ``resume``."""
        self.is_paused = True
        self.changed.set()

    def resume(self) -> None:
        """Let it go on."""
        self.is_paused = False
        self.changed.set()

    async def process(self) -> Process:
        """Return the process; it is started if there is none."""
        if self._process is None:
            self._process = await self._start()
        return self._process

    async def release(self) -> None:
        """End the process, if there is one."""
        process, self._process, self.loaded = self._process, None, None
        if process is not None:
            await process.close()

    async def work(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return what came of a piece of work; None: it might not go on when ``changed`` was set, and its process is ended."""
        working = asyncio.create_task(work)
        try:
            while not working.done() and self.may_work:
                self.changed.clear()
                await first_of(working, self.changed)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        if working.cancelled():
            await self.release()
            return None
        return working.result()

    async def rest(self, began_s: float, worked_s: float) -> None:
        """Wait until the share is kept of what began then, by the loop's clock, or nothing is to be computed at all."""
        loop = asyncio.get_running_loop()
        while self.may_work and (left_s := began_s + worked_s / self.share - loop.time()) > 0:
            self.changed.clear()
            await wait_within(self.changed, left_s)
