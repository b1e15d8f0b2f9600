"""Programs for tests that start in a moment: forked from a process that has loaded what they need.

Loading torch and hivemind takes a program three seconds of a processor, and tests start hundreds. Here one process loads them once, and
each program is a fork of it: a process, session, environment, command line and log of its own, which runs the same function as the command
that is typed. Only ``ps`` shows another command line. Tests of how a program starts, of its priority or of its imports start it for real.

Linux and macOS fork alike, but only Linux is known to do it well with these libraries: elsewhere tests start all programs for real.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from manta_swarm.runtime.child import python, tethered
from manta_swarm.runtime.tether import ask_for_end_with_parent

_TESTS = ("tests.network.cheats", "tests.network.asked_member", "tests.network.searching")
_STRANGE = (
    "tests.faults.strange_log",
    "tests.faults.strange_peer",
)  # loaded by each fork itself: they replace functions as they are loaded
_PROGRAMS = ("manta_swarm.peer.cli", "manta_swarm.aggregator.cli", *_TESTS)
MODULES = (*_PROGRAMS, *_STRANGE)
_OF_DATA = ("sklearn.datasets", "torch.fx.experimental.symbolic_shapes")  # loaded by whoever reads digits, or builds a larger network
_LOADED = (*_PROGRAMS, *_OF_DATA, "manta_swarm.aggregator.program", "manta_swarm.automl.training.snapshot", "manta_swarm.peer.joining")
_MAX_BYTES = 1 << 18
_POLL_S = 0.02
_ROOT = Path(__file__).resolve().parents[1]


class Forked:
    """A program that was forked; has what ``runtime.child`` needs of a ``Popen``."""

    def __init__(self, server: "ForkServer", pid: int, command: Sequence[str]) -> None:
        self._server = server
        self.pid = pid
        self.args = list(command)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number if one ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the program has ended."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to a program that runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that programs are forked from, as a test's process sees it."""

    def __init__(self, loaded: Sequence[str] = _LOADED) -> None:
        """Start it, with these modules loaded; none of them may start a thread. It ends with this process."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*tethered(""), *python("-m", "tests.forked", str(theirs.fileno()), *loaded)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        self._pids: list[int] = []
        self._ended: dict[int, int] = {}
        self.commands: dict[int, list[str]] = {}  # by process id

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def close(self) -> None:
        """End it, and what still runs of what it has forked."""
        self._line.close()
        self._process.wait()

    def start(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], errors: Path | None = None) -> Forked:
        """Start ``python -P -m ARGUMENTS``, the first of which is a module with a ``main``.

        It prints to ``log``, and its errors to ``errors`` where that is another file.
        """
        request = {"arguments": list(arguments), "environment": {**os.environ, **environment}, "folder": os.getcwd()}
        with log.open("ab") as file, (errors or log).open("ab") as other:
            socket.send_fds(self._line, [json.dumps(request).encode()], [file.fileno(), other.fileno()])
        while not self._pids:
            self._read(blocks=True)
        pid = self._pids.pop()
        self.commands[pid] = list(arguments)
        return Forked(self, pid, arguments)

    def exit_code(self, pid: int) -> int | None:
        """Return how a program that was forked has ended; None while it runs."""
        self._read(blocks=False)
        return self._ended.get(pid)

    def _read(self, *, blocks: bool) -> None:
        self._line.setblocking(blocks)
        with contextlib.suppress(BlockingIOError):
            while data := self._line.recv(_MAX_BYTES):
                said = json.loads(data)
                if "started" in said:
                    self._pids.append(said["started"])
                    if blocks:
                        return
                else:
                    self._ended[said["ended"]] = said["code"]
            raise AssertionError("the process that programs are forked from has ended")


_server: ForkServer | None = None


def server() -> ForkServer | None:
    """Return this process's server, started if it is not yet; None where programs are not forked."""
    global _server
    if _server is None and sys.platform == "linux":
        _server = ForkServer()
        atexit.register(_server.close)
    return _server


def server_pid() -> int | None:
    """Return the process id of this process's server; None while there is none."""
    return None if _server is None else _server.pid


def run(*arguments: str | Path, deadline_s: float = 240.0) -> "subprocess.CompletedProcess[str]":
    """Return how ``python -P -m ARGUMENTS`` ended, and what it printed; the first is a module with a ``main``."""
    words = [str(argument) for argument in arguments]
    there = server()
    if there is None:
        return subprocess.run([sys.executable, "-P", "-m", *words], capture_output=True, text=True, timeout=deadline_s, check=False)
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        program = there.start(words, output, {}, errors)
        try:
            code = program.wait(deadline_s)
        finally:
            program.kill()
        return subprocess.CompletedProcess(words, code, output.read_text(), errors.read_text())


def commands() -> dict[int, list[str]]:
    """Return the command lines of the programs that were forked for this process, by process id; some have ended."""
    return {} if _server is None else _server.commands


# The server's side.


def _program(arguments: Sequence[str]) -> Callable[[], None]:
    """Return what ``python -P -m ARGUMENTS`` does."""
    sys.argv = [arguments[0], *arguments[1:]]
    main: Any = importlib.import_module(arguments[0]).main
    return main  # type: ignore[no-any-return]


def serve(line: socket.socket) -> Callable[[], None] | None:
    """Fork programs until the other side of ``line`` is gone. Returns what a program is to do, in its own process; None in the server."""
    wake, waker = socket.socketpair()
    for each in (wake, waker):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    running: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    while wake.recv(4096):
                        pass
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    running.discard(pid)
                    line.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())
            if line not in ready:
                continue
            data, files, _, _ = socket.recv_fds(line, _MAX_BYTES, 2)
            if not data:
                return None  # what runs is ended by the kernel, with this process
            asked = json.loads(data)
            if (pid := os.fork()) == 0:
                break
            running.add(pid)
            for file in files:
                os.close(file)
            line.send(json.dumps({"started": pid}).encode())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in (line, wake, waker):
        each.close()
    return _as_program(asked, *files)


def _as_program(asked: dict[str, Any], log: int, errors: int) -> Callable[[], None]:
    """Make this process, a fork, what a program that was started finds; return what it is to do."""
    os.setsid()
    ask_for_end_with_parent(signal.SIGKILL)
    for place, file in ((1, log), (2, errors)):
        os.dup2(file, place)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # as the environment says
    random.seed()
    import numpy as np

    np.random.seed()
    return _program(asked["arguments"])


def run_to_end(work: Callable[[], None]) -> NoReturn:
    """Do what a program does, and end as it does, but for taking apart all that was loaded: that takes a second of a processor."""
    code: int | None = None
    try:
        work()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    gc.freeze()  # what was loaded is looked at no more, and so stays in memory that all share
    with socket.socket(fileno=int(sys.argv[1])) as _line:
        _work = serve(_line)
    if _work is not None:
        gc.unfreeze()
        run_to_end(_work)
