"""Clocks that programs are given, so that a test gives one of its own."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now_ms(self) -> float:
        """Return the time in milliseconds by a clock that does not go back. Only differences mean something."""

    def now_s(self) -> float:
        """Return the same time in seconds."""

    def unix_ms(self) -> int:
        """Return the time of day in milliseconds since 1970, as people see it. It may go back."""


class SystemClock:
    """This computer's clocks."""

    def now_ms(self) -> float:
        """Return the time of the monotonic clock in milliseconds."""
        return time.monotonic_ns() / 1e6

    def now_s(self) -> float:
        """Return the time of the monotonic clock in seconds."""
        return time.monotonic()

    def unix_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()
