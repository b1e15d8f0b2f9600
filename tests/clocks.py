"""Clocks for tests."""


class ManualClock:
    """A ``Clock`` that stands still until the test moves it; its time of day counts from the same moment."""

    def __init__(self, now_s: float = 1000.0) -> None:
        """Stand at this many seconds."""
        self._now_s = now_s

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds; a negative number moves back, as a time of day may."""
        self._now_s += seconds

    def now_ms(self) -> float:
        return 1000 * self._now_s

    def now_s(self) -> float:
        return self._now_s

    def unix_ms(self) -> int:
        return round(1000 * self._now_s)
