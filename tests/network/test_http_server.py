"""Connections that only hold a place are ended: who takes nothing, who asks nothing, who asks for ever."""

import asyncio
import contextlib
import math
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.network.http_server import Places, allow_files, answering


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where servers listen: on a Unix socket what is sent is there at once, so time may be virtual."""
    return tmp_path / "socket"


@contextlib.asynccontextmanager
async def served(path: Path, most: int = 8) -> AsyncIterator[asyncio.Event]:
    """Serve with so many places; one page never ends. Yield what is set once a reader of that is gone."""
    gone = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            while (await receive()).get("more_body"):
                pass
        if scope["path"] == "/short":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(receive())
        while not leaving.done() or leaving.result()["type"] != "http.disconnect":
            if leaving.done():
                leaving = asyncio.create_task(receive())
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
            await asyncio.sleep(0)
        gone.set()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        async with asyncio.timeout(600), answering(endless, listening, Places(most, most), "test"):
            yield gone


@pytest.mark.virtual_time
async def test_who_takes_nothing_is_cut_off(path: Path) -> None:
    async with served(path) as gone:
        _, writer = await asyncio.open_unix_connection(path, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await gone.wait()
        writer.close()


@pytest.mark.virtual_time
async def test_who_takes_it_slowly_but_takes_it_stays(path: Path) -> None:
    async with served(path) as gone:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(100):  # seconds: in all longer than what cuts off whoever takes nothing
            assert await reader.read(1 << 20)
            await asyncio.sleep(1)
        assert not gone.is_set()
        writer.close()
        await gone.wait()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "said", [b"", b"GET /short HT", b"GET /short HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /short HTTP/1.1\r\nhost: x\r\n\r\nGET /sho"]
)
async def test_who_asks_nothing_or_never_finishes_asking_is_cut_off(path: Path, said: bytes) -> None:
    async with served(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(said)
        answer = await reader.read(1000)
        assert answer.endswith(b"ok") == (b"\r\n\r\n" in said)
        while answer:
            try:
                answer = await reader.read(1000)
            except ConnectionError:
                break
        writer.close()


@dataclass(eq=False)
class _Guest:
    key: str
    lag: float = 0.0
    is_cut: bool = False
    address: str = ""
    num_bytes: int = 0
    ahead_s: float = 0.0

    def lag_s(self, _ahead_s: float) -> float:
        return self.lag

    def cut(self) -> None:
        self.is_cut = True


def _taken(places: Places, address: str, *lags: float) -> list[_Guest]:
    guests = [_Guest(address, lag) for lag in lags]
    assert all(places.take(guest) for guest in guests)
    return guests


def test_a_newcomer_gets_the_place_of_the_idlest_of_the_address_that_has_most() -> None:
    places = Places(6, 6)
    few, many = _taken(places, "few", 900.0), _taken(places, "many", 1.0, 3.0, 2.0, 0.5, -5.0)
    assert places.take(_Guest("new"))
    assert places.take(_Guest("new"))
    assert [guest.is_cut for guest in (*few, *many)] == [False, False, True, True, False, False]
    assert len(places) == 6


def test_who_moves_or_is_served_stays_where_its_own_address_or_one_with_as_many_wants_its_place() -> None:
    places = Places(4, 4)
    guests = [*_taken(places, "a", -1.0, -math.inf), *_taken(places, "b", -2.0), *_taken(places, "c", -3.0)]
    for address in ("a", "b", "c"):
        assert not places.take(_Guest(address))
    assert not any(guest.is_cut for guest in guests)
    idle = Places(2, 2)
    silent, moving = [*_taken(idle, "a", 8.0), *_taken(idle, "a", -1.0)]
    assert idle.take(_Guest("a"))
    assert (silent.is_cut, moving.is_cut) == (True, False)


def test_an_address_gets_its_share_though_another_ones_connections_move_but_none_that_is_served() -> None:
    places = Places(4, 4)
    guests = _taken(places, "many", -1.0, -9.0, -2.0, -math.inf)
    assert [places.take(_Guest("new", -1.0)) for _ in range(3)] == [True, True, False]
    assert [guest.is_cut for guest in guests] == [False, True, True, False]


def test_an_address_has_so_many_places_and_gives_its_own_idlest_for_one_more() -> None:
    places = Places(10, 2, spared=("proxy",))
    (first, second) = _taken(places, "a", -1.0, -1.0)
    assert not places.take(_Guest("a"))
    first.lag = 1.0
    assert places.take(_Guest("a"))
    assert (first.is_cut, second.is_cut, len(places)) == (True, False, 2)
    _taken(places, "proxy", *[-1.0] * 8)
    places.close()
    assert len(places) == 0
    assert second.is_cut


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-10, 10), st.integers(0, 9)), max_size=60))
def test_whoever_comes_and_goes_there_are_never_more_places_than_there_are(events: list[tuple[str, float, int]]) -> None:
    places, there = Places(5, 3), list[_Guest]()
    for address, lag, leaving in events:
        guest = _Guest(address, lag)
        if places.take(guest):
            there.append(guest)
        there = [each for each in there if not each.is_cut]
        assert len(places) == len(there) <= 5
        assert max(Counter(each.key for each in there).values(), default=0) <= 3
        if leaving < len(there):
            places.leave(there.pop(leaving))
    for guest in there:
        places.leave(guest)
    assert len(places) == 0


@pytest.mark.virtual_time
async def test_whoever_brings_something_slowly_is_served_while_others_of_its_address_fill_all_places(path: Path) -> None:
    async with served(path, most=3):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST /short HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n")
        for _ in range(20):
            writer.write(bytes(10_000))
            silent = []
            for _ in range(4):
                silent.append(await asyncio.open_unix_connection(path))
                await asyncio.sleep(0.5)
            await asyncio.gather(*(_lost(others) for others, _ in silent[:-3]))
            for _, other in silent:
                other.close()
        assert (await reader.read(1000)).endswith(b"ok")
        writer.close()


@pytest.mark.virtual_time
async def test_whoever_brings_next_to_nothing_is_cut_off(path: Path) -> None:
    async with served(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST /short HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n")
        lost = asyncio.create_task(_lost(reader))
        while not lost.done():
            writer.write(b"a")
            await asyncio.wait((lost,), timeout=1)
        writer.close()


async def _lost(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        assert await reader.read(1) == b""


def test_a_process_has_more_files_open_as_far_as_the_system_allows_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 500
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        assert allow_files(few - 100) == few
        assert allow_files(few + 100) == few + 100 == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
