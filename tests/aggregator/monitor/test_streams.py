"""The event stream: what a client gets, what a slow one misses, and who finds no place. Without a network."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from manta_swarm.aggregator.monitor.streams import EventStreams


class Client:
    """Somebody who listens, as slowly as the test wants."""

    def __init__(self, streams: EventStreams) -> None:
        self._streams = streams
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.leaves = asyncio.Event()
        self.text = ""
        self.messages: list[Any] = []
        self.has_taken = asyncio.Event()
        self.task = asyncio.create_task(
            streams.serve({"type": "http"}, self._receive, self._send, [(b"content-type", b"text/event-stream")])
        )

    async def _receive(self) -> Any:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.may_take.wait()
        self.messages.append(message)
        self.text += message.get("body", b"").decode()
        self.has_taken.set()

    @property
    def events(self) -> list[tuple[str, Any]]:
        """What came."""
        found = []
        for block in self.text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in lines:
                found.append((lines["event"], json.loads(lines["data"])))
        return found

    @classmethod
    async def greeted(cls, streams: EventStreams, count: int) -> "list[Client]":
        """Return so many, once each was told how things stand."""
        clients = [cls(streams) for _ in range(count)]
        for client in clients:
            await client.until(lambda client=client: len(client.events) == 2)  # type: ignore[misc]
        return clients

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(30):
            while not is_so():
                self.has_taken.clear()
                await self.has_taken.wait()


@contextlib.asynccontextmanager
async def told(limit: int = 10) -> AsyncIterator[EventStreams]:
    streams = EventStreams(limit, lambda: [("now", {"round": 1}), ("head", {"size": 7})])
    yield streams
    assert not len(streams)
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture
def streams() -> AbstractAsyncContextManager[EventStreams]:
    return told()


async def ended(*clients: Client) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(*(client.task for client in clients))


async def gone(*clients: Client) -> None:
    for client in clients:
        client.leaves.set()
    await ended(*clients)


async def test_a_client_is_greeted_and_told_what_happens(streams: EventStreams) -> None:
    (client,) = await Client.greeted(streams, 1)
    assert client.messages[0]["status"] == 200
    streams.publish("round", {"round": 2})
    await client.until(lambda: len(client.events) == 3)
    assert client.events == [("now", {"round": 1}), ("head", {"size": 7}), ("round", {"round": 2})]
    await gone(client)


async def test_a_slow_client_gets_the_newest_of_each_kind_and_never_a_part(streams: EventStreams) -> None:
    slow, quick = await Client.greeted(streams, 2)
    slow.may_take.clear()
    for round_ in range(30):
        streams.publish("now", {"round": round_, "text": "ä" * 100})
        streams.publish("round", {"round": round_})
        await quick.until(lambda round_=round_: ("round", {"round": round_}) in quick.events)  # type: ignore[misc]
    slow.may_take.set()
    await slow.until(lambda: ("round", {"round": 29}) in slow.events)
    assert [data["round"] for kind, data in slow.events if kind == "now"][-1] == 29
    assert len(slow.events) < 10
    await gone(slow, quick)


async def test_a_place_is_free_again_once_its_client_has_gone() -> None:
    async with told(limit=3) as streams:
        clients = await Client.greeted(streams, 3)
        assert streams.is_full
        await gone(clients[0])
        assert not streams.is_full
        await gone(*clients[1:])


async def test_a_stream_that_is_cancelled_in_its_last_moment_is_cancelled(streams: EventStreams) -> None:
    """Its end waits for the task that waits for its client's: being cancelled just then is not taken for that task's cancellation."""
    waits, ends, may_end, has_ended = (asyncio.Event() for _ in range(4))

    async def receive() -> Any:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()
            await may_end.wait()
            has_ended.set()

    async def send(_: Any) -> None:
        await waits.wait()
        streams.close()

    serving = asyncio.create_task(streams.serve({"type": "http"}, receive, send, []))
    async with asyncio.timeout(30):
        await ends.wait()
        serving.cancel()
        await asyncio.wait((serving,))
        assert serving.cancelled()
        may_end.set()
        await has_ended.wait()


async def test_all_streams_end_with_the_monitor(streams: EventStreams) -> None:
    clients = await Client.greeted(streams, 3)
    streams.close()
    await ended(*clients)
    assert all(client.messages[-1]["more_body"] is False for client in clients)
