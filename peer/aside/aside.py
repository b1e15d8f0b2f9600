"""A process beside the peer, seen from the peer: started at low priority with one thread, asked, and ended in the middle of its work."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from peer.aside.messages import HEAD_BYTES, Kind, framed, head
from protocol.errors import EncodingError, UserError, Weather
from swarm.priority import lower
from swarm.tether import tethered

_START_S = 600.0  # until its libraries and its data are loaded, at low priority
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read once, when a process loads its libraries


class AsideLost(Weather):
    """The process died or said nothing for long; another one may do better."""


class Aside:
    """A process that was started."""

    def __init__(self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use ``start``."""
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, program: str, arguments: Sequence[str], *, niceness: int, setup: bytes = b"") -> "Aside":
        """Start ``python -m PROGRAM SOCKET ARGUMENTS``, and send it ``setup``, if there is any.

        Call it on the main thread: Linux ends it with the thread that started it.

        Raises:
            AsideLost: it is not to be had.
            UserError: it cannot work here, and says why.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawned(program, theirs.fileno(), arguments)
        except OSError as error:
            ours.close()
            raise AsideLost(f"no process could be started: {error.strerror}") from error
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        aside = cls(process, reader, writer)
        if setup:
            aside.tell(Kind.SETUP, setup)
        try:
            with contextlib.suppress(OSError):  # it works at most a share of the time all the same
                await lower(process.pid, niceness)
            await aside.said(Kind.READY, _START_S, max_bytes=0)
        except BaseException:
            await aside.close()
            raise
        return aside

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, kind: Kind, data: bytes) -> None:
        """Send it something; what it answers, if it does, is heard with ``said``."""
        self._writer.write(framed(kind, data))

    async def said(self, wanted: Kind, patience_s: float, *, max_bytes: int) -> bytes:
        """Return its next message, of the kind that is wanted.

        Raises:
            AsideLost: it died, said something else, or nothing for so long.
            UserError: it cannot, and ends.
        """
        try:
            async with asyncio.timeout(patience_s):
                length, kind = head(await self._reader.readexactly(HEAD_BYTES), max_bytes=max(max_bytes, 1024))
                data = await self._reader.readexactly(length)
        except TimeoutError as error:
            raise AsideLost(f"nothing was heard of it for {patience_s:.0f} s") from error
        except (asyncio.IncompleteReadError, OSError, EncodingError) as error:
            raise AsideLost("it has ended") from error
        if kind == Kind.CANNOT:
            raise UserError(data.decode(errors="replace"))
        if kind != wanted:
            raise AsideLost("it said something else than it was asked")
        return data

    async def close(self) -> None:
        """Kill it; it is gone when this returns."""
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _spawned(program: str, line: int, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start the program. Not by asyncio: its processes are reaped twice where one is killed as it ends."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        tethered([sys.executable, "-P", "-m", program, str(line), *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[line],
        env={**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": path},
        start_new_session=True,  # a terminal's Ctrl-C is for the peer; and it leads the group whose priority is lowered
    )
