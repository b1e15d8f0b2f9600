"""What a program says while it runs: a line for a person, or an object for a program, and the last of them for a view that asks later.

Whoever reads may be slow, or gone: a thread does the printing, what it cannot print in time is left out, and nobody waits for it.
"""

import contextlib
import json
import queue
import sys
import threading
from collections import deque
from collections.abc import Mapping
from enum import Enum
from types import TracebackType
from typing import Protocol

Value = str | int | float | bool | None | Mapping[str, str] | list[dict[str, object]]

_REMEMBERED = 40  # lines
_MAX_CHARACTERS = 400  # of a line that is remembered
_WAITING = 1000  # lines that nobody reads, until more are left out
_LAST_S = 2.0  # for the last lines to be printed


class Console(Protocol):
    """Takes lines for a person."""

    def say(self, text: str) -> None:
        """Say a line."""


class Form(Enum):
    """How it is printed."""

    LINES = "lines"
    OBJECTS = "objects"  # JSON, one a line
    SILENT = "silent"  # nobody reads it


class PrintingConsole:
    """Prints at once, or while it is a context from a thread of its own."""

    def __init__(self, form: Form = Form.LINES) -> None:
        """Speak in this form, which may be changed at any time."""
        self.form = form
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        self._waiting: queue.Queue[object] = queue.Queue(_WAITING)  # lines, and None as the last
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "PrintingConsole":
        self._thread = threading.Thread(target=self._print_all, name="console", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_LAST_S)
            thread.join(_LAST_S)

    def last(self) -> tuple[str, ...]:
        """Return the last lines, the newest one at the end."""
        return tuple(self._last)

    def say(self, text: str) -> None:
        """Say a line."""
        self._last.append(text[:_MAX_CHARACTERS])
        if self.form is Form.LINES:
            self._print(text)
        elif self.form is Form.OBJECTS:
            self.tell("said", text=text)

    def tell(self, event: str, **fields: Value) -> None:
        """Tell a program of an event; persons are not told."""
        if self.form is Form.OBJECTS:
            self._print(json.dumps({"event": event, **fields}))

    def _print(self, line: str) -> None:
        if self._thread is None:
            print(printable(line), flush=True)
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(line)

    def _print_all(self) -> None:
        while isinstance(line := self._waiting.get(), str):
            try:
                print(printable(line), flush=True)
            except OSError:  # who read is gone, the terminal closed: the program goes on, and views may still ask
                self.form = Form.SILENT


def printable(line: str) -> str:
    """Return a line with what the terminal has no letters for written in others: the words of an operator are in any."""
    encoding = sys.stdout.encoding or "ascii"
    return line.encode(encoding, "backslashreplace").decode(encoding)
