"""What changes all the time: ``/api/now``, ``/api/traffic`` and who is where, made of what is seen at a moment."""

from collections import deque

from manta_swarm.aggregator.monitor.people import People, people
from manta_swarm.aggregator.monitor.quality import EvaluationSeen
from manta_swarm.aggregator.monitor.shown import Json, shown_alarm, shown_final, shown_people, shown_quality
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.status import AggregatorStatus

_MAX_LATE = 20
_RATE_MS = 10_000


class Present:
    """Makes the answers about the present moment."""

    def __init__(self, sight: Sight) -> None:
        """Answer from what ``sight`` sees."""
        self._sight = sight
        self._totals: deque[tuple[int, int, int]] = deque()  # when, bytes received, bytes sent
        self._people: tuple[tuple[object, int, int], People] | None = None

    def people(self, now: int) -> People:
        """Return where everybody stands; of one second it is made once."""
        sight = self._sight
        made_of = (sight.status, sight.view.round, now // 1000)
        if self._people is None or self._people[0] != made_of:
            self._people = (made_of, people(sight.view, sight.status, now))
        return self._people[1]

    def now(self, now: int) -> Json:
        """Return ``/api/now``."""
        sight, view = self._sight, self._sight.view
        rounds, there = view.rounds, self.people(now)
        row = rounds.row(view.round) if view.round else None
        recent_ms, head = rounds.recent_ms(), sight.newest_head
        newest = sight.evaluations.newest
        return {
            "at": now,
            "round": view.round,
            "num_rounds": view.manifest.num_rounds,
            "is_finished": view.is_finished,
            "state": (row.state if row is not None else view.manifest.initial_state).hex(),
            "committed_at": row.committed_at if row is not None else None,
            "round_ms": round(recent_ms) if recent_ms is not None else None,
            "left_ms": round(recent_ms * (view.manifest.num_rounds - view.round)) if recent_ms is not None else None,
            "counted": row.counted if row is not None else 0,
            "counted_total": rounds.counted_total,
            "contributions": row.contributions if row is not None else 0,
            "open": None if view.is_finished else self._open(sight.status, there, now),
            "peers": shown_people(there),
            "head": {"size": head.head.size, "root": head.head.root.hex()} if head is not None else None,
            "traffic": self._traffic(now),
            "quality": self._quality(newest),
            "pictures_round": sight.pictures.index.round,
            "alarms": [shown_alarm(alarm) for alarm in sight.alarms.on],
            "sources": {
                "log_ms": max(0, now - sight.looked_at),
                "live_ms": max(0, now - sight.status.written_at) if sight.status is not None else None,
                "evaluation_ms": max(0, now - newest.at) if newest is not None else None,
            },
            "reading": {"entries": sight.num_read, "of": sight.reading_to} if sight.num_read < sight.reading_to else None,
        }

    def traffic(self, now: int) -> Json:
        """Return ``/api/traffic``."""
        status = self._sight.status
        calls = (
            None
            if status is None
            else [
                {"method": method, "calls": one.calls, "in_bytes": one.in_bytes, "out_bytes": one.out_bytes}
                for method, one in sorted(status.calls.items())
            ]
        )
        return {
            "since": status.started_at if status is not None else None,
            **self._traffic(now),
            "calls": calls,
            "refused": dict(status.refused) if status is not None else None,
        }

    def note_traffic(self) -> None:
        """The aggregator said something new."""
        status = self._sight.status
        if status is None:
            return
        if self._totals and status.received_bytes < self._totals[-1][1]:  # it was started again
            self._totals.clear()
        self._totals.append((status.written_at, status.received_bytes, status.sent_bytes))
        while status.written_at - self._totals[0][0] > _RATE_MS and len(self._totals) > 1:
            self._totals.popleft()

    def _traffic(self, now: int) -> Json:
        status = self._sight.status
        if status is None:
            return dict.fromkeys(("in_bytes", "out_bytes", "in_bytes_s", "out_bytes_s"))
        in_s = out_s = None
        if len(self._totals) > 1:
            (begin, first_in, first_out), (end, last_in, last_out) = self._totals[0], self._totals[-1]
            seconds = max(end - begin, 1) / 1000
            in_s, out_s = round((last_in - first_in) / seconds), round((last_out - first_out) / seconds)
        return {"in_bytes": status.received_bytes, "out_bytes": status.sent_bytes, "in_bytes_s": in_s, "out_bytes_s": out_s}

    def _open(self, status: AggregatorStatus | None, there: People, now: int) -> Json | None:
        if status is None or status.open is None:
            return None
        one = status.open
        is_running = one.deadline_at is not None and one.stage != "idle"
        return {
            "round": one.round,
            "stage": one.stage,
            "open_ms": one.open_ms,
            "left_ms": max(0, one.deadline_at - now) if is_running and one.deadline_at is not None else one.open_ms,
            "expected": there.expected,
            "handed": there.handed,
            "good": there.good,
            "late": len(there.late),
            "late_peers": list(there.late[:_MAX_LATE]),
        }

    def _quality(self, newest: EvaluationSeen | None) -> Json | None:
        final = shown_final(self._sight.status)
        if final is not None and (newest is None or final["round"] >= newest.round):
            losses = shown_quality(newest) if newest is not None and newest.round == final["round"] else None
            return {
                **final,
                "loss_largest": losses["loss_largest"] if losses is not None else None,
                "loss_smallest": losses["loss_smallest"] if losses is not None else None,
                "is_final": True,
            }
        return shown_quality(newest) if newest is not None else None
