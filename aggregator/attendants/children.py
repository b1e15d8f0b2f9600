"""Programs that ``manta-swarm`` or an aggregator starts: each in a session of its own, its output in a file, and none outlives its parent.

The session keeps a terminal's Ctrl-C away from them: the parent passes it on in its own order. On Linux the kernel kills them when the
parent ends without having stopped them (its ``kill -9``). What a program starts itself (its p2p daemon) ends with it by the same means.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import psutil

from swarm.tether import tethered

_POLL_S = 0.1
_MAX_LOG_BYTES = 1 << 20
_LAST_BYTES = 1 << 16
_STEPS = (  # signal, and the seconds that it is given
    (signal.SIGINT, 15.0),  # hand in what is trained, bring what audits want of it, close the log
    (signal.SIGTERM, 5.0),  # a program that was already told stops at once
    (signal.SIGKILL, 10.0),
)
_DAEMONS_S = 10.0  # for what the programs had started to end after them


@dataclass(frozen=True, slots=True)
class Child:
    """A program that was started."""

    name: str
    process: "subprocess.Popen[bytes]"
    log_path: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> "Child":
        """Start ``command``, what it prints in ``log_path``. Call it on the main thread: the child ends when that ends."""
        with open_log(log_path) as log:
            process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return cls(name, process, log_path)

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number if one ended it; None while it runs."""
        return self.process.poll()

    def last_lines(self, count: int = 20) -> str:
        """Return the end of what it printed."""
        return last_lines(self.log_path, count)


def open_log(path: Path) -> BinaryIO:
    """Return the file for what a program prints, to be appended to; one that became long is put aside, in the place of the one before."""
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.before"))
    return path.open("ab")


def last_lines(path: Path, count: int) -> str:
    """Return the last lines of a file, as far as they are no book."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-count:])


def stop(children: Sequence[Child], *, hurry: Callable[[], bool] = lambda: False) -> None:
    """End the children and all that they started: asked first, killed after a deadline, or as soon as ``hurry`` says so."""
    family = [process for child in children if child.returncode is None for process in _descendants(child)]
    for number, patience_s in _STEPS:
        running = [child for child in children if child.returncode is None]
        for child in running:
            child.process.send_signal(signal.SIGKILL if hurry() else number)
        _wait(partial(_have_ended, running), patience_s, hurry)
    _wait(lambda: not any(_is_alive(process) for process in family), _DAEMONS_S, lambda: False)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _have_ended(children: Sequence[Child]) -> bool:
    return all(child.returncode is not None for child in children)


def _wait(is_over: Callable[[], bool], patience_s: float, hurry: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience_s
    hurried_before = hurry()
    while not is_over() and time.monotonic() < deadline and hurry() == hurried_before:
        time.sleep(_POLL_S)


def _descendants(child: Child) -> list[psutil.Process]:
    try:
        return list(psutil.Process(child.process.pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        # A zombie has ended: who adopted it in a container may never ask for its exit code.
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
