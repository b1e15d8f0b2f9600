"""An event loop in which waiting costs no time, for what happens in memory only: minutes of a swarm in a moment, the same every time."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock starts at 0 and goes on to the next timer as soon as there is nothing else to do; it stands still for threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._in_threads = 0  # calls that are not over
        select = self._selector.select

        def jump(timeout_s: float | None = None) -> Any:
            if self._in_threads and timeout_s != 0:
                return select(None)
            if timeout_s is None:
                raise AssertionError("everything waits, and nothing will ever happen")
            events = select(0)
            if not events:
                self._now += timeout_s
            return events

        self._selector.select = jump

    def run_in_executor(self, executor: Executor | None, func: Callable[[*_Args], _Result], *args: *_Args) -> asyncio.Future[_Result]:
        """Run a call in a thread, for which the clock stands still."""
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads, for which the clock stands still."""
        self._in_threads += 1
        await super().shutdown_default_executor()
        self._in_threads -= 1

    def _thread_done(self, _future: Any) -> None:
        self._in_threads -= 1

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now


def run_virtual(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what ``work`` returns, in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class LoopClock:
    """A ``Clock`` that tells the running loop's time."""

    def now_ms(self) -> float:
        return 1000 * now()

    def now_s(self) -> float:
        return now()

    def unix_ms(self) -> int:
        return round(1000 * now())


LOOP_CLOCK = LoopClock()


def now() -> float:
    """Return the running loop's time."""
    return asyncio.get_running_loop().time()
