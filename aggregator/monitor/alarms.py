"""What is wrong with a run, as far as whoever looks on can tell, and since when. Pure: the time is an argument."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.protocol.exchange import grace_ms

MAX_ALARMS = 20
_SILENT_MS = 10_000
_STALLED_LEAST_MS = 30_000
_STALLED_TIMES = 4  # of what a round takes at most
_REFUSALS, _REFUSALS_MS = 20, 60_000  # for another log, within this time
_NOT_FOR_THIS_LOG = "not for this log"


@dataclass(frozen=True, slots=True)
class AlarmCause:
    """What an alarm is about: one thing that is wrong now."""

    kind: str  # "fork" | "divergence" | "stalled" | "silent" | "unreadable"
    level: str  # "alarm" | "warning"
    text: str
    round: int | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something wrong, and since when, in milliseconds since 1970."""

    cause: AlarmCause
    since: int


class Alarms:
    """The alarms that are on."""

    def __init__(self) -> None:
        """Begin with none."""
        self._on: dict[tuple[str, str], Alarm] = {}  # by kind and, of what lasts, text
        self._refusals: deque[tuple[int, int]] = deque()

    @property
    def on(self) -> list[Alarm]:
        """The alarms that are on, the newest first."""
        return sorted(self._on.values(), key=lambda alarm: -alarm.since)[:MAX_ALARMS]

    def keep(self, cause: AlarmCause, now: int) -> None:
        """Keep an alarm on for good: there is evidence, which nothing that comes later undoes."""
        key = (cause.kind, cause.text)
        if key not in self._on and sum(bool(text) for _, text in self._on) < MAX_ALARMS:
            self._on[key] = Alarm(cause, now)

    def look(self, causes: Iterable[AlarmCause], now: int) -> None:
        """Have the alarms of ``causes`` on, besides those that are kept for good; whichever is not among them passes."""
        passing = {(cause.kind, ""): cause for cause in causes}
        self._on = {key: alarm for key, alarm in self._on.items() if key[1] or key in passing}
        for key, cause in passing.items():
            before = self._on.get(key)
            self._on[key] = Alarm(cause, before.since if before is not None else now)

    def refused(self, status: AggregatorStatus, now: int) -> list[AlarmCause]:
        """Return a warning if many contributions were refused lately because they are for another log than this."""
        count = status.refused.get(_NOT_FOR_THIS_LOG, 0)
        while self._refusals and (now - self._refusals[0][0] > _REFUSALS_MS or count < self._refusals[0][1]):
            self._refusals.popleft()
        if not self._refusals or self._refusals[-1][1] != count:
            self._refusals.append((now, count))
        more = count - self._refusals[0][1]
        if more < _REFUSALS:
            return []
        return [
            AlarmCause(
                "divergence", "warning", f"{more} contributions within a minute were refused: they are for another log than this one"
            )
        ]


def of_the_aggregator(status: AggregatorStatus | None, started_at: int, now: int, *, is_finished: bool) -> list[AlarmCause]:
    """Return what is wrong with the aggregator, as its own words show; ``started_at``: since when they could have been heard."""
    said_at = status.written_at if status is not None else started_at
    if now - said_at > _SILENT_MS:
        return [
            AlarmCause("silent", "alarm", f"the aggregator has said nothing for {_in_words(now - said_at)}: it stopped, or its disk stands")
        ]
    if status is None or status.open is None or is_finished:
        return []
    open_round = status.open
    if open_round.stage == "idle" or open_round.opened_at is None:
        return []
    lasted_ms = now - open_round.opened_at
    usual_ms = open_round.open_ms + grace_ms(open_round.open_ms)
    if lasted_ms <= max(_STALLED_LEAST_MS, _STALLED_TIMES * usual_ms):
        return []
    why = "nothing that counts was handed in" if open_round.stage == "open" else f"it is {open_round.stage}"
    text = f"round {open_round.round} is open for {_in_words(lasted_ms)}, and should be for {_in_words(usual_ms)}: {why}"
    return [AlarmCause("stalled", "alarm", text, open_round.round)]


def _in_words(duration_ms: int) -> str:
    seconds = duration_ms / 1000
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
