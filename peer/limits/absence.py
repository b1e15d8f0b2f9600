"""Notices that this computer, or this program, stood still for a while: a laptop that was closed, a process that was stopped."""

import asyncio
import sys
import time

from manta_swarm.network import timeouts


def _now_s() -> float:
    """Return the time in seconds by a clock that goes on while the computer sleeps."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()  # a person may set it; then an absence is seen that was none, which does no harm


class Absences:
    """Sees by a clock's jumps that nothing ran here."""

    def __init__(self, now_s: float | None = None) -> None:
        """Begin at this time; None: now."""
        self._last_s = _now_s() if now_s is None else now_s

    async def next_return(self) -> float:
        """Return after the next absence for about how many seconds it lasted."""
        self._last_s = _now_s()
        while True:
            await asyncio.sleep(timeouts.LOOK_AT_CLOCK_S)
            if (absent_s := self.look(timeouts.LOOK_AT_CLOCK_S, _now_s())) > 0:
                return absent_s

    def look(self, expected_s: float, now_s: float) -> float:
        """Return how much more time went by since the last look than was expected, where that is an absence; else 0."""
        missing_s, self._last_s = now_s - self._last_s - expected_s, now_s
        return missing_s if missing_s > timeouts.ABSENT_S else 0.0
