"""How long a peer works in a round: a pure estimate from what it measured, so that its contribution is in by the deadline."""

from collections import deque

from protocol.exchange import MAX_LOT_MS

_REMEMBERED = 16  # lots, and times of handing in
_FIRST_PART = 8  # of the round's time, for handing in, before anything was measured


class Pace:
    """One peer's durations. Times are milliseconds of any clock that does not go back."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._deadline: float = 0.0
        self._open_ms: float = 0.0
        self._lots_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self._headers_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self._tickets_ms: deque[float] = deque(maxlen=_REMEMBERED)

    def opened(self, now: float, left_ms: float) -> None:
        """Note that headers for the round have ``left_ms`` from ``now`` on."""
        self._deadline, self._open_ms = now + left_ms, left_ms

    def lot_took(self, duration_ms: float) -> None:
        """Note how long a lot took."""
        self._lots_ms.append(duration_ms)

    def header_took(self, duration_ms: float) -> None:
        """Note how long it took from the last lot until the log had the header."""
        self._headers_ms.append(duration_ms)

    def ticket_took(self, duration_ms: float) -> None:
        """Note how long it took from the last lot until the ticket."""
        self._tickets_ms.append(duration_ms)

    @property
    def lot_ms(self) -> int:
        """The median lot's duration as a claim may name it; 1 before there is one."""
        return min(max(1, round(self._lot_ms)), MAX_LOT_MS)

    def left_ms(self, now: float) -> float:
        """Return how long headers still have."""
        return self._deadline - now

    def may_start_lot(self, now: float, lots: int, *, is_awaited: bool, step: int = 0, steps: int = 1, ends: float | None = None) -> bool:
        """Return whether another lot of a local step can be done; the first one always may.

        It has to be done before it is time to hand in, and there has to be time left for as many median lots in each of the steps to come:
        so the steps share the time evenly. In a cohort the step's end is the founder's word.

        Args:
            now: the time.
            lots: of this step, done so far.
            is_awaited: the log waits for this peer's body after the deadline, so that only the header has to be there by then.
            step: from 0.
            steps: of the round.
            ends: when this step ends in the peer's cohort; None: the peer divides its time itself.
        """
        if lots == 0:
            return True
        work_ends = self._deadline - 2 * self._hand_in_ms(is_awaited)
        if ends is None:
            ends = work_ends - (steps - 1 - step) * (lots + 1) * self._lot_ms
        return now + self._long_lot_ms <= min(ends, work_ends)

    @property
    def _lot_ms(self) -> float:
        return _median(self._lots_ms) if self._lots_ms else 0.0

    @property
    def _long_lot_ms(self) -> float:
        """The third longest lot, and at least the median: whoever is late waits for a whole round, and architectures differ in size."""
        longest_last = sorted(self._lots_ms)
        return longest_last[max(len(longest_last) // 2, len(longest_last) - 3)] if longest_last else 0.0

    def _hand_in_ms(self, is_awaited: bool) -> float:
        measured = self._headers_ms if is_awaited else self._tickets_ms
        return _median(measured) if measured else self._open_ms / _FIRST_PART


def _median(values: "deque[float]") -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
