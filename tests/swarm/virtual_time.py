"""An event loop in which waiting costs no time, for what happens in memory only: minutes of a swarm in a moment, the same every time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock starts at 0 and goes on to the next timer as soon as there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select

        def jump(timeout_s: float | None = None) -> Any:
            if timeout_s is None:
                raise AssertionError("everything waits, and nothing will ever happen")
            events = select(0)
            if not events:
                self._now += timeout_s
            return events

        self._selector.select = jump

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now


def run_virtual(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what ``work`` returns, in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def now() -> float:
    """Return the running loop's time."""
    return asyncio.get_running_loop().time()
