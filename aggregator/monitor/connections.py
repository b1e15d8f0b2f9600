"""Connections of the monitor's HTTP server: bounded in number, and none that only holds its place."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

BESIDE_STREAMS = 128  # connections that are answered beside all event streams; further ones get 503
_REFUSED = 128  # that may be told so at a time; others are cut off
_STALLED_S = 20.0  # a client that takes nothing of what is sent
_IDLE_S = 10.0  # between two looks: who is without a request at both is cut off


class BoundedConnection(H11Protocol):  # type: ignore[misc,unused-ignore]  # Any, where the extra is not installed
    """A connection that ends if its client takes nothing, or asks nothing."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._stalled: asyncio.TimerHandle | None = None
        self._last: tuple[int, bool] | None = None
        self._look = asyncio.get_running_loop().call_later(_IDLE_S, self._look_again)
        most = (self.limit_concurrency or 0) + _REFUSED
        if len(self.connections) > most:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = asyncio.get_running_loop().call_later(_STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _look_again(self) -> None:
        is_idle = self.cycle is None or bool(self.cycle.response_complete)
        seen = (id(self.cycle), is_idle)
        if is_idle and seen == self._last:
            self.transport.abort()
            return
        self._last = seen
        self._look = asyncio.get_running_loop().call_later(_IDLE_S, self._look_again)
