"""Server-sent events: what happened, to everybody who looks on, each event made once. A client that is slow gets the newest of each kind.

A client's place is bounded: one event of each kind waits for it. Who takes nothing at all is cut off by ``network.http_server``.
"""

import asyncio
import json
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from manta_swarm.aggregator.monitor.shown import Json
from manta_swarm.runtime.tasks import wait_within

KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = b": keep-alive\n\n"


class _Client:
    """One open stream."""

    def __init__(self) -> None:
        self.waiting: dict[str, bytes] = {}  # by kind, in the order in which they came
        self.wake = asyncio.Event()
        self.is_gone = False

    def take(self) -> bytes:
        data = b"".join(self.waiting.values())
        self.waiting.clear()
        self.wake.clear()
        return data


class EventStreams:
    """Sends events to all clients that have a stream open."""

    def __init__(self, limit: int, greeting: Callable[[], list[tuple[str, Json]]]) -> None:
        """Have none yet, and at most ``limit``; each begins with the events of ``greeting``."""
        self.limit = limit
        self.refused = 0
        self.is_closing = False
        self._greeting = greeting
        self._clients: set[_Client] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def is_full(self) -> bool:
        """Whether one more is to be refused."""
        return len(self._clients) >= self.limit

    def publish(self, kind: str, data: Json) -> None:
        """Send an event to all clients."""
        self._number += 1
        event = _event(kind, self._number, data)
        for client in self._clients:
            client.waiting.pop(kind, None)
            client.waiting[kind] = event
            client.wake.set()

    def close(self) -> None:
        """End all streams."""
        self.is_closing = True
        for client in self._clients:
            client.is_gone = True
            client.wake.set()

    async def serve(self, scope: Scope, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer one request with a stream, until its client goes."""
        client = _Client()
        self._clients.add(client)
        leaving = asyncio.create_task(_wait_for_end(client, receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            client.waiting = {kind: _event(kind, self._number, data) for kind, data in self._greeting()}
            while not client.is_gone and not self.is_closing:
                await send({"type": "http.response.body", "body": client.take() or _KEEP_ALIVE, "more_body": True})
                await wait_within(client.wake, KEEP_ALIVE_S)
            if not client.is_gone or self.is_closing:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._clients.discard(client)
            leaving.cancel()
            await asyncio.wait((leaving,))  # not "await leaving": its cancellation and that of this task would look alike
            if not leaving.cancelled():
                leaving.result()  # a fault in it is one of this stream


async def _wait_for_end(client: _Client, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    client.is_gone = True
    client.wake.set()


def _event(kind: str, number: int, data: Json) -> bytes:
    return f"event: {kind}\nid: {number}\ndata: {json.dumps(data, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()
