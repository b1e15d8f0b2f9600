"""HTTP servers that are parts of programs: their connections are bounded, and they end with a context.

Every connection takes one of a bounded number of places before a byte of it is read, also before TLS. Where all are taken a newcomer gets
the place of a connection that holds it for nothing (``runtime.in_flight``): one that asks nothing, sends slower than ``_LEAST_BYTES_S``, or
takes nothing of what is sent; of the address that has most places, the idlest one. Whoever moves as fast as that is not cut off for a
newcomer of its own address, nor for one whose address has about as many places, and whoever is being served for nobody.
"""

import asyncio
import contextlib
import math
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from manta_swarm.network.rates import network_of
from manta_swarm.protocol.errors import OwnFault
from manta_swarm.runtime.in_flight import InFlight, Occupant

PROXIES = ("127.0.0.1", "::1")  # whose X-Forwarded-For is believed, and who may hold all places

_ASKING_S = 10.0  # for TLS and the whole head of a request, from the connection's start or the answer before
_LAG_S = 20.0  # that a request may lag behind
_TAKES_S = (
    30.0  # without taking anything of what is sent, until it lags: so long may a slow line empty the system's buffer before more fits in
)
_LOOK_S = 1.0  # between two looks at a connection
_LEAST_BYTES_S, _BEGINS_S = 4000.0, 2.0  # of what a request sends: a third of a line of 0.1 Mbit/s, once it has begun
_KEEP_ALIVE_S = 5  # between two requests of a connection
_BACKLOG = 128  # connections that are accepted at once: so many files more than there are places may be open for a moment
_TOLD = 64  # connections beyond all places that get 503, without TLS; further ones are reset
_MAX_HEAD_BYTES = 16_384


Places = InFlight[Occupant]  # of connections, or of what else strangers may hold; their keys are their addresses


class BoundedConnection(H11Protocol):  # type: ignore[misc,unused-ignore]  # Any, where the extra is not installed
    """A connection of a server's that has a place, and ends if it holds that for nothing for too long. Is ``Occupant``."""

    address, num_bytes, ahead_s = "", 0, 0.0

    def __init__(self, places: Places, tls: ssl.SSLContext | None, **settings: Any) -> None:
        """Prepare; ``settings`` are uvicorn's. The application finds this connection in the state of its requests."""
        super().__init__(**settings)
        self.app_state = {**self.app_state, "connection": self}
        self.key = ""  # what it is counted as
        self._places = places
        self._tls = tls
        self._wire: asyncio.Transport | None = None  # below TLS
        self._look: asyncio.TimerHandle | None = None
        self._is_open = self._is_lost = self._was_closing = False
        self._early = b""  # of what TLS gave before this connection was open
        self._since_s = 0.0  # when it was made, its request began, or the answer was complete
        self._received = 0  # bytes since then
        self._stalled_s: float | None = None  # since when its client takes nothing
        self._last_cycle: object = None

    def connection_made(self, transport: Any) -> None:
        self._wire, self._since_s = transport, self.loop.time()
        peer = transport.get_extra_info("peername")
        self.key = counted_as(str(peer[0])) if peer else ""
        if not self._places.take(self) and (self._tls is not None or len(self.connections) >= self._places.total + _TOLD):
            transport.abort()
            return
        self._look = self.loop.call_later(_LOOK_S, self._look_again)
        if self._tls is None:
            self._open(transport)
            return
        transport.pause_reading()
        securing = self.loop.create_task(self._secure(transport, self._tls))
        self.tasks.add(securing)
        securing.add_done_callback(self.tasks.discard)

    async def _secure(self, wire: asyncio.Transport, tls: ssl.SSLContext) -> None:
        if self._is_lost:
            return
        try:
            secured = await self.loop.start_tls(wire, self, tls, server_side=True, ssl_handshake_timeout=_ASKING_S)
        except OSError:  # no TLS, or not in time
            secured = None
        if secured is None or self._is_lost:  # asyncio tells the connection of no loss during the handshake
            self._end()
            wire.abort()
            return
        self._open(secured)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def _open(self, transport: Any) -> None:
        self._is_open = True
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._end()
        if self._is_open:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            self._early += data
            return
        self._received += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not self._last_cycle:  # a request's head is whole
            self._last_cycle = self.cycle
            self._since_s, self._received = self.loop.time(), 0

    def on_response_complete(self) -> None:
        self._since_s, self._received = self.loop.time(), 0
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_s = self.loop.time()

    def resume_writing(self) -> None:
        self._stalled_s = None
        super().resume_writing()

    @property
    def _is_asking(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def lag_s(self, _ahead_s: float = 0.0) -> float:
        """Return for how long it has held its place for nothing; at most 0: it moves; -inf: it is being served. See ``Occupant``."""
        now_s = self.loop.time()
        if self._is_asking:
            return now_s - self._since_s
        if self._stalled_s is not None:
            return now_s - self._stalled_s - _TAKES_S
        if self.cycle.more_body and not self.flow.read_paused:
            return now_s - self._since_s - _BEGINS_S - self._received / _LEAST_BYTES_S
        return -math.inf

    def cut(self) -> None:
        """See ``Occupant``."""
        if self._wire is not None:
            self._wire.abort()

    def _look_again(self) -> None:
        is_closing = self._is_open and bool(self.transport.is_closing())
        if self.lag_s() > (_ASKING_S if self._is_asking else _LAG_S) or (is_closing and self._was_closing):
            self.cut()
            return
        self._was_closing = is_closing
        self._look = self.loop.call_later(_LOOK_S, self._look_again)

    def _end(self) -> None:
        self._places.leave(self)
        if self._look is not None:
            self._look.cancel()


def counted_as(host: str) -> str:
    """Return what connections and requests of a host are counted as: of IPv6 its network. Each address of this computer counts."""
    return network_of(host) or host


def allow_files(wanted: int) -> int:
    """Let this process have ``wanted`` files open, if the system allows it; return how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or most <= soft:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        return soft
    return most


def config_of(app: Any, places: Places, tls: ssl.SSLContext | None = None, *, log_level: str | None = "critical") -> uvicorn.Config:
    """Return a server's configuration, whose connections have these places."""
    return uvicorn.Config(
        app,
        http=partial(BoundedConnection, places, tls),  # type: ignore[arg-type]  # uvicorn calls it, and asks for no more
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        log_level=log_level,
        access_log=False,
        forwarded_allow_ips=list(PROXIES),
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=places.total + 1,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )


class _Server(uvicorn.Server):  # type: ignore[misc,unused-ignore]
    """A server that leaves signals to the program that it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def answering(
    app: Any, listening: socket.socket, places: Places, whose: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Answer on a socket until the end of the context, which begins once somebody would be answered.

    Args:
        app: the ASGI application that answers.
        listening: already bound.
        places: of its connections.
        whose: server it is, for the fault that nobody expects.
        tls: None for plain HTTP.
    """
    server = _Server(config_of(app, places, tls))
    task = asyncio.create_task(server.serve([listening]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise OwnFault(f"the {whose}'s HTTP server ended before it began")
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task
        places.close()
