"""Processes that look on beside an aggregator: started at low priority, started again when they end or stand still, and never waited for.

A child says that it lives by a byte on its standard output now and then, and ends when its standard input does: so none outlives the
aggregator, however that ends (on Linux the kernel sees to it, too). One that stands still is killed, soon: it could hold a lock that SQLite
wants for a moment, and the log's writer waits for such a lock ``aggregator.log.storage.BUSY_TIMEOUT_S`` at most.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.attendants.children import last_lines, open_log
from aggregator.log.storage import BUSY_TIMEOUT_S
from swarm.priority import lower
from swarm.tether import tethered

BEAT_S = 1.0
CANNOT = 2  # a child's exit code: it could never do its work, and is not started again
_START_S = 120.0  # for the first sign of life: libraries from a slow disk
_QUIET_S = 0.8 * BUSY_TIMEOUT_S  # after the first one
_GOODBYE_S = 3.0
_AGAIN_S = (1.0, 60.0)  # before one is started again; longer and longer while it ends at once
_LONG_S = 60.0  # who lived so long did not end at once

logger = logging.getLogger("manta.attendants")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a child is waited for, in seconds."""

    start_s: float = _START_S
    quiet_s: float = _QUIET_S
    again_s: tuple[float, float] = _AGAIN_S


class Attendant:
    """One such process, for as long as ``keep`` runs."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log_path: Path,
        *,
        niceness: int,
        pass_fds: Sequence[int] = (),
        patience: Patience | None = None,
    ) -> None:
        """Prepare; ``arguments`` are those of this Python, ``log_path`` gets what the child writes to its standard error, which is so much
        nicer than this process.
        """
        self._name = name
        self._arguments = arguments
        self._log_path = log_path
        self._niceness = niceness
        self._pass_fds = pass_fds
        self._patience = patience or Patience()
        self.pid: int | None = None  # None: it does not run

    async def keep(self) -> None:
        """Keep the process running until this is cancelled; return if it says that it cannot work."""
        shortest_s, longest_s = self._patience.again_s
        pause_s = shortest_s
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            try:
                code = await self._live()
            except OSError as error:  # no memory, no such file: the run goes on without it
                logger.warning("not started name=%s reason=%s", self._name, error)
                code = None
            if code == CANNOT:
                logger.warning("not to be had name=%s reason=%s", self._name, self._last_line())
                return
            pause_s = shortest_s if loop.time() - started_s > _LONG_S else min(2 * pause_s, longest_s)
            logger.warning("ended name=%s code=%s again_in_s=%.0f", self._name, code, pause_s)
            await asyncio.sleep(pause_s)

    async def _live(self) -> int:
        """Run the process once; return its exit code. It is gone when this ends, however."""
        self._log_path.parent.mkdir(mode=0o700, exist_ok=True)
        with open_log(self._log_path) as log:
            process = await asyncio.create_subprocess_exec(
                *tethered([sys.executable, "-P", *self._arguments]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                pass_fds=tuple(self._pass_fds),
                start_new_session=True,  # Ctrl-C in a terminal is the aggregator's
            )
        self.pid = process.pid
        try:
            await self._make_way(process.pid)
            return await self._watch(process)
        finally:
            self.pid = None
            await _end(process)

    async def _make_way(self, pid: int) -> None:
        """Now, and not when the child can do it itself: by then it has loaded its libraries, at everybody's cost."""
        try:
            await lower(pid, self._niceness)
        except OSError as error:  # it works at most a share of the time all the same
            logger.warning("its priority stays name=%s reason=%s", self._name, error)

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        assert process.stdout is not None
        patience_s = self._patience.start_s
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    beat = await process.stdout.read(4096)
            except TimeoutError:
                logger.warning("stands still name=%s for_s=%.0f", self._name, patience_s)
                process.kill()  # it would not hear anything gentler, and may hold a lock
                return -signal.SIGKILL
            if not beat:
                return await process.wait()
            patience_s = self._patience.quiet_s

    def _last_line(self) -> str:
        with contextlib.suppress(OSError):
            return last_lines(self._log_path, 1)
        return ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process: asked, then killed."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await process.wait()


# What a child does, at its own start.


def attend(on_end: Callable[[], None]) -> None:
    """Be an attendant: one with signs of life, and until the parent is gone; then ``on_end`` is called in another thread."""
    threading.Thread(target=_wait_for_end, args=(on_end,), name="parent", daemon=True).start()


def _wait_for_end(on_end: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    on_end()


def beat() -> None:
    """Give a sign of life; a pipe that nobody reads any more is for ``attend`` to notice."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), b".")


def keep_beating() -> None:
    """Give signs of life from a thread of its own: for a child whose work takes long at a time."""

    def again_and_again() -> None:
        while True:
            beat()
            pause.wait(BEAT_S)

    pause = threading.Event()
    threading.Thread(target=again_and_again, name="beat", daemon=True).start()
