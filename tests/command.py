"""One command as a person types it, in a home of its own: how it ended, what it printed, what it left.

Everything that a program writes without being told where goes below that home. Every process that a program starts inherits its
environment, so whatever is still running is found by that, wherever it moved to.
"""

import gc
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner

from tests.network.processes import DEADLINE_S, wait_for

_HOME = "MANTA_TEST_HOME"  # marks the processes of one home


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    exit_code: int
    output: str
    errors: str


class Home:
    """A person's home directory on a computer where nothing of Manta has run before."""

    def __init__(self, directory: Path, temporary: Path) -> None:
        """For ``new_home`` only."""
        self.directory = directory
        self.temporary = temporary
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MANTA_", "XDG_"))}
        self.environment = {
            **kept,
            _HOME: str(directory),
            "HOME": str(directory),
            "MANTA_STATE_DIR": str(directory / "state"),
            "TMPDIR": str(temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(directory / "torch"),  # torch makes it as soon as torchvision is imported
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        """Start ``python -m ARGUMENTS``."""
        return self._start("-m", *arguments)

    def start_program(self, name: str, *arguments: str | Path) -> "subprocess.Popen[str]":
        """Start ``manta-NAME ARGUMENTS`` as it is installed: from its first moment it is told of Ctrl-C."""
        return self._start("-c", f"import manta_swarm.programs; manta_swarm.programs.{name}()", *arguments)

    def _start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-P", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            start_new_session=True,
        )

    def run(self, *arguments: str | Path) -> Ended:
        """Return how ``python -m ARGUMENTS`` ended."""
        return self.end_of(self.start(*arguments))

    def end_of(self, process: "subprocess.Popen[str]") -> Ended:
        """Return how ``process`` ended, once it has; it must leave nothing running and no temporary file."""
        try:
            output, errors = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(f"{process.args} did not end; it printed:\n{output}{errors}") from None
        wait_for(lambda: not self.processes(), "what the command started has ended", detail=lambda: str(self.processes()))
        wait_for(lambda: not self._temporary_files(), "its temporary files are gone", detail=lambda: str(self._temporary_files()))
        return Ended(process.returncode, output, errors)

    def interrupted(self, process: "subprocess.Popen[str]") -> Ended:
        """Press Ctrl-C; return how ``process`` ended."""
        process.send_signal(signal.SIGINT)
        return self.end_of(process)

    def processes(self) -> list[psutil.Process]:
        """Return the processes that run here."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_HOME) == str(self.directory) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue  # it ended while it was looked at, or is none of ours
        return found

    def _temporary_files(self) -> list[str]:
        return sorted(path.name for path in self.temporary.iterdir())


@contextmanager
def new_home(directory: Path) -> Iterator[Home]:
    """Yield a home in ``directory``; what still runs there at the end is killed."""
    temporary = Path(tempfile.mkdtemp(prefix="home-"))  # short: a socket's path has at most 108 bytes
    home = Home(directory, temporary)
    try:
        yield home
    finally:
        for process in home.processes():
            process.kill()
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory for a test in this process, and no setting from outside. Returns the home directory."""
    for name in os.environ:
        if name.startswith(("MANTA_", "XDG_")):
            monkeypatch.delenv(name)
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("MANTA_STATE_DIR", str(directory / "state"))
    return directory


@pytest.fixture
def home(environment: Path) -> Iterator[Home]:
    """The same home, for the commands that a test starts."""
    with new_home(environment) as home:
        yield home


def typed(main: click.Command, *arguments: str | Path) -> Ended:
    """Return how a command ended that ran in this process, for what needs no process of its own to be seen."""
    root, answer = logging.getLogger(), signal.getsignal(signal.SIGINT)
    handlers, level = root.handlers[:], root.level
    try:
        ended = CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)
    finally:
        root.handlers[:], root.level = handlers, level
        signal.signal(signal.SIGINT, answer)
        gc.unfreeze()
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


def wait_for_line(process: "subprocess.Popen[str]", words: str) -> str:
    """Return the first line with ``words`` that ``process`` prints; the lines up to it are read."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    assert process.stderr is not None
    raise AssertionError(f"it ended without {words!r}: {process.stderr.read()}")


def has_keeper(process: "subprocess.Popen[str]") -> bool:
    """Return whether ``process`` has started its daemon's keeper; what its libraries ask as they are loaded are children of it too."""
    try:
        return any("tether.py" in " ".join(child.cmdline()) for child in psutil.Process(process.pid).children())
    except psutil.NoSuchProcess:
        return False  # one that ended while it was looked at


def contents(directory: Path) -> dict[Path, bytes]:
    """Return every file below ``directory``."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def assert_refused(ended: Ended, *words: str) -> None:
    """Check a user's mistake: exit code 2, and one line for the person with all of ``words`` in it."""
    assert ended.exit_code == 2, ended
    lines = ended.errors.splitlines()
    assert len(lines) == 1, ended
    assert lines[0].startswith(("manta-peer: ", "manta-aggregator: ")), ended
    for word in words:
        assert word in lines[0], ended


def assert_ended_by_hand(ended: Ended, exit_codes: Sequence[int] = (0, 130)) -> None:
    """Check the end by Ctrl-C: no error, and no noise either, but for a line that says so."""
    assert ended.exit_code in exit_codes, ended
    assert ended.errors == "" or re.fullmatch("manta-[a-z]+: ended by Ctrl-C\n", ended.errors), ended
    assert "Traceback" not in ended.output, ended
