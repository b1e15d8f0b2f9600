"""Large calls on a libp2p stream of their own: less than half the work of hivemind's unary calls, which share one socket.

A stream carries one call: the request, then the answer, each after its length (4 bytes, big-endian). What the bytes mean, and who may
call, is ``swarm.node``'s business.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2

from protocol.errors import EncodingError
from swarm.rpc import MAX_MESSAGE_BYTES

MIN_REQUEST_BYTES = 65_536  # of a call that is worth opening a stream
MAX_STREAMS = 64  # that one peer may have open to us
_LENGTH_BYTES = 4
_READ_TIMEOUT_S = 60.0
_MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 1  # an answer has a byte in front

_GONE = (TimeoutError, ConnectionError, asyncio.IncompleteReadError)  # what reading and writing raise when the other side is gone

Answer = Callable[[PeerID, bytes], Awaitable[bytes]]


class Streams:
    """The large calls of one node, its own and those of others."""

    def __init__(self, p2p: P2P) -> None:
        """Use the daemon ``p2p``."""
        self._p2p = p2p
        self._answering: set[asyncio.Task[None]] = set()
        self._open: Counter[PeerID] = Counter()  # to us, by peer

    async def serve(self, name: str, answer: Answer) -> None:
        """Answer the calls of ``name``; ``answer`` gets the authenticated caller."""

        async def on_stream(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                if self._open[info.peer_id] >= MAX_STREAMS:
                    return
                # A task of its own: asyncio's server, which runs this function, complains when what it runs is cancelled.
                task = asyncio.create_task(_answer_one(answer, info.peer_id, reader, writer))
                self._answering.add(task)
                self._open[info.peer_id] += 1
                try:
                    await asyncio.wait({task})
                finally:
                    self._answering.discard(task)
                    self._open[info.peer_id] -= 1
                    self._open += Counter()  # forgets who has none open
            if not task.cancelled():
                task.result()

        await self._p2p.add_binary_stream_handler(name, on_stream)

    async def call(self, peer: PeerID, name: str, request: bytes) -> bytes:
        """Return the answer of ``peer``; the caller bounds the wait.

        Raises:
            P2PDaemonError, ControlFailure, ConnectionError, IncompleteReadError: no way to the peer, or it hung up.
            EncodingError: the answer is too large.
        """
        reader, writer = await self._open_stream(peer, name)
        try:
            await _write_frame(writer, request)
            response = await _read_frame(reader)
        except BaseException:
            writer.transport.abort()  # what is not sent yet is not to be sent any more
            raise
        writer.close()
        return response

    async def close(self) -> None:
        """End the calls that are being answered."""
        for task in self._answering:
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering)

    async def _open_stream(self, peer: PeerID, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a new stream. hivemind's own function leaves the socket open when it fails or is cut off."""
        reader, writer = await self._p2p._client.control.daemon_connector.open_connection()
        try:
            opening = p2pd_pb2.StreamOpenRequest(peer=peer.to_bytes(), proto=[name])
            await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=opening))
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
            raise_if_failed(response)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer


async def _answer_one(answer: Answer, caller: PeerID, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            request = await _read_frame(reader)
    except (*_GONE, EncodingError):
        return  # the caller went away, or is no caller of ours
    response = await answer(caller, request)
    with contextlib.suppress(*_GONE):
        async with asyncio.timeout(_READ_TIMEOUT_S):
            await _write_frame(writer, response)
            await reader.read(1)  # the caller hangs up first: a stream closed at this end may lose the answer on its way


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if size > _MAX_FRAME_BYTES:
        raise EncodingError(f"a message of {size} bytes where at most {_MAX_FRAME_BYTES} are allowed")
    return await reader.readexactly(size)


async def _write_frame(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    writer.write(data)
    await writer.drain()
