"""Closing a server on a Unix socket: who is served, who has just come in, and what stays open."""

import asyncio
import contextlib
import gc
import socket
from pathlib import Path

import pytest

from manta_swarm.runtime import control
from manta_swarm.runtime.control import ControlSocket, LocalServer

TURNS = 10  # of the event loop, between coming in and the close


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())
    await writer.drain()


class Yes:
    """Says yes to everything."""

    async def answer(self, _words: str) -> str:
        return "yes"


@pytest.mark.parametrize("what", ["a server", "a control socket"])
def test_nothing_stays_open_of_who_comes_in_while_it_closes(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_LAST_ANSWERS_S", 0.01)  # these callers ask for nothing
    gc.freeze()  # only what comes from here on is looked at
    path, callers = str(tmp_path / "control"), [socket.socket(socket.AF_UNIX) for _ in range(3 * TURNS)]

    async def come_in(turns: int) -> None:
        for caller in callers[3 * turns : 3 * turns + 3]:
            caller.connect(path)
        for _ in range(turns):
            await asyncio.sleep(0)

    async def whole(turns: int) -> None:
        if what == "a control socket":
            async with ControlSocket(tmp_path, Yes()):
                await come_in(turns)
            return
        server = LocalServer(echo, max_line_bytes=100, max_callers=8)
        await server.start(path=path)
        await come_in(turns)
        await server.close()

    for turns in range(TURNS):
        asyncio.run(whole(turns))
    gc.collect()  # what stayed open says so now, which is an error here
    for caller in callers:
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(1) == b""
        caller.close()


@pytest.mark.virtual_time
async def test_who_is_served_may_come_to_its_end_and_who_does_not_is_cut_off(tmp_path: Path) -> None:
    served = asyncio.Semaphore(0)

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.release()
        await echo(reader, writer)

    server = LocalServer(met, max_line_bytes=100, max_callers=8)
    await server.start(path=str(tmp_path / "socket"))
    quick = await asyncio.open_unix_connection(str(tmp_path / "socket"))
    slow = await asyncio.open_unix_connection(str(tmp_path / "socket"))
    await served.acquire()
    await served.acquire()
    closing = asyncio.create_task(server.close(grace_s=1.0))
    quick[1].write(b"hello\n")
    assert await quick[0].read() == b"hello\n"
    assert not closing.done()
    assert await slow[0].read() == b""
    await closing
    for _, writer in (quick, slow):
        writer.close()
        await writer.wait_closed()


async def test_one_too_many_is_turned_away_and_the_next_is_served_again(tmp_path: Path) -> None:
    server = LocalServer(echo, max_line_bytes=100, max_callers=1)
    await server.start(path=str(tmp_path / "socket"))
    first = await asyncio.open_unix_connection(str(tmp_path / "socket"))
    second = await asyncio.open_unix_connection(str(tmp_path / "socket"))
    assert await second[0].read() == b""
    first[1].write(b"hello\n")
    assert await first[0].read() == b"hello\n"
    third = await asyncio.open_unix_connection(str(tmp_path / "socket"))
    third[1].write(b"again\n")
    assert await third[0].read() == b"again\n"
    for _, writer in (first, second, third):
        writer.close()
        await writer.wait_closed()
    await server.close()
