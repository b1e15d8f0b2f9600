"""The terminal, lent while a peer runs to a dashboard: a process of its own (``peer.dashboard.process``) that asks over the control socket.

It may crash, hang, or be killed: the peer does not wait for it, and says a line a round from then on. Whatever ends first, the terminal
is as it was before: after the peer's end the dashboard mends it, after the dashboard's the peer. What libraries print meanwhile is told
at the end.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from peer.dashboard.terminal import MEND
from protocol.errors import UserError
from swarm.voice import Form, Voice, printable

_OUT, _ERRORS = 1, 2
_CLOSES_S = 5.0  # for the dashboard to give the terminal back
_SHOWN_LINES = 3  # of the last ones that the peer said
_STRAY_BYTES = 4096


def can_be_lent() -> bool:
    """Return whether there is a terminal that this program has for itself, and what draws on it is installed."""
    return _has_terminal() and _has_textual()


def check_can_be_lent() -> None:
    """Refuse what needs a terminal where there is none.

    Raises:
        UserError: there is none, or nothing to draw on it with.
    """
    if not _has_terminal():
        raise UserError("this needs a terminal, in its foreground and with a TERM that is not dumb: leave --watch out")
    if not _has_textual():
        raise UserError("this needs Textual, which comes with the extra: pip install 'manta-swarm[swarm]'")


def _has_terminal() -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(_OUT) == os.getpgrp()  # else it runs in the background
    return False


def _has_textual() -> bool:
    return find_spec("textual") is not None


class Remembering(logging.Handler):
    """Keeps what is logged where the dashboard shows it."""

    def __init__(self, voice: Voice) -> None:
        """Keep it with ``voice``."""
        super().__init__()
        self._voice = voice
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self._voice.remember(" ".join(self.format(record).split()))


class Screen:
    """The terminal while the dashboard has it; a context manager, for the main thread."""

    def __init__(self, directory: Path, voice: Voice) -> None:
        """Show the peer of ``directory``, whose ``voice`` is silent as long as the dashboard runs."""
        self._directory = directory
        self._voice = voice
        self._is_closing = False
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Screen":
        self._before = termios.tcgetattr(_OUT)
        self._terminal = (os.dup(_OUT), os.dup(_ERRORS))
        self._stray = self._open.enter_context(tempfile.TemporaryFile())
        told, self._end = os.pipe()  # a byte: the peer ended; its end without one: the peer was killed
        command = [sys.executable, "-P", "-m", "peer.dashboard.process", str(self._directory), str(os.getpid()), str(told)]
        sys.stdout.flush()
        self._process = subprocess.Popen(command, pass_fds=(told,))
        os.close(told)
        for descriptor in (_OUT, _ERRORS):
            os.dup2(self._stray.fileno(), descriptor)
        self._voice.form = Form.SILENT
        self._handler = Remembering(self._voice)
        logging.getLogger().addHandler(self._handler)
        self._watch = threading.Thread(target=self._until_it_ends, name="screen", daemon=True)
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_closing = True
        with contextlib.suppress(BrokenPipeError):
            os.write(self._end, b"x")
        os.close(self._end)
        try:
            self._process.wait(_CLOSES_S)
        except subprocess.TimeoutExpired:  # it hangs, as where the terminal does not read
            self._process.kill()
        self._watch.join(_CLOSES_S)
        self._open.close()

    def _until_it_ends(self) -> None:
        """Take the terminal back when the dashboard ends, whichever way."""
        code = self._process.wait()
        logging.getLogger().removeHandler(self._handler)
        if not self._mend(is_drawn=code < 0):
            return  # it was closed: nobody reads what is said
        for descriptor, terminal in zip((_OUT, _ERRORS), self._terminal, strict=True):
            os.dup2(terminal, descriptor)
            os.close(terminal)
        self._voice.form = Form.LINES
        for line in self._lines(code):
            print(printable(line), flush=True)

    def _lines(self, code: int) -> Iterator[str]:
        """Yield what is to be seen where the dashboard was."""
        yield from self._voice.last()[-_SHOWN_LINES:]
        if not self._is_closing:
            how = "" if code == 0 else f" ({_how(code)})"
            yield f"the dashboard is closed{how}; the peer goes on and says a line a round (Ctrl-C leaves the run)"
        self._stray.seek(max(0, self._stray.seek(0, os.SEEK_END) - _STRAY_BYTES))
        if stray := self._stray.read().decode("utf-8", "replace").strip():
            yield f"printed meanwhile: {stray}"

    def _mend(self, *, is_drawn: bool) -> bool:
        """Make the terminal what it was, and leave the dashboard's screen if it ``is_drawn`` still; False: it is gone."""
        try:
            termios.tcsetattr(self._terminal[0], termios.TCSANOW, self._before)
            os.write(self._terminal[0], MEND if is_drawn else b"")
        except (termios.error, OSError):
            return False
        return True


def _how(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"it failed, exit code {code}"
