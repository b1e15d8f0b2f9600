"""Child processes: started, talked to, ended, started again. No child outlives its parent, however that ends.

Whatever a program has done in another process, it starts as a ``Child``; what differs between them is data: a ``Program``. Each child leads
a session of its own, so that a terminal's Ctrl-C is its parent's to pass on. On Linux the kernel kills it with its parent
(``runtime.tether``); everywhere the end of the line between them ends a child that is talked to, in the middle of its work too
(``runtime.line``).
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import psutil

from manta_swarm.protocol.errors import EncodingError, UserError, Weather
from manta_swarm.runtime.line import HEAD_BYTES, Failed, Heartbeat, Messages

Message = TypeVar("Message")

_TETHER = Path(__file__).with_name("tether.py")
_MAX_SAID = 64  # messages of a child that nobody has heard yet
_LOOKS = 4  # at a deadline: this process may have stood still itself, and the message be here
_TAKES_S = 120.0  # that a message may take, of tens of megabytes, on a computer that has much else to do
_POLL_S = 0.1
_MAX_LOG_BYTES = 1 << 20
_LAST_BYTES = 1 << 16
_DAEMONS_S = 10.0  # for what a program had started to end after it
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read once, when a process loads its libraries

# How a child is ended: signals, and the seconds that each is given.
TOLD = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0))
ASKED = (
    (signal.SIGINT, 15.0),  # hand in what is trained, bring what audits want of it, close the log
    (signal.SIGTERM, 5.0),  # a program that was already told stops at once
    (signal.SIGKILL, 10.0),
)

logger = logging.getLogger("manta.child")

AT_ONCE = threading.Event()


class ChildLost(Weather):
    """A child has ended, or stood still and was killed; another one may do better."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to start as a child process, and how that is watched and ended."""

    name: str  # in words
    command: Sequence[str]
    log_path: Path | None = None  # gets what it prints; None: its errors go where this process's do, the rest nowhere
    environment: Mapping[str, str] = field(default_factory=dict)  # beside this process's
    messages: Messages | None = None  # None: it is not talked to
    pass_fds: Sequence[int] = ()
    niceness: int = 0  # beside this process's
    steps: Sequence[tuple[int, float]] = ASKED  # to its end
    start_s: float = 600.0  # that its first message is waited for: libraries from a slow disk, data
    quiet_s: float = 60.0  # and the next one, of a child that is kept running


@dataclass(frozen=True, slots=True)
class Restart:
    """When a child that has ended is started again: longer and longer after ends in a row."""

    first_s: float = 1.0
    longest_s: float = 60.0
    free: int = 0  # ends that cost nothing
    lasted_s: float = 60.0  # who lived so long did not end in a row

    def pause_s(self, ends: int) -> float:
        """Return how long to wait after so many ends in a row."""
        return 0.0 if ends <= self.free else min(self.first_s * 2.0 ** min(ends - self.free - 1, 16), self.longest_s)


def python(*arguments: str) -> list[str]:
    """Return the command that is this Python with ``arguments``."""
    # -P: a file or directory of the same name where the person happens to stand is not our program.
    return [sys.executable, "-P", *arguments]


def tethered(folder: str, *, niceness: int = 0, has_line: bool = False) -> list[str]:
    """Return what a command begins with that ends with this process, and after which ``folder``, if there is one, is removed.

    Args:
        folder: of what the command leaves behind.
        niceness: so much less priority than this process has.
        has_line: the command ends with its line to this process, where nothing else sees to that.
    """
    parent = os.getpid() if not has_line or sys.platform == "linux" else 0
    # -I, -S: nothing is imported but what that file names, which takes some hundredths of a second.
    return [sys.executable, "-I", "-S", str(_TETHER), str(parent), str(niceness), folder]


def with_threads(count: int) -> dict[str, str]:
    """Return the environment of a child whose libraries compute with so many threads."""
    return dict.fromkeys(_THREADS, str(count))


class Child:
    """A child process that was started, seen from its parent."""

    def __init__(self, program: Program, process: "subprocess.Popen[bytes]", line: socket.socket | None = None) -> None:
        """Use ``start``."""
        self.program = program
        self.process = process
        self._line = line
        self._heard: asyncio.Queue[Any] = asyncio.Queue()  # None, last of all: it is gone
        self._reason = ""  # why it has ended, where that is known better than by its exit code
        self._is_users = False
        self._gone = asyncio.Event()
        self._saying = asyncio.Lock()
        self._reading = None if line is None else asyncio.get_running_loop().create_task(self._read(line))

    @classmethod
    def start(cls, program: Program) -> "Child":
        """Start a process; one that is talked to, in an event loop.

        Call it on the main thread: Linux ends the child when the thread that started it does.

        Raises:
            OSError: the system starts none.
        """
        ours, theirs = (None, None) if program.messages is None else socket.socketpair()
        tether = tethered("", niceness=program.niceness, has_line=theirs is not None)
        path = {} if theirs is None else {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            with theirs or contextlib.nullcontext(), _log_of(program) as log:
                # Not by asyncio: its processes are reaped twice where one is killed as it ends.
                process = subprocess.Popen(
                    [*tether, *program.command],
                    stdin=subprocess.DEVNULL if theirs is None else theirs.fileno(),
                    stdout=subprocess.DEVNULL if log is None else log,
                    stderr=log,
                    pass_fds=tuple(program.pass_fds),
                    env={**os.environ, **path, **program.environment},
                    start_new_session=True,
                )
        except BaseException:
            if ours is not None:
                ours.close()
            raise
        if ours is not None:
            ours.setblocking(False)
        return cls(program, process, ours)

    @classmethod
    async def ready(cls, program: Program, setup: object = None) -> "Child":
        """Start a process, send it ``setup``, if there is any, and return it once it has said that it goes on.

        Raises:
            ChildLost: it is not to be had.
            UserError: it cannot work here, and says why.
        """
        try:
            child = cls.start(program)
        except OSError as error:
            raise ChildLost(f"no process could be started: {error.strerror}") from error
        try:
            if setup is not None:
                await child.say(setup)
            await child.hear(Heartbeat, program.start_s)
        except BaseException:
            await asyncio.shield(child.kill())
            raise
        return child

    @property
    def name(self) -> str:
        """The program's name, in words."""
        return self.program.name

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number if one ended it; None while it runs."""
        return self.process.poll()

    @property
    def how(self) -> str:
        """How the child has ended: a signal or an exit code."""
        code = self.returncode
        assert code is not None
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    @property
    def ending(self) -> str:
        """How the child has ended, as a sentence says it."""
        return f"was ended by {self.how}" if (self.returncode or 0) < 0 else f"ended with {self.how}"

    @property
    def reason(self) -> str:
        """Why the child has ended: what it said itself, or how it did, and the last that it printed."""
        last = self.last_lines(1)
        return self._reason or (f"{self.how}: {last}" if last else self.how)

    def last_lines(self, count: int = 20) -> str:
        """Return the end of what the child printed."""
        return "" if self.program.log_path is None else last_lines(self.program.log_path, count)

    # Talking.

    async def say(self, message: object) -> None:
        """Send a message; one that has ended hears nothing, and one that takes nothing for long is killed.

        Who is cancelled here ends the child, which has half a message.
        """
        assert self.program.messages is not None
        assert self._line is not None
        data = self.program.messages.to_child.framed(message)
        try:
            async with self._saying, asyncio.timeout(_TAKES_S):
                if not self._gone.is_set():
                    await asyncio.get_running_loop().sock_sendall(self._line, data)
        except TimeoutError:
            await self.kill(f"it took nothing for {_TAKES_S:.0f} s")
        except OSError:
            pass  # it has ended, as whoever hears it is told

    async def hear(self, kind: type[Message], timeout_s: float) -> Message:
        """Return the next message, which is to be of that kind; a child that says nothing for so long, or something else, is killed.

        Raises:
            ChildLost: it has ended.
            UserError: it has, for a reason that a person could change.
        """
        message = await self._next(timeout_s)
        if message is None:
            await self._gone.wait()
            if self._is_users:
                raise UserError(self._reason)
            raise ChildLost(self.reason)
        if not isinstance(message, kind):
            await self.kill("it said something else than it was asked")
            raise ChildLost(self.reason)
        return message

    async def ended(self) -> None:
        """Return once a child that is talked to has ended, and holds nothing any more."""
        await self._gone.wait()

    async def kill(self, reason: str = "") -> None:
        """Kill a child that is talked to; it holds no memory and no device any more when this returns."""
        if not self._gone.is_set():
            self._reason = self._reason or reason
            self.process.kill()
            await self._gone.wait()

    async def end(self, reason: str = "") -> None:
        """End the child as its program says; it is gone when this returns."""
        self._reason = self._reason or reason
        await asyncio.to_thread(stop, [self])
        if self._reading is not None:
            await self.kill()

    async def _next(self, timeout_s: float) -> Any:
        for _ in range(_LOOKS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s / _LOOKS):
                    message = await self._heard.get()
                if message is None:
                    self._heard.put_nowait(None)  # for whoever asks again
                return message
        await self.kill(f"no answer for {timeout_s:.0f} s")
        return None

    async def _read(self, line: socket.socket) -> None:
        """Hear what the child says until it ends; then it is gone, however that came."""
        assert self.program.messages is not None
        kinds = self.program.messages.to_parent
        try:
            while True:
                length, kind = kinds.head(await _exactly(line, HEAD_BYTES))
                said = kinds.message(kind, await _exactly(line, length))
                if isinstance(said, Failed):
                    self._reason, self._is_users = said.reason, bool(said.is_users)
                elif self._heard.qsize() == _MAX_SAID:
                    raise EncodingError("more than it was asked")
                elif not isinstance(said, Heartbeat) or self._heard.empty():  # what waits to be heard says that it goes on, too
                    self._heard.put_nowait(said)
        except (EOFError, OSError):
            pass  # it has ended
        except EncodingError as error:
            self._reason = self._reason or f"it said what nobody understands: {error}"
        finally:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
            self._gone.set()
            async with self._saying:  # whoever was at it is told that nobody is there
                line.close()
            self._heard.put_nowait(None)


async def keep(program: Program, restart: Restart = Restart()) -> None:
    """Keep a child running that says now and then that it goes on, until this is cancelled; return if it says that it cannot work.

    One that stands still is killed: it would not hear anything gentler, and may hold a lock that others wait for.
    """
    loop, ends = asyncio.get_running_loop(), 0
    while True:
        started_s = loop.time()
        try:
            child = Child.start(program)
            try:
                await child.hear(Heartbeat, program.start_s)
                while True:
                    await child.hear(Heartbeat, program.quiet_s)
            finally:
                await asyncio.shield(child.end())
        except UserError as error:
            logger.warning("not to be had name=%s reason=%s", program.name, error)
            return
        except (ChildLost, OSError) as error:  # OSError: no memory, no such file
            reason = str(error)
        ends = 1 if loop.time() - started_s > restart.lasted_s else ends + 1
        logger.warning("ended name=%s reason=%s again_in_s=%.0f", program.name, reason, restart.pause_s(ends))
        await asyncio.sleep(restart.pause_s(ends))


# What a program prints.


def open_log(path: Path) -> BinaryIO:
    """Return the file for what a program prints, to be appended to; one that became long is put aside, in the place of the one before."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.before"))
    return path.open("ab")


def last_lines(path: Path, count: int) -> str:
    """Return the last lines of a file, as far as they are not too long."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-count:])


def _log_of(program: Program) -> contextlib.AbstractContextManager[BinaryIO | None]:
    return contextlib.nullcontext() if program.log_path is None else open_log(program.log_path)


async def _exactly(line: socket.socket, count: int) -> bytes:
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < count:
        part = await loop.sock_recv(line, count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


# Ending those that are not talked to, too.


class Hurry(Protocol):
    """Says whether to wait for nothing any more; a ``threading.Event`` is one."""

    def is_set(self) -> bool:
        """Return whether to wait for nothing."""


AT_ONCE.set()


def stop(children: Sequence[Child], *, hurry: Hurry | None = None) -> None:
    """End children as their programs say, and all that they started; killed at once as soon as ``hurry`` is set."""
    family = [process for child in children if child.returncode is None for process in _descendants(child)]
    for place in range(max((len(child.program.steps) for child in children), default=0)):
        running = [child for child in children if child.returncode is None and place < len(child.program.steps)]
        for child in running:
            child.process.send_signal(signal.SIGKILL if hurry is not None and hurry.is_set() else child.program.steps[place][0])
        timeout_s = max((child.program.steps[place][1] for child in running), default=0.0)
        _wait(lambda running=running: all(child.returncode is not None for child in running), timeout_s, hurry)  # type: ignore[misc]
    if family:
        _wait(lambda: not any(_is_alive(process) for process in family), _DAEMONS_S)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _wait(is_over: Callable[[], bool], timeout_s: float, hurry: Hurry | None = None) -> None:
    deadline = time.monotonic() + timeout_s
    is_new = hurry is not None and not hurry.is_set()
    while not is_over() and time.monotonic() < deadline and not (is_new and hurry is not None and hurry.is_set()):
        time.sleep(_POLL_S)


def _descendants(child: Child) -> list[psutil.Process]:
    try:
        return list(psutil.Process(child.pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        # A zombie has ended: who adopted it in a container may never ask for its exit code.
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
