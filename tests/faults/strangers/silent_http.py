"""Holds all connections of an HTTP server: half of them say nothing, the others go on saying what never ends, a byte a second.

The connections come from eight addresses, 127.0.0.1 to 127.0.0.8. One that is cut off is opened again.
"""

import asyncio
import contextlib

from tests.faults.strangers import Target

CONNECTIONS, ADDRESSES = 512, 8
_AGAIN_S = 0.25  # until a connection that was cut off is opened again
_BYTE_S = 1.0
_AT_ONCE = 64  # connections that are being opened
_HEAD = b"GET /light/v1/welcome HTTP/1.1\r\nHost: a\r\nX-Long: "
_BODY = b"POST /light/v1/returns HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
_SAID = (b"", _HEAD, b"", _BODY)  # by the number of the connection


async def attack(target: Target) -> None:
    """Hold connections of ``target.gateway`` until this is cancelled."""
    assert target.gateway is not None
    opening, opened = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as tasks:
        for number in range(CONNECTIONS):
            address = f"127.0.0.{1 + number // len(_SAID) % ADDRESSES}"
            tasks.create_task(_hold(target.gateway, address, _SAID[number % len(_SAID)], opening, opened))
        for _ in range(CONNECTIONS):
            await opened.acquire()
        print("attacks", flush=True)


async def _hold(gateway: tuple[str, int], address: str, said: bytes, opening: asyncio.Semaphore, opened: asyncio.Semaphore) -> None:
    while True:
        with contextlib.suppress(OSError):
            async with opening:
                reader, writer = await asyncio.open_connection(*gateway, local_addr=(address, 0))
            opened.release()
            try:
                writer.write(said)
                await _until_cut(reader, writer, b"a" if said else b"")
            finally:
                writer.transport.abort()
        await asyncio.sleep(_AGAIN_S)


async def _until_cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes) -> None:
    """Return once the server closes a connection on which ``said`` is sent again and again."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BYTE_S):
                if not await reader.read(1000):
                    return
        writer.write(said)
