"""The process that measures for others, seen from the peer: started, given weights and architectures, ended in the middle of its work."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from peer.evaluation.messages import HEAD_BYTES, MAX_ANSWER_BYTES, Ask, Kind, Measured, framed, head
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, UserError, Weather
from swarm.priority import lower
from swarm.tether import tethered

NICENESS = 10  # beside busy cores about a tenth of one: of the lowest, 19, a process on such a machine had nothing in a minute
_START_S = 600.0  # until its libraries and its data are loaded, at low priority
_ANSWER_S = 1800.0  # for one architecture
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read once, when a process loads its libraries


class MeasurerLost(Weather):
    """The process died or said nothing for long; another one may do better."""


class Measurer:
    """A process that was started."""

    def __init__(self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use ``start``."""
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, supernet: str, dataset: str, digest: bytes, root: Path | None) -> "Measurer":
        """Start a process, of low priority. Call it on the main thread: Linux ends it with the thread that started it.

        Raises:
            MeasurerLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawned(theirs.fileno(), [supernet, dataset, digest.hex(), *([] if root is None else [str(root)])])
        except OSError as error:
            ours.close()
            raise MeasurerLost(f"no process could be started: {error.strerror}") from error
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        measurer = cls(process, reader, writer)
        try:
            with contextlib.suppress(OSError):  # it works at most a share of the time all the same
                await lower(process.pid, NICENESS)
            await measurer._said(Kind.READY, _START_S)
        except BaseException:
            await measurer.close()
            raise
        return measurer

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def load(self, weights: bytes | memoryview) -> None:
        """Measure with these parameters, binary32, from now on."""
        self._writer.write(framed(Kind.WEIGHTS, bytes(weights)))

    async def measure(self, architecture: str, part: str) -> Measured:
        """Return how good an architecture is.

        Raises:
            MeasurerLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        self._writer.write(framed(Kind.ASK, pack(Ask(architecture, part))))
        return unpack(Measured, await self._said(Kind.MEASURED, _ANSWER_S), max_bytes=MAX_ANSWER_BYTES)

    async def close(self) -> None:
        """Kill it; it is gone when this returns."""
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _said(self, wanted: Kind, patience_s: float) -> bytes:
        try:
            async with asyncio.timeout(patience_s):
                length, kind = head(await self._reader.readexactly(HEAD_BYTES), max_bytes=MAX_ANSWER_BYTES)
                data = await self._reader.readexactly(length)
        except TimeoutError as error:
            raise MeasurerLost(f"nothing was heard of it for {patience_s:.0f} s") from error
        except (asyncio.IncompleteReadError, OSError, EncodingError) as error:
            raise MeasurerLost("it has ended") from error
        if kind == Kind.CANNOT:
            raise UserError(data.decode(errors="replace"))
        if kind != wanted:
            raise MeasurerLost("it said something else than it was asked")
        return data


def _spawned(line: int, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start the program. Not by asyncio: its processes are reaped twice where one is killed as it ends."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        tethered([sys.executable, "-P", "-m", "peer.evaluation.process", str(line), *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[line],
        env={**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": path},
        start_new_session=True,  # a terminal's Ctrl-C is for the peer; and it leads the group whose priority is lowered
    )
