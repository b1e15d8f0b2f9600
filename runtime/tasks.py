"""Helpers to wait: for several coroutines at once, or for an event with a timeout."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from manta_swarm.protocol.errors import MantaError

Result = TypeVar("Result")
INLINE_VALUES = 2**20  # so many values are worked on where they are, for some milliseconds; more in a thread


async def together(*coroutines: Coroutine[Any, Any, Any], at_once: int | None = None) -> list[Any]:
    """Run coroutines side by side and return their results; the first failure cancels the others and is raised by itself.

    ``at_once``: so many of them run at a time, the others wait; None: all.
    """
    places = asyncio.Semaphore(at_once or max(1, len(coroutines)))

    async def placed(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async with places:
            return await coroutine

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(placed(coroutine)) for coroutine in coroutines]
    except BaseExceptionGroup as group:
        failures = _flatten(group)
        # What is a fault of the program matters more than what it made of the network.
        raise next((failure for failure in failures if not isinstance(failure, MantaError)), failures[0]) from None
    finally:
        for coroutine in coroutines:
            coroutine.close()  # those that never began
    return [task.result() for task in running]


async def off_loop(num_values: int, work: Callable[[], Result]) -> Result:
    """Return what ``work`` on so many values returns; in a thread if that takes long enough for others to wait."""
    return work() if num_values <= INLINE_VALUES else await asyncio.to_thread(work)


async def wait_within(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for the event, but not longer. Not ``asyncio.wait_for``, which in Python 3.11 can swallow a cancellation."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def first_of(task: "asyncio.Task[Any]", event: asyncio.Event) -> None:
    """Wait for the end of the task, or for the event; the task is let run."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def unless_set(event: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return what ``work`` returns; where the event is there first, cancel it and return None."""
    return await soon_after(event, 0.0, work)


async def soon_after(event: asyncio.Event, timeout_s: float, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return what ``work`` returns; where it is not done so long after the event, cancel it and return None."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if timeout_s and not working.done():
            await asyncio.wait((working,), timeout=timeout_s)
        return working.result() if working.done() else None
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def _flatten(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [leaf for failure in group.exceptions for leaf in (_flatten(failure) if isinstance(failure, BaseExceptionGroup) else [failure])]
