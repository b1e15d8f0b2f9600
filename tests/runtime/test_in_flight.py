"""What is in flight, in memory: who gets a place when all are taken, who is cut for it, and who waits."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

import manta_swarm.runtime.in_flight
from manta_swarm.runtime.in_flight import MIN_BYTES_PER_S, InboundCall, InboundCalls, OutboundLimit
from tests.clocks import ManualClock
from tests.network.nodes import run, until


@dataclass
class Crowd:
    """Calls of several keys, each a task that keeps its place until it is told to go, or cut."""

    places: InboundCalls
    at: dict[bytes, str] = field(default_factory=dict)  # the addresses of keys
    calls: list[tuple[bytes, InboundCall, "asyncio.Task[None]"]] = field(default_factory=list)

    async def call(self, key: bytes, num_bytes: int = 0) -> bool:
        """Begin a call; return whether it got a place."""
        answer: asyncio.Future[InboundCall | None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            place = self.places.begin(key, self.at.get(key, ""))
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


async def test_one_key_has_so_many_places_and_gets_one_back_when_a_call_ends() -> None:
    crowd = Crowd(InboundCalls(total=10, each=2, max_bytes=100))
    assert [await crowd.call(b"a") for _ in range(3)] == [True, True, False]
    assert await crowd.call(b"b")
    await crowd.end(0)
    assert await crowd.call(b"a")
    assert not await crowd.call(b"a")
    assert (len(crowd.places), crowd.places.refused, crowd.places.num_cut) == (3, 2, 0)


async def test_whoever_has_the_most_gives_its_newest_call_to_one_that_has_fewer() -> None:
    crowd = Crowd(InboundCalls(total=6, each=4, max_bytes=100))
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
    assert crowd.count().total() == len(crowd.places) == 6


async def test_a_crowd_of_strangers_that_have_one_place_each_keeps_what_it_has() -> None:
    crowd = Crowd(InboundCalls(total=3, each=2, max_bytes=100))
    assert [await crowd.call(key) for key in (b"a", b"b", b"c", b"d")] == [True, True, True, False]


async def test_too_many_bytes_cost_the_key_that_holds_the_most_its_newest_call() -> None:
    crowd = Crowd(InboundCalls(total=10, each=10, max_bytes=100))
    for key, num_bytes in ((b"a", 40), (b"b", 30), (b"b", 20), (b"b", 0)):
        assert await crowd.call(key, num_bytes)
    assert crowd.places.num_cut == 0
    assert await crowd.call(b"c", 15)
    assert crowd.count() == {b"a": 1, b"b": 2, b"c": 1}  # the newest that holds anything
    assert await crowd.call(b"d", 90)
    assert crowd.count() == {b"a": 1, b"b": 2, b"c": 1}  # its own, for nobody holds more
    assert crowd.places._num_bytes == 85


async def test_an_address_that_has_the_most_gives_way_however_many_keys_it_has() -> None:
    many = [b"%d" % number for number in range(20)]
    crowd = Crowd(
        InboundCalls(total=6, each=4, max_bytes=100), at={**dict.fromkeys(many, "crowd"), b"a": "alone", b"b": "beside", b"c": "beside"}
    )
    for key in many[:6]:
        assert await crowd.call(key)
    assert not await crowd.call(many[6])
    assert [await crowd.call(b"a") for _ in range(4)] == [True, True, True, False]
    assert crowd.count() == {many[3]: 1, many[4]: 1, many[5]: 1, b"a": 3}
    assert [await crowd.call(key) for key in (b"b", b"c", b"b")] == [True, True, False]
    assert crowd.count() == {many[4]: 1, many[5]: 1, b"a": 2, b"b": 1, b"c": 1}


async def test_within_an_address_the_key_that_has_the_most_gives_way() -> None:
    crowd = Crowd(InboundCalls(total=5, each=4, max_bytes=100), at=dict.fromkeys((b"a", b"b", b"c"), "site"))
    assert [await crowd.call(key) for key in (b"a", b"a", b"a", b"b", b"b", b"c")] == [True] * 6
    assert crowd.count() == {b"a": 2, b"b": 2, b"c": 1}


async def test_a_key_whose_address_is_learnt_later_is_counted_by_it_from_then_on() -> None:
    crowd = Crowd(InboundCalls(total=4, each=2, max_bytes=100))
    for key in (b"a", b"b", b"c", b"d"):
        assert await crowd.call(key)
    assert not await crowd.call(b"e")
    for key in (b"a", b"b", b"c"):
        crowd.places.locate(key, "crowd")
    crowd.places.locate(b"z", "crowd")  # which has no place
    assert await crowd.call(b"e")
    assert crowd.count() == {b"b": 1, b"c": 1, b"d": 1, b"e": 1}
    while crowd.calls:
        await crowd.end(0)
    assert (crowd.places._address, crowd.places._keys_at) == ({}, {})


def idle_crowd(total: int) -> tuple[ManualClock, Crowd]:
    """Return calls that are idle when they are more than 10 s behind, or 2 s for a key that is ahead."""
    clock = ManualClock()
    return clock, Crowd(InboundCalls(total=total, each=4, max_bytes=10**6, idle_s=(2.0, 10.0), clock=clock))


async def test_whoever_is_the_furthest_behind_gives_way_when_it_is_idle() -> None:
    clock, crowd = idle_crowd(3)
    for key in (b"a", b"b", b"c"):
        assert await crowd.call(key)
        clock.advance(2.0)
    crowd.calls[0][1].moved(MIN_BYTES_PER_S * 4)
    crowd.calls[2][1].moved(MIN_BYTES_PER_S)
    assert not await crowd.call(b"d")  # nobody has been idle for long
    clock.advance(7.0)
    assert await crowd.call(b"d")
    assert crowd.count() == {b"a": 1, b"c": 1, b"d": 1}
    assert not await crowd.call(b"b")  # what it was behind is remembered
    clock.advance(2.0)
    assert await crowd.call(b"e")
    assert crowd.count() == {b"c": 1, b"d": 1, b"e": 1}
    assert not await crowd.call(b"f")


async def test_a_caller_at_the_slowest_pace_is_never_idle_and_one_that_trickles_is() -> None:
    clock, crowd = idle_crowd(2)
    for key in (b"slow", b"trickling"):
        assert await crowd.call(key)
    for _ in range(5):
        clock.advance(9.0)
        for (_, place, _), num_bytes in zip(crowd.calls, (9 * MIN_BYTES_PER_S, 9), strict=False):
            place.moved(num_bytes)
            place.earn(num_bytes)
    assert await crowd.call(b"a")
    assert crowd.count() == {b"slow": 1, b"a": 1}
    clock.advance(9.0)
    assert not await crowd.call(b"b")


async def test_the_time_in_which_this_node_holds_a_caller_back_does_not_count() -> None:
    clock, crowd = idle_crowd(1)
    assert await crowd.call(b"a")
    with crowd.calls[0][1].held():
        clock.advance(1000.0)
        assert not await crowd.call(b"b")
    assert not await crowd.call(b"b")
    clock.advance(11.0)
    assert await crowd.call(b"b")


async def test_who_sent_much_lately_gets_a_place_sooner_and_keeps_it_longer() -> None:
    clock, crowd = idle_crowd(2)
    assert await crowd.call(b"member")
    crowd.calls[0][1].earn(100 * MIN_BYTES_PER_S)
    await crowd.end(0)
    for key in (b"a", b"b"):
        assert await crowd.call(key)
    clock.advance(3.0)
    assert not await crowd.call(b"newcomer")
    assert await crowd.call(b"member")
    assert crowd.count() == {b"b": 1, b"member": 1}
    clock.advance(40.0)
    assert await crowd.call(b"newcomer")
    assert crowd.count() == {b"member": 1, b"newcomer": 1}
    clock.advance(600.0)  # all is forgotten
    assert crowd.places.standing_s(b"member") == crowd.places.standing_s(b"b") == 0.0


@pytest.mark.parametrize(("taken", "is_remembered"), [(0, True), (1000, True), (10**6, False)])
async def test_a_call_that_took_long_is_remembered_unless_a_large_answer_was_taken(taken: int, is_remembered: bool) -> None:
    clock, crowd = idle_crowd(1)
    assert await crowd.call(b"a")
    clock.advance(30.0)
    crowd.calls[0][1].charge(taken)
    await crowd.end(0)
    assert (crowd.places.standing_s(b"a") < -20.0) == is_remembered
    assert crowd.places.standing_s(b"a") <= 0.0  # what it takes is no merit


async def test_idle_calls_of_an_address_with_many_places_go_before_others_that_are_further_behind() -> None:
    clock, crowd = idle_crowd(8)
    crowd.at = {b"%d" % number: "crowd" for number in range(8)}
    assert await crowd.call(b"slow")
    clock.advance(5.0)
    for number in range(7):
        assert await crowd.call(b"%d" % number)
    clock.advance(11.0)
    for key in (b"a", b"b", b"c"):
        assert await crowd.call(key)
    assert crowd.count()[b"slow"] == 1  # the crowd is left with as many places as one key may have
    assert await crowd.call(b"d")
    assert b"slow" not in crowd.count()


async def test_too_many_bytes_cost_an_idle_call_before_the_one_that_holds_the_most() -> None:
    clock, crowd = idle_crowd(10)
    assert await crowd.call(b"idle", 400_000)
    clock.advance(11.0)
    assert await crowd.call(b"a", 500_000)
    assert await crowd.call(b"b", 150_000)
    assert crowd.count() == {b"a": 1, b"b": 1}


async def test_only_so_many_keys_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.runtime.in_flight, "_MAX_STANDINGS", 2)

    clock, crowd = idle_crowd(1)
    for key in (b"a", b"b", b"c"):
        assert await crowd.call(key)
        clock.advance(5.0)
        await crowd.end(0)
    assert [crowd.places.standing_s(key) < 0 for key in (b"a", b"b", b"c")] == [False, True, True]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b""]), st.integers(0, 40)), max_size=60))
def test_places_and_bytes_are_never_more_than_allowed_and_all_come_back(steps: list[tuple[bytes, int]]) -> None:
    async def whole() -> None:
        places = InboundCalls(total=5, each=3, max_bytes=100)
        crowd = Crowd(places, at={b"c": "site", b"d": "site"})
        for key, number in steps:
            if key:
                before, counts = crowd.count()[key], Counter(crowd.at.get(key, key) for key, _, _ in crowd.calls)
                got = await crowd.call(key, number)
                at_most = counts[crowd.at.get(key, key)] + 1 >= max(counts.values(), default=0)
                assert (
                    got
                    or before == 3
                    or (at_most and all(before + 1 >= crowd.count()[cohort_peer] for cohort_peer in crowd.at if key in crowd.at))
                )
            elif crowd.calls:
                await crowd.end(number % len(crowd.calls))
            assert crowd.count().total() == len(places) <= 5
            assert max(crowd.count().values(), default=0) <= 3
            assert sum(place.num_bytes for _, place, _ in crowd.calls) == places._num_bytes <= 100
        while crowd.calls:
            await crowd.end(0)
        assert (len(places), places._num_bytes, places._held) == (0, 0, {})
        assert (places._address, places._keys_at, bool(places._by_address)) == ({}, {}, False)

    run(whole())


@pytest.mark.parametrize(("total", "each", "expected"), [(10, 2, {b"a": 2, b"b": 2}), (3, 2, {b"a": 2, b"b": 1}), (3, 5, {b"a": 3})])
async def test_our_own_calls_wait_for_their_turn(total: int, each: int, expected: dict[bytes, int]) -> None:
    turns, open_, go_on = OutboundLimit(total=total, each=each), Counter[bytes](), asyncio.Event()

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
