"""Records what happened when in the newest rounds, by the wall clock, for people to see; no rule depends on it."""

from collections import deque
from dataclasses import dataclass

from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

KEPT = 64  # rounds
_FETCHES = frozenset({"blob", "weights", "listing"})  # methods that hand out what a commit made


@dataclass(slots=True)
class Times:
    """When what happened in one round, in milliseconds since 1970; None where it did not happen, or the program did not see it."""

    round: int
    opened_at: int | None = None
    first_header_at: int | None = None
    last_body_at: int | None = None
    deadline_at: int | None = None
    closed_at: int | None = None  # its table was settled
    committed_at: int | None = None
    first_fetch_at: int | None = None
    last_fetch_at: int | None = None


class Timeline:
    """Records the times of the newest rounds' phases, as they happen."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Know of nothing yet."""
        self._clock = clock
        self._committed: deque[Times] = deque(maxlen=KEPT)
        self._current = Times(0)

    @property
    def current(self) -> Times:
        """The round that is open."""
        return self._current

    @property
    def committed(self) -> tuple[Times, ...]:
        """The newest rounds, in order."""
        return tuple(self._committed)

    def opened(self, round_: int, *, is_waiting_for_first: bool = False) -> None:
        """A round was opened; or will be at its first header."""
        self._current = Times(round_, None if is_waiting_for_first else self._clock.unix_ms())

    def called(self, method: str) -> None:
        """A call of ``method`` came."""
        current, now = self._current, self._clock.unix_ms()
        if method == "header" and current.closed_at is None:
            current.opened_at = current.opened_at or now
            current.first_header_at = current.first_header_at or now

    def answered(self, method: str) -> None:
        """A call of ``method`` was answered."""
        if method == "body" and self._current.closed_at is None:  # the answer to a body's last byte is its inclusion promise
            self._current.last_body_at = self._clock.unix_ms()
        if method in _FETCHES and self._committed:
            newest = self._committed[-1]
            newest.last_fetch_at = self._clock.unix_ms()
            newest.first_fetch_at = newest.first_fetch_at or newest.last_fetch_at

    def due(self, left_ms: int) -> None:
        """The round's deadline is so far away; for as long as it is not over."""
        if self._current.closed_at is None:
            self._current.deadline_at = self._clock.unix_ms() + left_ms

    def closed(self) -> None:
        """The round's table was settled."""
        self._current.closed_at = self._clock.unix_ms()

    def done(self) -> None:
        """The round was committed: its entries are on the disk."""
        self._current.committed_at = self._clock.unix_ms()
        self._committed.append(self._current)
        self._current = Times(self._current.round + 1)
