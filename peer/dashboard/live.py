"""The live view of ``manta-peer join``: a few lines below what the peer says, drawn again and again by the peer itself.

It writes lines, moves the cursor over them, and sets nothing of the terminal: after a peer that was killed there is nothing to mend. While
the peer is not in the terminal's foreground it says lines only.
"""

import asyncio
import contextlib
import logging
import os
import queue
import sys
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.peer.dashboard import text
from manta_swarm.peer.dashboard.text import MinuteRates, StatusWindow
from manta_swarm.runtime.console import Form, PrintingConsole, printable

_EVERY_S = 0.5
_DUE = object()  # among the lines that wait: a status is to be drawn
_LEAST_LINES = 4  # of a terminal below what is said
_STYLES = {"TRAINING": "bold green", "PAUSED": "bold yellow", "WAITING": "bold yellow", "LEAVING": "bold yellow"}


def is_possible() -> bool:
    """Return whether standard output is a terminal that such a view can be drawn on, and this program has it for itself."""
    has_letters = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and has_letters and _is_in_front()


def _is_in_front() -> bool:
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()  # else it runs in the background
    return False


class LiveView(PrintingConsole):
    """Says lines, and shows below them where the peer stands; a context manager, for the main thread."""

    def __init__(self, hint: str) -> None:
        """Show ``hint`` as the last line."""
        super().__init__(Form.LINES)
        self._hint = hint
        self._newest: PeerStatus | None = None
        self._is_due = False  # among what waits it is said that the newest is to be drawn: set before, taken back by the thread
        self._logs: list[logging.StreamHandler[Any]] = []

    def __enter__(self) -> "LiveView":
        super().__enter__()
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr and sys.stderr.isatty():
                handler.setStream(_Logged(self))
                self._logs.append(handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handler in self._logs:
            handler.setStream(sys.stderr)
        super().__exit__(kind, error, trace)

    def show(self, status: PeerStatus) -> None:
        """Show where the peer stands; where the terminal is slow, only the newest is drawn."""
        self._newest = status
        if self._is_due:
            return
        self._is_due = True
        try:
            self._waiting.put_nowait(_DUE)
        except queue.Full:
            self._is_due = False

    def _print_all(self) -> None:
        lower, window = _Lower(Console(highlight=False, markup=False, emoji=False)), StatusWindow()
        while (item := self._waiting.get()) is not None:
            if item is _DUE:
                self._is_due = False
            if self.form is Form.SILENT:
                continue
            try:
                if item is not _DUE:
                    lower.say(str(item))
                elif (status := self._newest) is not None:
                    lower.draw(status, window.add(time.monotonic(), status), self._hint)
            except OSError:  # who read is gone, the terminal closed: the peer goes on, and views may still ask
                self.form = Form.SILENT
        with contextlib.suppress(OSError):
            lower.clear()


class _Logged:
    """What is logged goes above the view, and to whoever looks from elsewhere."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self._view.say(line)

    def flush(self) -> None:
        """There is nothing to do."""


class _Lower:
    """The lower part of the terminal."""

    def __init__(self, console: Console) -> None:
        """Begin with nothing drawn on ``console``."""
        self._console = console
        self._lines: list[Text] = []
        self._lengths: list[int] = []  # of the lines that are on the terminal

    def say(self, line: str) -> None:
        """Print a line above the view."""
        self._write(f"{printable(line)}\n", self._lines)

    def draw(self, status: PeerStatus, rates: MinuteRates | None, hint: str) -> None:
        """Draw the view anew."""
        self._lines = lines(status, rates, hint, self._console.width - 1)[: max(1, self._console.height - _LEAST_LINES)]
        self._write("", self._lines)

    def clear(self) -> None:
        """Remove the view."""
        self._write("", [])

    def _write(self, said: str, lines: Sequence[Text]) -> None:
        is_in_front, width = _is_in_front(), self._console.width
        rows = sum(max(1, -(-length // width)) for length in self._lengths) if is_in_front else 0  # a narrower terminal broke them
        with self._console.capture() as drawn:
            for line in lines if is_in_front else ():
                self._console.print(line, no_wrap=True, crop=True)
        print((f"\x1b[{rows}A\r\x1b[J" if rows else "") + said + drawn.get(), end="", flush=True)
        self._lengths = [min(line.cell_len, width) for line in lines] if is_in_front else []


def lines(status: PeerStatus, rates: MinuteRates | None, hint: str, width: int) -> list[Text]:
    """Return the view's lines, none longer than ``width``."""
    word, why = text.headline(status)
    shown = [Text(text.short(f"{word}  {why}", width), _STYLES.get(word, "bold"))]
    shown += [Text(line) for line in text.progress(status, width) if line]
    if status.run:
        shown += [Text(text.short(" · ".join(facts), width)) for facts in (text.own_facts(status, rates), text.swarm_facts(status, rates))]
    return [*shown, Text(text.short(hint, width), "dim")]


class StatusSource(Protocol):
    """Tells where a peer stands (``peer.limits.limiter.Limiter``)."""

    def status(self) -> PeerStatus:
        """Return where the peer stands."""


@contextlib.asynccontextmanager
async def shown_live(console: PrintingConsole, seen: StatusSource) -> AsyncIterator[None]:
    """Show where a peer stands, again and again, where ``console`` is a live view."""

    async def keep(view: LiveView) -> None:
        while True:
            view.show(seen.status())
            await asyncio.sleep(_EVERY_S)

    showing = asyncio.create_task(keep(console)) if isinstance(console, LiveView) else None
    try:
        yield
    finally:
        if showing is not None:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing
