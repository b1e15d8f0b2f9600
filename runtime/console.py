"""Prints what a program says while it runs, for a person or as JSON, keeps the last lines for other views, and sets up logging.

Whoever reads may be slow, or gone: a thread does the printing, what it cannot print in time is left out, and nobody waits for it.
"""

import contextlib
import json
import logging
import queue
import re
import sys
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Protocol

Value = str | int | float | bool | None | Mapping[str, str] | list[dict[str, object]]

_REMEMBERED = 40  # lines
_MAX_CHARACTERS = 400  # of a line that is remembered
_WAITING = 1000  # lines that nobody reads, until more are left out
_LAST_S = 2.0  # for the last lines to be printed

FORMATS = ("text", "json")
_FIELD = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*)=")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?")
_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}  # libraries rename them
_OWN = ("time", "level", "logger", "event")


class Console(Protocol):
    """Takes lines for a person."""

    def say(self, text: str) -> None:
        """Say a line."""


class Form(Enum):
    """How a console prints its lines."""

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


def set_up_logging(form: str, *, verbose: bool) -> None:
    """Log from now on in one of ``FORMATS``: warnings, and with ``verbose`` what happens between the rounds."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, logger, event, and the fields of its message."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        trace = self.formatException(record.exc_info) if record.exc_info else None
        return json_line(
            record.getMessage(), level=_LEVELS.get(record.levelno, "critical"), logger=record.name, at_s=record.created, trace=trace
        )


def json_line(message: str, *, level: str, logger: str, at_s: float, trace: str | None = None) -> str:
    """Return a message as one line of JSON; ``at_s`` is in seconds since 1970."""
    event, fields = _parts(message)
    time = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, object] = {"time": time, "level": level, "logger": logger, "event": event}
    line |= {name if name not in _OWN else f"{name}_": value for name, value in fields.items()}
    if trace is not None:
        line["traceback"] = trace
    return json.dumps(line, ensure_ascii=False)


def _parts(message: str) -> tuple[str, dict[str, object]]:
    """Return a message's event and its fields; what follows a field's sign up to the next field is its value."""
    found = list(_FIELD.finditer(message))
    if not found:
        return message.strip(), {}
    ends = [*(each.start() for each in found[1:]), len(message)]
    fields = {each[1]: _value(message[each.end() : end].strip()) for each, end in zip(found, ends, strict=True)}
    return message[: found[0].start()].strip(), fields


def _value(text: str) -> object:
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    return float(text) if number[2] else int(text)
