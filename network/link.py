"""One direct connection to another peer: calls, their answers, and chunks of vectors, in frames. ``network.links`` says who may connect.

A frame is a header of 39 bytes (kind, number of the call, bytes that follow; of a chunk its tag, turn and first value) and that many
bytes. Chunks are read into the memory that their receiver gives for them, so a vector is copied once. Whoever breaks these rules is
cut off.
"""

import asyncio
import itertools
import socket
import struct
from typing import Protocol, cast

from manta_swarm.network import timeouts
from manta_swarm.network.rpc import ANSWER, BUSY, MAX_MESSAGE_BYTES, REFUSAL, Busy, Refused, refusal
from manta_swarm.network.traffic import Flow, Traffic
from manta_swarm.protocol.errors import MantaError, RemoteFault, Unreachable
from manta_swarm.protocol.signing import PublicKey

TAG_BYTES = 16
CHUNK_VALUES = 2**16  # float32 values of a chunk
MAX_CHUNK_BYTES = 4 * CHUNK_VALUES
_HEADER = struct.Struct(">BQI16sHQ")  # kind, number of the call, bytes that follow; tag, turn and first value of a chunk
_CALL, _ANSWER, _CANCEL, _CHUNK = range(4)
_MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 1024
_MAX_ANSWERING = 64  # calls of the other side at a time
_WRITE_AHEAD_BYTES = 2**16  # of TLS, that wait in this process
_SEND_BUFFER_BYTES = 2**20  # that are asked of the system for what is under way; it gives what it allows
_NO_TAG = bytes(TAG_BYTES)


class Receiver(Protocol):
    """Takes the chunks of the vectors under one tag."""

    def buffer(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> memoryview | None:
        """Return the memory for a chunk; None: it is not wanted any more, and dropped.

        Raises:
            RemoteFault: the sender may not send this.
        """
        ...

    def received(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> None:
        """The memory that was returned for this chunk has been written."""
        ...


class Side(Protocol):
    """This end of all links of a peer."""

    def receiver(self, tag: bytes) -> Receiver | None:
        """Return who takes the chunks under this tag; None: it is not known yet."""
        ...

    async def answer(self, peer: PublicKey, method: str, request: bytes) -> bytes:
        """Return the answer to a call; raises as ``network.rpc.Handler``."""
        ...

    def lost(self, link: "Link", reason: str) -> None:
        """The link is over. ``reason``: what the other side did wrong; empty: nothing."""
        ...


class Link(asyncio.BufferedProtocol):
    """A connection to one peer, whose key is known. All methods run in one event loop."""

    def __init__(
        self, peer: PublicKey, side: Side, *, is_local: bool, dialled_by: PublicKey, certificate: bytes, traffic: Traffic | None
    ) -> None:
        """Prepare; the event loop connects it.

        Args:
            peer: the key at the other end.
            side: this end of all links.
            is_local: the other end is on this host.
            dialled_by: whose connection it is.
            certificate: which the other end has to have, DER; empty: the connection is not encrypted.
            traffic: counts and holds back what passes; None: it does not leave this host.
        """
        self.peer = peer
        self.is_local = is_local
        self.dialled_by = dialled_by
        self._side = side
        self._certificate = certificate
        self._traffic = traffic
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._head = memoryview(bytearray(_HEADER.size))
        self._target = self._head  # what is being read
        self._filled = 0
        self._frame: tuple[int, int, int, bytes, int, int] | None = None  # the header of what is being read; None: a header is
        self._receiver: Receiver | None = None
        self._unclaimed: asyncio.TimerHandle | None = None  # while a chunk waits for its receiver
        self._held: asyncio.Task[None] | None = None  # while reading is held back by a limit
        self._is_paused = False
        self._fault = ""
        self.is_closed = False
        self.closed = asyncio.Event()

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        if self._certificate and (tls is None or tls.getpeercert(binary_form=True) != self._certificate):
            self._cut("another certificate than its key's")
            return
        # What waits in this process has been copied once more. (Of 0 asyncio's TLS makes a pause without an end.)
        self._transport.set_write_buffer_limits(high=0 if tls is None else _WRITE_AHEAD_BYTES)
        if self.is_local and (connected := transport.get_extra_info("socket")) is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.is_closed = True
        self._may_write.set()
        if self._unclaimed is not None:
            self._unclaimed.cancel()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(Unreachable(f"{self.peer.hex()[:8]} has hung up"))
        for task in (*self._answering.values(), *((self._held,) if self._held else ())):
            task.cancel()
        self.closed.set()
        self._side.lost(self, self._fault)

    def pause_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """See ``asyncio.BaseProtocol``."""
        self._may_write.set()

    def close(self) -> None:
        """End it now; who waits for an answer is told."""
        self.is_closed = True
        self._may_write.set()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return once it is over, and nothing of it runs any more."""
        if self._transport is not None:
            await self.closed.wait()
        await asyncio.gather(*self._answering.values(), *((self._held,) if self._held else ()), return_exceptions=True)

    def _cut(self, fault: str) -> None:
        self._fault = self._fault or fault
        self.close()

    # Sending.

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        """See ``network.rpc.Endpoint.call``."""
        number = next(self._numbers)
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        name = method.encode()
        self._calls[number] = answered
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(_CALL, number, bytes([len(name)]), name, request)
                answer = await answered
        except TimeoutError as error:
            self._give_up(number)
            raise Unreachable(f"{self.peer.hex()[:8]} ({method}) did not answer within {timeout_s:g} s") from error
        except asyncio.CancelledError:
            self._give_up(number)
            raise
        finally:
            del self._calls[number]
        if answer[:1] == BUSY:
            raise Unreachable(f"{self.peer.hex()[:8]} ({method}) is busy")
        if answer[:1] != ANSWER:
            reason = answer[1:].decode(errors="replace")
            raise Refused("".join(letter if letter.isprintable() else "?" for letter in reason))
        return answer[1:]

    async def send(self, tag: bytes, turn: int, first: int, data: memoryview) -> None:
        """Send values, as bytes, from the value ``first`` of a vector on, to whoever takes this tag at the other end.

        Raises:
            Unreachable: the link is over.
        """
        for start in range(0, len(data), MAX_CHUNK_BYTES):
            chunk = data[start : start + MAX_CHUNK_BYTES]
            await self._send(_CHUNK, 0, chunk, tag=tag, turn=turn, first=first + start // 4)

    def _give_up(self, number: int) -> None:
        if not self.is_closed and self._transport is not None:
            self._transport.write(_HEADER.pack(_CANCEL, number, 0, _NO_TAG, 0, 0))

    async def _send(self, kind: int, number: int, *parts: bytes | memoryview, tag: bytes = _NO_TAG, turn: int = 0, first: int = 0) -> None:
        size = sum(map(len, parts))
        if self._traffic is not None:
            await self._traffic.sent.take(size, is_own=kind != _ANSWER)
        await self._may_write.wait()
        if self.is_closed or self._transport is None:
            raise Unreachable(f"{self.peer.hex()[:8]} has hung up")
        self._transport.write(_HEADER.pack(kind, number, size, tag, turn, first))
        for part in parts:
            if part:
                self._transport.write(part)

    # Receiving.

    def get_buffer(self, sizehint: int) -> memoryview:
        """See ``asyncio.BufferedProtocol``."""
        del sizehint
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See ``asyncio.BufferedProtocol``."""
        self._filled += nbytes
        while self._filled == len(self._target) and not self.is_closed:
            frame = self._frame
            if frame is None:
                self._begin()
            else:
                self._end(frame)
            if self._unclaimed is not None:
                return

    def _begin(self) -> None:
        """Make room for what the header says that follows."""
        kind, _, size, *_ = frame = _HEADER.unpack(self._head)
        if kind > _CHUNK or size > (MAX_CHUNK_BYTES if kind == _CHUNK else _MAX_FRAME_BYTES):
            self._cut(f"a frame of kind {kind} and {size} bytes")
            return
        if kind == _CHUNK:
            if size == 0 or size % 4:
                self._cut(f"a chunk of {size} bytes")
                return
            self._frame = frame
            self.claim()
            return
        self._frame, self._target, self._filled = frame, memoryview(bytearray(size)), 0

    def claim(self) -> None:
        """Give the chunk that waits to its receiver, if that is known by now; until then nothing is read."""
        if self._frame is None or self._frame[0] != _CHUNK or self._target is not self._head or self.is_closed:
            return
        _, _, size, tag, turn, first = self._frame
        receiver = self._side.receiver(tag)
        if receiver is None:
            if self._unclaimed is None:
                self._pause()
                self._unclaimed = asyncio.get_running_loop().call_later(timeouts.LINK_CHUNK_S, self._cut, "a chunk that nobody waits for")
            return
        if self._unclaimed is not None:
            self._unclaimed.cancel()
            self._unclaimed = None
            self._resume()
        try:
            buffer = receiver.buffer(self.peer, turn, first, size)
        except RemoteFault as error:
            self._cut(str(error))
            return
        self._receiver = None if buffer is None else receiver
        self._target, self._filled = memoryview(bytearray(size)) if buffer is None else buffer, 0

    def _end(self, frame: tuple[int, int, int, bytes, int, int]) -> None:
        """Do what a whole frame asks for."""
        kind, number, size, _, turn, first = frame
        data, self._frame, self._target, self._filled = self._target, None, self._head, 0
        if self._traffic is not None:
            self._hold_back(self._traffic.received, _HEADER.size + size)
        if kind == _CHUNK:
            receiver, self._receiver = self._receiver, None
            if receiver is not None:
                receiver.received(self.peer, turn, first, size)
        elif kind == _CALL:
            self._on_call(number, bytes(data))
        elif kind == _CANCEL:
            if (task := self._answering.get(number)) is not None:
                task.cancel()
        elif (call := self._calls.get(number)) is not None and not call.done():
            call.set_result(bytes(data))

    def _on_call(self, number: int, data: bytes) -> None:
        try:
            method, request = data[1 : 1 + data[0]].decode("ascii"), data[1 + data[0] :]
        except (IndexError, UnicodeDecodeError):
            self._cut("a call without a method")
            return
        if number in self._answering or len(self._answering) >= _MAX_ANSWERING:
            self._cut("too many calls at a time")
            return
        task = self._answering[number] = asyncio.create_task(self._answer(number, method, request))
        task.add_done_callback(lambda _: self._answering.pop(number, None))

    async def _answer(self, number: int, method: str, request: bytes) -> None:
        try:
            answer = ANSWER + await self._side.answer(self.peer, method, request)
        except Busy:
            answer = BUSY
        except MantaError as error:
            answer = REFUSAL + refusal(error).encode()[:1000]
        try:
            await self._send(_ANSWER, number, answer)
        except Unreachable:
            pass  # nobody waits for it

    # Holding back.

    def _hold_back(self, flow: Flow, num_bytes: int) -> None:
        """Count what came; where a limit says so, read on later."""
        if flow.limit is None:
            flow.count(num_bytes)
        elif self._held is None:
            self._pause()
            self._held = asyncio.create_task(self._read_on(flow, num_bytes))
        else:
            flow.count(num_bytes)

    async def _read_on(self, flow: Flow, num_bytes: int) -> None:
        await flow.take(num_bytes, is_own=False)
        self._held = None
        if self._unclaimed is None:
            self._resume()

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._held is None and self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
