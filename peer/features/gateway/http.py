"""A gateway's HTTP: strangers' requests, bounded in size, time and number, brought to ``peer.features.gateway.service``, and its answers
brought back.

Packed records both ways. What travels is signed and named by digest, so a reverse proxy may stand in front and do TLS; with a certificate
the gateway does it itself. Addresses are those of connections, or, from a proxy on this computer, what its X-Forwarded-For says.
"""

import asyncio
import contextlib
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from manta_swarm.network.admission_filter import NotAdmitted
from manta_swarm.network.http_server import PROXIES, BoundedConnection, Places, allow_files, answering, counted_as
from manta_swarm.network.light_pay import PAY
from manta_swarm.network.rates import TokenBuckets
from manta_swarm.network.traffic import PIECE_BYTES, Traffic
from manta_swarm.peer.features.gateway.payouts import Payouts
from manta_swarm.peer.features.gateway.service import GatewayService
from manta_swarm.peer.train.work import now_ms
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault, Unreachable
from manta_swarm.protocol.light import BLOBS, LEASES, MAX_ENTER_BYTES, MAX_REQUEST_BYTES, PASSES, RETURNS, WELCOME, WORDS
from manta_swarm.runtime.listen_address import ListenAddress

_REQUEST_S = 120.0  # from its head to the last byte of its answer: 5 MB over a line of 0.4 Mbit/s
_MAX_CONNECTIONS, _MAX_OF_ADDRESS = 512, 64  # of an address on this computer, which may be a proxy, as many as in all
_FILES_A_CONNECTION = 4  # of those that the peer may have open, for its streams and files are the others
_MAX_RETURNS, _RETURNS_BYTES = 64, 2**27  # that are read or looked into at the same time; half of them of one address
_RETURN_S = 60.0  # for one to arrive: half a megabyte over a line of 0.1 Mbit/s
_REQUESTS_A_SECOND, _AT_ONCE = 20.0, 80.0  # of one address
_ALL_REQUESTS_A_SECOND, _ALL_AT_ONCE = 400.0, 800.0
_GOODBYE_S = 5.0  # a finished run's gateway tells so for so long

Answer = Callable[[Request], Awaitable[Response]]


class _Busy(Exception):
    """Ends a request with an HTTP status, before the gateway's service answers it."""

    def __init__(self, status: int, reason: str, retry_s: int = 1) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_s = retry_s


@dataclass(eq=False)
class _Return:
    """A return that is being read, or looked into. Is ``runtime.in_flight.Occupant``."""

    key: str  # the address that it comes from
    connection: BoundedConnection
    address: str = ""
    num_bytes: int = 0
    ahead_s: float = 0.0

    def lag_s(self, _ahead_s: float) -> float:
        """See ``Occupant``."""
        return self.connection.lag_s()

    def cut(self) -> None:
        """See ``Occupant``."""
        self.connection.cut()


class _App:
    """Answers the HTTP requests of light contributors."""

    def __init__(self, service: GatewayService, traffic: Traffic, payouts: Payouts | None) -> None:
        self._service = service
        self._payouts = payouts
        self._traffic = traffic
        returns = max(1, min(_MAX_RETURNS, _RETURNS_BYTES // service.max_return_bytes))
        self._returns = Places(returns, (returns + 1) // 2)
        self._rates: TokenBuckets[str] = TokenBuckets(_REQUESTS_A_SECOND, _AT_ONCE)
        self._all: TokenBuckets[str] = TokenBuckets(_ALL_REQUESTS_A_SECOND, _ALL_AT_ONCE)
        self._routed = Starlette(
            routes=[
                Route(WELCOME, self._answering(self._welcome), methods=["GET"]),
                Route(PASSES, self._answering(self._enter), methods=["POST"]),
                Route(LEASES, self._answering(self._lease), methods=["POST"]),
                Route(BLOBS + "/{digest}", self._answering(self._blob), methods=["GET"]),
                Route(RETURNS, self._answering(self._take), methods=["POST"]),
                Route(WORDS + "/{name}", self._answering(self._word), methods=["GET"]),
                Route(PAY + "/{contribution}/{key}", self._answering(self._pay), methods=["GET"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, within a bounded time: whoever is slower finds the connection closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REQUEST_S):
                await self._routed(scope, self._counted(receive), self._held_back(send))

    def _counted(self, receive: Receive) -> Receive:
        """Receive no faster than the peer may."""

        async def received() -> Message:
            message = await receive()
            await self._traffic.received.take(len(message.get("body", b"")), is_own=False)
            return message

        return received

    def _held_back(self, send: Send) -> Send:
        """Send no faster than the peer may: what is its own goes first."""
        sent = self._traffic.sent

        async def send_in_turn(message: Message) -> None:
            body = message.get("body", b"")
            while sent.limit is not None and len(body) > PIECE_BYTES:
                await sent.take(PIECE_BYTES, is_own=False)
                await send({**message, "body": body[:PIECE_BYTES], "more_body": True})
                body = body[PIECE_BYTES:]
            await sent.take(len(body), is_own=False)
            await send({**message, "body": body} if body else message)

        return send_in_turn

    def _answering(self, answer: Answer) -> Answer:
        async def answered(request: Request) -> Response:
            try:
                self._check_rates(_address(request))
                return await answer(request)
            except _Busy as error:
                return PlainTextResponse(error.reason, error.status, {"Retry-After": str(error.retry_s)})
            except NotAdmitted as error:
                return PlainTextResponse(str(error)[:500], 403)
            except RemoteFault as error:
                return PlainTextResponse(str(error)[:500], 400)
            except ClientDisconnect:
                return Response(status_code=400)

        return answered

    def _check_rates(self, address: str) -> None:
        for rates, name, who in ((self._rates, address, "this address"), (self._all, "", "all addresses together")):
            wait_s = math.ceil(rates.wait_ms(name, now_ms()) / 1000)
            if wait_s:
                raise _Busy(429, f"too many requests from {who}: come back in {wait_s} s", wait_s)

    async def _welcome(self, _: Request) -> Response:
        return _bytes(self._service.welcome)

    async def _enter(self, request: Request) -> Response:
        if self._service.entrance is None:
            raise _Busy(404, "everybody may take part in this run")
        try:
            return _bytes(pack(await self._service.entrance.enter(await _body(request, MAX_ENTER_BYTES))))
        except Unreachable as error:
            raise _Busy(503, "the run's log does not answer the gateway") from error

    async def _lease(self, request: Request) -> Response:
        return _bytes(pack(await self._service.lease(await _body(request, MAX_REQUEST_BYTES), _address(request))))

    async def _blob(self, request: Request) -> Response:
        found = self._service.blob(_digest(request.path_params["digest"]))
        return PlainTextResponse("no lease names this", 404) if found is None else _bytes(found)

    async def _take(self, request: Request) -> Response:
        back = _Return(_address(request), request.state.connection)
        if not self._returns.take(back):
            raise _Busy(503, "too many come back at once")
        try:
            return _bytes(pack(await self._service.take(await self._returned(request))))
        finally:
            self._returns.leave(back)

    async def _returned(self, request: Request) -> bytes:
        try:
            async with asyncio.timeout(_RETURN_S):
                return await _body(request, self._service.max_return_bytes)
        except TimeoutError as error:
            raise _Busy(408, "too slow") from error

    async def _word(self, request: Request) -> Response:
        found = self._service.word(_digest(request.path_params["name"]))
        return PlainTextResponse("not known here", 404) if found is None else _bytes(pack(found))

    async def _pay(self, request: Request) -> Response:
        contribution, key = (_digest(request.path_params[name]) for name in ("contribution", "key"))
        try:
            found = None
            if self._payouts is not None:
                found = await self._payouts.pay(contribution, key, self._service.roster(contribution))
        except Unreachable as error:
            raise _Busy(503, "the run's log does not answer the gateway") from error
        return PlainTextResponse("not known here", 404) if found is None else _bytes(found)


def _address(request: Request) -> str:
    return counted_as(request.client.host) if request.client is not None else ""


def _digest(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32 or digest.hex() != text:
        raise _Busy(404, "not known here")
    return digest


async def _body(request: Request, max_bytes: int) -> bytes:
    """Return what a request brings."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise _Busy(413, f"more than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _bytes(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


@contextlib.asynccontextmanager
async def serving(
    service: GatewayService, listen_address: ListenAddress, traffic: Traffic | None = None, payouts: Payouts | None = None
) -> AsyncIterator[str]:
    """Answer light contributors until the end of the context; yields the address that they are told, ``http://HOST:PORT/``.

    What is sent and received is counted in ``traffic``, and held back by its limits; headers are not. ``payouts`` knows what contributors
    were paid; without one nothing is known of that.

    Raises:
        UserError: see ``ListenAddress.listen``.
    """
    listening, listen_address = listen_address.listen()
    tls = None
    if listen_address.certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(listen_address.certificate, listen_address.key)
    files = allow_files(_FILES_A_CONNECTION * _MAX_CONNECTIONS)
    places = Places(min(_MAX_CONNECTIONS, files // _FILES_A_CONNECTION), _MAX_OF_ADDRESS, spared=PROXIES)
    async with answering(_App(service, traffic or Traffic(), payouts), listening, places, "gateway", tls):
        yield listen_address.url


async def say_goodbye() -> None:
    """Let those who ask again know that the run is finished."""
    await asyncio.sleep(_GOODBYE_S)
