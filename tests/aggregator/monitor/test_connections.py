"""Connections that only hold a place are ended: who takes nothing, who asks nothing, who asks for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from aggregator.monitor import connections
from aggregator.monitor.connections import BoundedConnection

Story = Callable[[str, int, asyncio.Event], Awaitable[None]]


def served(story: Story, patch: pytest.MonkeyPatch, stalled_s: float = 0.3, **settings: Any) -> None:
    """Play a story with a server whose one page never ends, and that tells when a reader of it is gone."""
    patch.setattr(connections, "_STALLED_S", stalled_s)
    patch.setattr(connections, "_IDLE_S", 0.2)

    async def play() -> None:
        gone = asyncio.Event()

        async def endless(scope: Any, receive: Any, send: Any) -> None:
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

        config = uvicorn.Config(endless, port=0, http=BoundedConnection, ws="none", lifespan="off", log_config=None, **settings)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        async with asyncio.timeout(60):
            while not server.started:
                assert not serving.done()
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            await story(host, port, gone)
            server.should_exit = True
            await serving

    asyncio.run(play())


def test_who_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(host: str, port: int, gone: asyncio.Event) -> None:
        _, writer = await asyncio.open_connection(host, port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await gone.wait()
        writer.close()

    served(story, monkeypatch)


def test_who_takes_it_slowly_but_takes_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(host: str, port: int, gone: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(200):  # in all longer than what cuts off whoever takes nothing
            assert await reader.read(1 << 20)
            await asyncio.sleep(0.015)
        assert not gone.is_set()
        writer.close()
        await gone.wait()

    served(story, monkeypatch, stalled_s=2.0)


@pytest.mark.parametrize(
    "said", [b"", b"GET /short HT", b"GET /short HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /short HTTP/1.1\r\nhost: x\r\n\r\nGET /sho"]
)
def test_who_asks_nothing_or_never_finishes_asking_is_cut_off(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    async def story(host: str, port: int, _gone: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(said)
        answer = await reader.read(1000)
        assert answer.endswith(b"ok") == (b"\r\n\r\n" in said)
        while answer:
            try:
                answer = await reader.read(1000)
            except ConnectionError:
                break
        writer.close()

    served(story, monkeypatch, timeout_keep_alive=60)
