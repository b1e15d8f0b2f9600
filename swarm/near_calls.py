"""Small calls between mates: on one Linux host by a socket of their own, without the two daemons between them; else as any other call.

A mate gets the key to this node's door over the network, where it is known who it is; with the key it says who it is at the door. The
socket's name is an abstract one: it is in no file system, and gone with its process. Each connection is one call; who hangs up gives it up.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import socket
import struct
import sys
from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, Unreachable
from protocol.exchange import MAX_COHORT
from protocol.signing import PublicKey
from swarm.callers import cancelled_by, end_of
from swarm.local_server import LocalServer
from swarm.rpc import Endpoint, Handler, Refused

MAX_MESSAGE_BYTES = 16_384
_MAX_CALLS = 4 * MAX_COHORT  # answered at a time
_HURRY_S = 5.0  # to say who calls, and what
_NAME_BYTES, _KEY_BYTES, _LENGTH_BYTES = 16, 32, 4
_ANSWER, _REFUSAL = b"\x00", b"\x01"
_GONE = (TimeoutError, OSError, asyncio.IncompleteReadError)  # what reading and writing raise when the other side is gone

logger = logging.getLogger("manta.near")


@dataclass(frozen=True, slots=True)
class Door:
    """Where a node answers the calls of one mate on its host."""

    name: bytes
    key: bytes  # that only this mate knows

    def __post_init__(self) -> None:
        if len(self.name) != _NAME_BYTES or len(self.key) != _KEY_BYTES:
            raise ValueError("a door without its name or key")


@dataclass(frozen=True, slots=True)
class Call:
    """What is said at a door."""

    caller: bytes
    key: bytes
    method: str
    request: bytes


class NearCalls:
    """One node's calls to its mates, and its answers to theirs."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Know no door."""
        self._endpoint = endpoint
        self._handlers: dict[str, Handler] = {}
        self._doors: dict[PublicKey, Door] = {}
        self._name, self._secret = secrets.token_bytes(_NAME_BYTES), secrets.token_bytes(_KEY_BYTES)
        self._server = LocalServer(self._answer_one, max_line_bytes=MAX_MESSAGE_BYTES, max_callers=_MAX_CALLS)

    @property
    def key(self) -> PublicKey:
        """This node's own key."""
        return self._endpoint.key

    async def start(self) -> None:
        """Open the door, where this system has such; without it calls go over the network."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                await self._server.start(path=_path(self._name))

    async def close(self) -> None:
        """Close the door; who waits for an answer is told at once."""
        await self._server.close()

    def door_for(self, mate: PublicKey) -> tuple[Door, ...]:
        """Return the door that ``mate`` may call at; none where there is none."""
        return (Door(self._name, self._key_of(mate)),) if self._server.is_open else ()

    def learn(self, mate: PublicKey, door: Door) -> None:
        """Call ``mate``, which is on this host, at its door from now on."""
        if mate in self._doors or len(self._doors) < _MAX_CALLS:
            self._doors[mate] = door

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""
        self._handlers[method] = handler
        await self._endpoint.serve(method, handler)

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float) -> bytes:
        """See ``Endpoint.call``; requests and answers are small."""
        door = self._doors.get(key)
        if door is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._call_at(door, method, request)
            except TimeoutError as error:
                raise Unreachable(f"{key.hex()[:8]} ({method}) did not answer within {timeout_s:g} s") from error
            except ConnectionRefusedError:
                del self._doors[key]  # it has been started again, perhaps
            except (OSError, asyncio.IncompleteReadError) as error:
                raise Unreachable(f"{key.hex()[:8]} ({method}) has hung up") from error
        return await self._endpoint.call(key, method, request, timeout_s=timeout_s)

    async def _call_at(self, door: Door, method: str, request: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(_path(door.name), limit=MAX_MESSAGE_BYTES)
        try:
            await _write(writer, pack(Call(self.key, door.key, method, request)))
            answer = await _read(reader)
        finally:
            writer.transport.abort()
        if answer[:1] != _ANSWER:
            raise Refused("".join(letter if letter.isprintable() else "?" for letter in answer[1:].decode(errors="replace")))
        return answer[1:]

    # Answering.

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not _is_own_user(writer):
            return
        with contextlib.suppress(*_GONE, EncodingError):
            async with asyncio.timeout(_HURRY_S):
                call = unpack(Call, await _read(reader), max_bytes=MAX_MESSAGE_BYTES)
            caller = PublicKey(call.caller)
            if not hmac.compare_digest(call.key, self._key_of(caller)) or call.method not in self._handlers:
                return
            leaving = asyncio.create_task(end_of(reader))
            try:
                with cancelled_by(leaving):
                    answer = await self._answer_to(caller, call)
            finally:
                leaving.cancel()
            async with asyncio.timeout(_HURRY_S):
                await _write(writer, answer)

    async def _answer_to(self, caller: PublicKey, call: Call) -> bytes:
        try:
            return _ANSWER + await self._handlers[call.method](caller, call.request)
        except MantaError as error:
            return _REFUSAL + str(error).encode()[:1000]

    def _key_of(self, mate: PublicKey) -> bytes:
        return hmac.digest(self._secret, mate, "sha256")


def _path(name: bytes) -> str:
    return f"\0manta-near-{name.hex()}"


def _is_own_user(writer: asyncio.StreamWriter) -> bool:
    if sys.platform != "linux":
        return False
    credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


async def _read(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if size > MAX_MESSAGE_BYTES:
        raise EncodingError(f"a message of {size} bytes at a door where at most {MAX_MESSAGE_BYTES} are allowed")
    return await reader.readexactly(size)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    await writer.drain()
