"""Large calls on a libp2p stream of their own: less than half the work of hivemind's unary calls, which share one socket.

A stream carries one call: the request, then the answer, each after its length (4 bytes, big-endian). What the bytes mean, and who may
call, is ``network.node``'s business. Each stream is an open file of this process, hence the bounds. A caller is waited for as long as it
sends, or takes, ``runtime.in_flight.MIN_BYTES_PER_S``; where others want its place it has to be quicker about it.
"""

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.proto import p2pd_pb2

from manta_swarm.network import timeouts
from manta_swarm.network.daemon import ask
from manta_swarm.network.dialling import Dialling
from manta_swarm.network.rates import CallRates
from manta_swarm.network.rpc import LARGE_BYTES, MAX_MESSAGE_BYTES
from manta_swarm.network.traffic import PIECE_BYTES, Flow, Traffic
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.runtime.in_flight import InboundCall, InboundCalls, OutboundLimit

MIN_REQUEST_BYTES = LARGE_BYTES
MAX_STREAMS_IN_ALL = 256  # that others may have open to us, and a quarter of the files that this process may have open
MAX_STREAMS = 16  # that one peer may have open to us
MAX_OWN_STREAMS = 8  # that we have open to one peer: half of what it lets us have, for it sees the end of a call later than we do
MAX_HELD_BYTES = 256 * 1024 * 1024  # of requests, as they arrive, and of their answers
_LENGTH_BYTES = 4
_NO_S = 1.0  # for a caller to read that it is refused
_PIECE_BYTES = 262_144  # of a request that are read at a time
_TAKEN_BYTES = 65_536  # of an answer that a caller has to take at a time
_MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 1  # an answer has a byte in front


_GONE = (TimeoutError, ConnectionError, asyncio.IncompleteReadError)  # what reading and writing raise when the other side is gone

Answer = Callable[[PeerID, bytes], Awaitable[bytes]]


def max_streams() -> int:
    """Return how many streams of others this process can afford."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_STREAMS_IN_ALL if files == resource.RLIM_INFINITY else max(1, min(MAX_STREAMS_IN_ALL, files // 4))


class Streams:
    """The large calls of one node, its own and those of others."""

    def __init__(self, p2p: P2P, busy: bytes, traffic: Traffic, rates: CallRates, dialling: Dialling) -> None:
        """Use the daemon ``p2p``; ``traffic`` counts the bytes of all calls, and holds them back where it has limits.

        A call that is one too many by ``rates`` is answered with ``busy`` and why, before its request is read. ``dialling`` opens the
        connections that own calls need.
        """
        self._p2p = p2p
        self._busy = busy
        self._rates = rates
        self._dialling = dialling
        self._traffic = traffic
        self._answering: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._untaken: set[asyncio.Task[Any]] = set()  # of those that answer: whose answer is on its way
        self.calls = InboundCalls(total=max_streams(), each=MAX_STREAMS, max_bytes=MAX_HELD_BYTES, idle_s=timeouts.STREAM_IDLE_S)
        self._outbound = OutboundLimit(total=max_streams() // 2, each=MAX_OWN_STREAMS)

    async def serve(self, name: str, answer: Answer) -> None:
        """Answer the calls of ``name``; ``answer`` gets the authenticated caller, and is cancelled when that hangs up."""

        async def on_stream(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.current_task()
            assert connection is not None
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)
            # A task of its own: asyncio's server, which runs this function, complains when what it runs is cancelled.
            task = asyncio.create_task(self._answer_one(name, answer, info.peer_id, reader, writer))
            self._answering.add(task)
            try:
                await asyncio.wait({task})
            finally:
                self._answering.discard(task)
                _hang_up(writer)
            if task in self._untaken:
                self._untaken.discard(task)
                await self._disconnect(info.peer_id)
            if not task.cancelled():
                task.result()

        await self._p2p.add_binary_stream_handler(name, on_stream)

    async def call(self, peer: PeerID, name: str, request: bytes) -> bytes:
        """Return the answer of ``peer``; the caller bounds the wait.

        Raises:
            P2PDaemonError, ControlFailure, ConnectionError, IncompleteReadError: no way to the peer, or it hung up.
            EncodingError: the answer is too large.
            Unreachable: there is no connection, and none may be opened.
        """
        opening = p2pd_pb2.StreamOpenRequest(peer=peer.to_bytes(), proto=[name])
        async with self._outbound.turn(peer.to_bytes()):
            await self._dialling.open(peer.to_bytes())
            _, reader, writer = await ask(self._p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=opening))
            try:
                await _write_frame(writer, request, self._traffic.sent, is_own=True)
                return await _read_frame(reader, self._traffic.received)
            finally:
                _hang_up(writer)

    async def close(self) -> None:
        """End the calls that are being answered."""
        for task in self._answering:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _answer_one(
        self, name: str, answer: Answer, caller: PeerID, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        key = caller.to_bytes()
        place = self.calls.begin(key, self._rates.address_of_peer(key))
        if place is None:
            return  # hanging up at once is the quickest no
        with place:
            with place.held():
                refusal = await self._rates.refusal(key, name)
            self.calls.locate(key, self._rates.address_of_peer(key))
            if refusal is not None:
                await self._refuse(refusal, reader, writer)
                return
            try:
                request = await _read_request(reader, self._traffic.received, place)
            except (*_GONE, EncodingError):
                return  # the caller went away, or is no caller of ours
            await self._answer_while_there(answer(caller, request), place, reader, writer)

    async def _answer_while_there(
        self, answering: Awaitable[bytes], place: InboundCall, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send an answer when it is there, unless the caller hangs up first: it has nothing more to say before."""
        leaving = asyncio.create_task(_end_of(reader))
        try:
            with _cancelled_by(leaving):
                response = await answering
            place.charge()  # for the time until now, in which a caller may have asked for what takes long
            place.grow(len(response))
            self._untaken.add(place.task)
            try:
                await _write_answer(writer, response, self._traffic.sent, place)
                async with _timeout(place):
                    await leaving  # the caller hangs up first: a stream closed at this end may lose the answer on its way
                place.charge(len(response))
            except (ConnectionError, asyncio.IncompleteReadError):
                self._untaken.discard(place.task)  # it hung up in the middle, which leaves nothing open
            except TimeoutError:
                pass  # it is there, and does not take its answer
        finally:
            if leaving.done():
                self._untaken.discard(place.task)
            leaving.cancel()

    async def _disconnect(self, caller: PeerID) -> None:
        """End the connections of a caller that does not take an answer: the daemon would keep its stream, and a file, as long as they."""
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=p2pd_pb2.DisconnectRequest(peer=caller.to_bytes()))
        with contextlib.suppress(*_GONE, P2PDaemonError):
            async with asyncio.timeout(timeouts.CONNECT_S):
                _, _, writer = await ask(self._p2p, request)
                writer.close()

    async def _refuse(self, why: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say no, and give a caller that has little to send the time to read it; who has much learns it from the hanging up."""
        with contextlib.suppress(*_GONE):
            async with asyncio.timeout(_NO_S):
                await _write_frame(writer, self._busy + why.encode(), self._traffic.sent, is_own=False)
                while await reader.read(_PIECE_BYTES):  # until it hangs up
                    pass


def _timeout(place: InboundCall) -> asyncio.Timeout:
    """Return a timeout after which the caller has been waited for too long."""
    return asyncio.timeout(max(timeouts.STREAM_S - place.behind_s, 0.0))


async def _end_of(reader: asyncio.StreamReader) -> None:
    """Return once the other side has hung up, or is gone."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.read(1)


@contextlib.contextmanager
def _cancelled_by(leaving: "asyncio.Task[None]") -> Iterator[None]:
    """Cancel the current task if ``leaving`` is done before what is inside."""
    this = asyncio.current_task()
    assert this is not None

    def on_leave(_: object) -> None:
        this.cancel()

    leaving.add_done_callback(on_leave)
    try:
        yield
    finally:
        leaving.remove_done_callback(on_leave)


def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a stream now: with bytes that the other side does not take, a mere ``close`` would keep it open for ever."""
    if writer.transport.get_write_buffer_size():
        writer.transport.abort()
    else:
        writer.close()


async def _read_request(reader: asyncio.StreamReader, flow: Flow, place: InboundCall) -> bytes:
    """Return a caller's request; ``place`` counts its bytes as they arrive, for a length alone is no reason to keep room."""
    async with _timeout(place):
        size = _size(await reader.readexactly(_LENGTH_BYTES))
    flow.count(_LENGTH_BYTES)
    pieces = bytearray()
    while len(pieces) < size:
        async with _timeout(place):
            piece = await reader.read(min(size - len(pieces), _piece_bytes(flow)))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size - len(pieces))
        place.moved(len(piece))
        place.earn(len(piece))
        place.grow(len(piece))
        pieces += piece
        with place.held():
            await flow.take(len(piece), is_own=False)
    return bytes(pieces)


async def _write_answer(writer: asyncio.StreamWriter, data: bytes, flow: Flow, place: InboundCall) -> None:
    """Send an answer in pieces, each of which the caller has to take."""
    flow.count(_LENGTH_BYTES)
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    left = memoryview(data)
    while left:
        piece = left[: min(_TAKEN_BYTES, _piece_bytes(flow))]
        with place.held():
            await flow.take(len(piece), is_own=False)
        writer.write(piece)
        left = left[len(piece) :]
        async with _timeout(place):
            await writer.drain()
        place.moved(len(piece))


def _piece_bytes(flow: Flow) -> int:
    """Return how much is read at a time: what is not read is not sent for long, since the daemon's window is small."""
    return _PIECE_BYTES if flow.limit is None else PIECE_BYTES


def _size(length: bytes) -> int:
    size = int.from_bytes(length, "big")
    if size > _MAX_FRAME_BYTES:
        raise EncodingError(f"a message of {size} bytes where at most {_MAX_FRAME_BYTES} are allowed")
    return size


async def _read_frame(reader: asyncio.StreamReader, flow: Flow) -> bytes:
    """Return the answer to an own call."""
    size = _size(await reader.readexactly(_LENGTH_BYTES))
    if flow.limit is None:
        frame = await reader.readexactly(size)
        flow.count(size + _LENGTH_BYTES)
        return frame
    flow.count(_LENGTH_BYTES)
    pieces = bytearray()
    while len(pieces) < size:
        piece = await reader.read(min(size - len(pieces), _piece_bytes(flow)))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size - len(pieces))
        pieces += piece
        await flow.take(len(piece), is_own=True)
    return bytes(pieces)


async def _write_frame(writer: asyncio.StreamWriter, data: bytes, flow: Flow, *, is_own: bool) -> None:
    flow.count(_LENGTH_BYTES)
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    left = memoryview(data)
    while left:
        piece = left if flow.limit is None else left[:PIECE_BYTES]
        await flow.take(len(piece), is_own=is_own)
        writer.write(piece)
        left = left[len(piece) :]
        await writer.drain()
    await writer.drain()
