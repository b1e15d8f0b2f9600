"""One worker process, seen from the peer: started, given a lot at a time, ended. Whatever goes wrong in it ends it, and it alone."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from automl.shared_memory import Region
from peer.crew.crew import WorkerLost
from peer.crew.worker_messages import HEAD_BYTES, Answer, Failed, Message, Missing, Ready, Setup, Task, framed, head, message_of
from protocol.errors import EncodingError, SamplesMissing

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read once, when a process loads its libraries
_LOOKS = 4  # at a deadline: this process may have stood still itself, and the answer be here


class WorkerHandle:
    """A worker that was started."""

    def __init__(self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use ``start``."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._reason = ""  # why it is to end, where that is known
        self.gone = asyncio.Event()  # it has ended, and holds nothing any more
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, setup: Setup, state: Region, gradients: Region, data: Region) -> "WorkerHandle":
        """Start a process. Call it on the main thread: Linux ends the process when the thread that started it does.

        Raises:
            OSError: the system starts none.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawned(setup, theirs.fileno(), state, gradients, data)
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        handle = cls(process, reader, writer)
        writer.write(framed(setup))
        return handle

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def reason(self) -> str:
        """Why it has ended, in a few words."""
        code = self._process.returncode
        how = "" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        return self._reason or how

    async def ready(self, patience_s: float) -> Ready:
        """Return what it says of itself once it can take a lot.

        Raises:
            WorkerLost: it ended, or said nothing for so long.
        """
        ready = await self._said((Ready,), patience_s)
        assert isinstance(ready, Ready)
        return ready

    async def train(self, task: Task, patience_s: float) -> Answer:
        """Return its answer to a task.

        Raises:
            WorkerLost: it ended, or said nothing for so long.
            SamplesMissing: the lot needs what is not here; the worker goes on.
        """
        if self.gone.is_set():
            raise WorkerLost(self.reason)
        self._answer = asyncio.get_running_loop().create_future()
        self._writer.write(framed(task))
        answer = await self._said((Answer, Missing), patience_s)
        assert isinstance(answer, Answer | Missing)
        if (answer.slot, answer.index) != (task.slot, task.index):
            await self.end("it answered something else than it was asked")
            raise WorkerLost(self.reason)
        if isinstance(answer, Missing):
            raise SamplesMissing(answer.reason)
        return answer

    async def end(self, reason: str = "") -> None:
        """Kill it; it holds no memory and no device any more when this returns."""
        if not self.gone.is_set():
            self._reason = self._reason or reason
            self._process.kill()
            await self.gone.wait()

    async def _said(self, kinds: tuple[type[Message], ...], patience_s: float) -> Message:
        for _ in range(_LOOKS):
            await asyncio.wait((self._answer,), timeout=patience_s / _LOOKS)
            if self._answer.done():
                break
        else:
            await self.end(f"no answer for {patience_s:.0f} s")
            raise WorkerLost(self.reason)
        if self._answer.cancelled():
            raise WorkerLost(self.reason)
        said = self._answer.result()
        if not isinstance(said, kinds):
            await self.end("it said something that was not asked for")
            raise WorkerLost(self.reason)
        return said

    async def _watch(self) -> None:
        """Read what it says until it ends; then see that it is gone."""
        try:
            while True:
                length, kind = head(await self._reader.readexactly(HEAD_BYTES))
                said = message_of(kind, await self._reader.readexactly(length))
                if isinstance(said, Failed):
                    self._reason = said.reason
                elif self._answer.done():
                    raise EncodingError("two answers")
                else:
                    self._answer.set_result(said)
        except (asyncio.IncompleteReadError, OSError):
            pass  # it has ended
        except EncodingError as error:
            self._reason = self._reason or f"it said what nobody understands: {error}"
        finally:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self.gone.set()
            if not self._answer.done():
                self._answer.cancel()


def _spawned(setup: Setup, line: int, state: Region, gradients: Region, data: Region) -> "subprocess.Popen[bytes]":
    """Start the program of a worker. Not by asyncio: its processes are reaped twice where one is killed as it ends."""
    shared = [region.descriptor for region in (state, gradients, data)]
    arguments = [os.getpid(), line, *shared]
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "peer.crew.worker_process", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[line, *shared],
        env={**os.environ, **dict.fromkeys(_THREADS, str(setup.threads)), "PYTHONPATH": path},
        start_new_session=True,  # a terminal's Ctrl-C is for the peer
    )


async def end_all(handles: Sequence[WorkerHandle], reason: str) -> None:
    """Kill these workers; return when all are gone."""
    await asyncio.gather(*(handle.end(reason) for handle in handles))
