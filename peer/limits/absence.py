"""Notices that this computer, or this program, stood still for a while: a laptop that was closed, a process that was stopped."""

import asyncio
import sys
import time
from collections.abc import Callable

from manta_swarm.network import waits


def _now_s() -> float:
    """Return the time in seconds by a clock that goes on while the computer sleeps."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()  # a person may set it; then an absence is seen that was none, which does no harm


class Absences:
    """Sees by a clock's jumps that nothing ran here."""

    def __init__(self, on_return: Callable[[float], None], now_s: Callable[[], float] = _now_s) -> None:
        """Call ``on_return`` after each absence with the seconds that it lasted, about."""
        self._on_return = on_return
        self._now_s = now_s
        self._last_s = now_s()

    async def watch(self) -> None:
        """Look again and again; ends when it is cancelled."""
        self._last_s = self._now_s()
        while True:
            await asyncio.sleep(waits.LOOK_AT_CLOCK_S)
            self.look(waits.LOOK_AT_CLOCK_S)

    def look(self, expected_s: float) -> None:
        """Compare the time that went by since the last look with what was expected."""
        now_s = self._now_s()
        missing_s, self._last_s = now_s - self._last_s - expected_s, now_s
        if missing_s > waits.ABSENT_S:
            self._on_return(missing_s)
