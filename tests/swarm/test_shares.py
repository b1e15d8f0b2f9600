"""Shares and turns in memory: who gets a place when all are taken, and who waits."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.shares import Place, Shares, Turns
from tests.swarm.nodes import run, until


@dataclass
class Crowd:
    """Calls of several keys, each a task that keeps its place until it is told to go, or cut."""

    shares: Shares
    calls: list[tuple[bytes, Place, "asyncio.Task[None]"]] = field(default_factory=list)

    async def call(self, key: bytes, num_bytes: int = 0) -> bool:
        """Begin a call; return whether it got a place."""
        answer: asyncio.Future[Place | None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            place = self.shares.take(key)
            if place is None:
                return answer.set_result(None)
            with place:
                answer.set_result(place)
                place.grow(num_bytes)
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        place = await answer
        await asyncio.sleep(0)
        if place is not None:
            self.calls.append((key, place, task))
        self.calls = [call for call in self.calls if not call[1].lost]
        return place is not None

    def count(self) -> Counter[bytes]:
        return Counter(key for key, _, _ in self.calls)

    async def end(self, number: int) -> None:
        _, _, task = self.calls.pop(number)
        task.cancel()
        await asyncio.wait({task})


def test_one_key_has_so_many_places_and_gets_one_back_when_a_call_ends() -> None:
    async def whole() -> None:
        crowd = Crowd(Shares(total=10, each=2, max_bytes=100))
        assert [await crowd.call(b"a") for _ in range(3)] == [True, True, False]
        assert await crowd.call(b"b")
        await crowd.end(0)
        assert await crowd.call(b"a")
        assert not await crowd.call(b"a")
        assert (len(crowd.shares), crowd.shares.refused, crowd.shares.cut) == (3, 2, 0)

    run(whole())


def test_whoever_has_the_most_gives_its_newest_call_to_one_that_has_fewer() -> None:
    async def whole() -> None:
        crowd = Crowd(Shares(total=6, each=4, max_bytes=100))
        for key in (b"a", b"a", b"a", b"a", b"b", b"b"):
            assert await crowd.call(key)
        newest = crowd.calls[3][2]
        assert await crowd.call(b"c")
        assert newest.cancelled()
        assert crowd.count() == {b"a": 3, b"b": 2, b"c": 1}
        assert await crowd.call(b"c")
        assert not await crowd.call(b"c")  # everybody has two: nobody has too many
        assert not await crowd.call(b"a")
        assert await crowd.call(b"d")
        assert crowd.count().total() == len(crowd.shares) == 6

    run(whole())


def test_a_crowd_of_strangers_that_have_one_place_each_keeps_what_it_has() -> None:
    async def whole() -> None:
        crowd = Crowd(Shares(total=3, each=2, max_bytes=100))
        assert [await crowd.call(key) for key in (b"a", b"b", b"c", b"d")] == [True, True, True, False]

    run(whole())


def test_too_many_bytes_cost_the_key_that_holds_the_most_its_newest_call() -> None:
    async def whole() -> None:
        crowd = Crowd(Shares(total=10, each=10, max_bytes=100))
        for key, num_bytes in ((b"a", 40), (b"b", 30), (b"b", 20), (b"b", 0)):
            assert await crowd.call(key, num_bytes)
        assert crowd.shares.cut == 0
        assert await crowd.call(b"c", 15)
        assert crowd.count() == {b"a": 1, b"b": 2, b"c": 1}  # the newest that holds anything
        assert await crowd.call(b"d", 90)
        assert crowd.count() == {b"a": 1, b"b": 2, b"c": 1}  # its own, for nobody holds more
        assert crowd.shares._num_bytes == 85

    run(whole())


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b""]), st.integers(0, 40)), max_size=60))
def test_places_and_bytes_are_never_more_than_allowed_and_all_come_back(steps: list[tuple[bytes, int]]) -> None:
    async def whole() -> None:
        shares = Shares(total=5, each=3, max_bytes=100)
        crowd = Crowd(shares)
        for key, number in steps:
            if key:
                before = crowd.count()[key]
                got = await crowd.call(key, number)
                assert got or before == 3 or before + 1 >= max(crowd.count().values())
            elif crowd.calls:
                await crowd.end(number % len(crowd.calls))
            assert crowd.count().total() == len(shares) <= 5
            assert max(crowd.count().values(), default=0) <= 3
            assert sum(place.num_bytes for _, place, _ in crowd.calls) == shares._num_bytes <= 100
        while crowd.calls:
            await crowd.end(0)
        assert (len(shares), shares._num_bytes, shares._places) == (0, 0, {})
        assert not any(shares._ranks)

    run(whole())


@pytest.mark.parametrize(("total", "each", "expected"), [(10, 2, {b"a": 2, b"b": 2}), (3, 2, {b"a": 2, b"b": 1}), (3, 5, {b"a": 3})])
def test_our_own_calls_wait_for_their_turn(total: int, each: int, expected: dict[bytes, int]) -> None:
    async def whole() -> None:
        turns, open_, go_on = Turns(total=total, each=each), Counter[bytes](), asyncio.Event()

        async def call(key: bytes) -> None:
            async with turns.turn(key):
                open_[key] += 1
                await go_on.wait()

        calls = [asyncio.create_task(call(key)) for key in (b"a",) * 4 + (b"b",) * 4]
        await until(lambda: open_ == expected)
        await asyncio.sleep(0)
        assert open_ == expected
        calls[-1].cancel()  # while it waits
        go_on.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert open_ == {b"a": 4, b"b": 3}
        assert turns._at == {}

    run(whole())
