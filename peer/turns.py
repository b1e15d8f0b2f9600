"""When a process beside a peer may work: for its share of the time, and not while nothing is to be computed at all."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from swarm.tasks import first_of, within

Result = TypeVar("Result")


class Turns:
    """One process's."""

    def __init__(self) -> None:
        """Let it not work, until ``share`` says more."""
        self.share = 0.0  # of the time that it may work
        self.is_paused = False
        self.changed = asyncio.Event()  # may it work, or is there something to do: whoever waits clears it

    @property
    def may_work(self) -> bool:
        """Whether it may work now."""
        return self.share > 0 and not self.is_paused

    def limit(self, share: int, duty: int) -> None:
        """Let it work at most so many hundredths of the time, and no more than lots may."""
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

    async def work(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Return a piece of work that is done, or was cancelled: it might not go on when ``changed`` was set."""
        working = asyncio.create_task(work)
        try:
            while not working.done() and self.may_work:
                self.changed.clear()
                await first_of(working, self.changed)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        return working

    async def rest(self, began_s: float, worked_s: float) -> None:
        """Wait until the share is kept of what began then, by the loop's clock, or nothing is to be computed at all."""
        loop = asyncio.get_running_loop()
        while self.may_work and (left_s := began_s + worked_s / self.share - loop.time()) > 0:
            self.changed.clear()
            await within(self.changed, left_s)
