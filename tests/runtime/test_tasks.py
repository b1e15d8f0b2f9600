"""Waiting for several things, for one of them, and for nothing any more: in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from manta_swarm.protocol.errors import Unreachable
from manta_swarm.runtime.tasks import together, unless_set, wait_within
from tests.network.virtual_time import now, run_virtual


def alone(story: Callable[[], Awaitable[Any]]) -> Any:
    """Return what ``story`` returns; nothing that it began runs any more."""

    async def play() -> Any:
        found = await story()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return run_virtual(play())


async def after(delay_s: float, result: Any) -> Any:
    """Return ``result``, or raise it, after a while."""
    await asyncio.sleep(delay_s)
    if isinstance(result, Exception):
        raise result
    return result


def test_what_runs_together_returns_together_in_its_order() -> None:
    async def story() -> None:
        assert await together(after(2, "a"), after(1, "b")) == ["a", "b"]
        assert now() == 2

    alone(story)


def test_so_many_run_at_once_and_those_that_never_began_are_closed() -> None:
    async def whole() -> None:
        running, most = 0, 0

        async def work(seconds: float) -> float:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(seconds)
            running -= 1
            return now()

        assert await together(*(work(1) for _ in range(6)), at_once=2) == [1, 1, 2, 2, 3, 3]
        assert most == 2
        with pytest.raises(Unreachable):
            await together(after(1, Unreachable("first")), *(work(9) for _ in range(3)), at_once=1)

    run_virtual(whole())


def test_of_what_runs_together_the_first_failure_ends_all_and_a_fault_of_the_program_goes_first() -> None:
    async def story() -> None:
        with pytest.raises(Unreachable, match="first"):
            await together(after(1, Unreachable("first")), after(9, Unreachable("second")))
        assert now() == 1
        with pytest.raises(KeyError):
            await together(after(1, Unreachable("first")), after(1, KeyError("ours")))

    alone(story)


def test_an_event_is_waited_for_but_not_for_ever() -> None:
    async def story() -> None:
        event = asyncio.Event()
        await wait_within(event, 3)
        assert now() == 3
        await wait_within(event, -1)
        asyncio.get_running_loop().call_later(1, event.set)
        await wait_within(event, 3)
        assert now() == 4

    alone(story)


def test_work_is_done_unless_the_event_is_there_first() -> None:
    async def story() -> None:
        event = asyncio.Event()
        assert await unless_set(event, after(1, "done")) == "done"
        with pytest.raises(Unreachable):
            await unless_set(event, after(1, Unreachable("away")))
        asyncio.get_running_loop().call_later(1, event.set)
        assert await unless_set(event, after(9, "never")) is None
        assert now() == 3
        assert await unless_set(event, after(1, "never")) is None
        assert now() == 3

    alone(story)


def test_work_that_is_cut_off_may_end_what_it_holds() -> None:
    async def story() -> None:
        event, ended = asyncio.Event(), []

        async def work() -> None:
            try:
                await asyncio.sleep(9)
            finally:
                await asyncio.sleep(1)
                ended.append(now())

        asyncio.get_running_loop().call_later(1, event.set)
        await unless_set(event, work())
        assert ended == [2]

    alone(story)


def test_who_waits_for_either_can_be_cancelled_itself() -> None:
    async def story() -> None:
        waiting = asyncio.create_task(unless_set(asyncio.Event(), after(9, "never")))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    alone(story)
