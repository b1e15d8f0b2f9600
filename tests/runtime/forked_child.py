"""Children that start in a moment: forks of the process that tests' programs are forked from, with the line and the descriptors of a child.

For tests of what children do. How a child is started and ends with its parent, ``test_child`` shows of real ones.
"""

import fcntl
import importlib
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.runtime.child import Child, Program, python
from manta_swarm.runtime.line import be_child
from tests import forked

_ACCEPT_S = 240.0
_MOST_FILES = 16
_ABOVE = 512  # all numbers that a parent has said

_asking = threading.Lock()  # the server, which answers one question at a time; a child's end is waited for in a thread


class ForkedProcess(forked.Forked):
    """One that several threads may look at."""

    def poll(self) -> int | None:
        """See ``Forked``."""
        with _asking:
            return super().poll()


def _start(program: Program) -> Child:
    """Start a child that is talked to, of a module with ``MESSAGES`` and ``work``; what it prints goes nowhere."""
    server = forked.server()
    assert server is not None
    module, *arguments = program.command[len(python("-m")) :]
    files, (ours, theirs) = list(program.pass_fds), socket.socketpair()
    ours.setblocking(False)
    with theirs, tempfile.TemporaryDirectory() as folder, socket.create_server(f"{folder}/door", family=socket.AF_UNIX) as door:
        door.settimeout(_ACCEPT_S)
        words = [__name__, f"{folder}/door", ",".join(map(str, (0, *files))), module, *arguments]
        with _asking:
            pid = server.start(words, Path(os.devnull), program.environment).pid
        caller, _ = door.accept()
        with caller:
            socket.send_fds(caller, [b"."], [theirs.fileno(), *files])
    process: Any = ForkedProcess(server, pid, words)
    return Child(program, process, ours)


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Children are forked where that can be. Returns those that were started so far."""
    started: list[Program] = []
    start = Child.start if forked.server() is None else _start

    def noted(program: Program) -> Child:
        started.append(program)
        return start(program)

    monkeypatch.setattr(Child, "start", noted)
    return started


def forked_program(log: Path, module: str, *arguments: str) -> Child:
    """Start a module's ``main`` as a program of its own that prints to ``log``, forked where that can be."""
    program = Program(module, python("-m", module, *arguments), log, {"PYTHONPATH": str(Path(__file__).parents[2])})
    if (server := forked.server()) is None:
        return Child.start(program)
    process: Any = server.start([module, *arguments], log, program.environment)
    return Child(program, process)


def main() -> None:
    """Be the child, in its own process."""
    path, places = sys.argv[1], [int(place) for place in sys.argv[2].split(",")]
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(path)
        _, files, _, _ = socket.recv_fds(door, 1, _MOST_FILES)
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE) for file in files]
    for file in files:
        os.close(file)
    for file, place in zip(above, places, strict=True):
        os.dup2(file, place)
        os.close(file)
    sys.argv = sys.argv[3:]
    module: Any = importlib.import_module(sys.argv[0])
    be_child(module.MESSAGES, module.work)
