"""How long things take that run again and again: all of them take turns, visit by visit in a new order.

So a drift of the machine's clock hits all alike. The fastest run of a visit counts, for other programs can only make it longer, and then
the median over the visits.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from manta_swarm.runtime.clock import SYSTEM_CLOCK

_WARM_UPS = 2
_MIN_RUNS, _MAX_RUNS = 3, 50  # of a fast subject in one visit
_SLOW_MS = 20.0  # a subject that takes so long runs once in a visit, and does not care what others left in the caches

Told = Callable[[int, int], None]  # hears how many measurements of how many are done


@dataclass(frozen=True, slots=True)
class MeasuringEffort:
    """How often things are measured."""

    visits: int
    min_visits: int  # of a slow subject
    visit_ms: float  # a fast subject runs several times in one visit, for about so long
    subject_ms: float  # a slow subject is visited less often, for about so long in all
    num_networks: int  # random whole networks, besides the extremes


THOROUGH = MeasuringEffort(visits=15, min_visits=5, visit_ms=2.0, subject_ms=600.0, num_networks=14)
QUICK = MeasuringEffort(visits=2, min_visits=2, visit_ms=0.5, subject_ms=100.0, num_networks=4)
BESIDE = MeasuringEffort(visits=3, min_visits=2, visit_ms=2.0, subject_ms=30.0, num_networks=0)  # for ``automl.latency.profiler.core_ms``


class TimedSubject(Protocol):
    """A thing whose time is measured."""

    def run(self) -> object:
        """Run once."""


class Seconds(Protocol):
    """A clock that only goes on: ``runtime.clock.Clock`` is one, or the time that a thread was given."""

    def now_s(self) -> float:
        """Return the seconds since some moment."""


class Queue(Protocol):
    """A device that works on one run while it is told the next."""

    def synchronize(self) -> None:
        """Return when it has done all that it was told."""


class Stopwatch:
    """Takes the times of subjects."""

    def __init__(self, clock: Seconds = SYSTEM_CLOCK, queue: Queue | None = None) -> None:
        """Read a clock before and after; ``queue`` is the device that is waited for, None where a run is over when it returns."""
        self._clock = clock
        self._queue = queue

    def median_ms(self, subjects: Sequence[TimedSubject], effort: MeasuringEffort, told: Told) -> list[float]:
        """Return the milliseconds of one run of each subject: the median over its visits."""
        done = iter(range(1, 1 << 40))
        run_ms: list[float] = []
        for subject in subjects:
            self._times_ms(subject, _WARM_UPS)
            run_ms += self._times_ms(subject, 1)
            told(next(done), len(subjects) * (1 + effort.visits))
        visits = [min(effort.visits, max(effort.min_visits, round(effort.subject_ms / each_ms))) for each_ms in run_ms]
        total = len(subjects) + sum(visits)
        times_ms: list[list[float]] = [[] for _ in subjects]
        for visit in range(effort.visits):
            visited = [index for index in range(len(subjects)) if visit < visits[index]]
            for index in random.Random(visit).sample(visited, len(visited)):
                runs = 1
                if run_ms[index] < _SLOW_MS:
                    runs = min(max(_MIN_RUNS, round(effort.visit_ms / run_ms[index])), _MAX_RUNS)
                    self._times_ms(subjects[index], 1)  # brings its weights back into the caches
                times_ms[index].append(min(self._times_ms(subjects[index], runs)))
                told(next(done), total)
        return [statistics.median(times) for times in times_ms]

    def _times_ms(self, subject: TimedSubject, runs: int) -> list[float]:
        """Return the milliseconds of each of some runs; on a device that is waited for, their mean."""
        chunk = 1 if self._queue is None else runs
        times_ms = []
        for _ in range(runs // chunk):
            self._wait()
            started_s = self._clock.now_s()
            for _ in range(chunk):
                subject.run()
            self._wait()
            times_ms.append(max(self._clock.now_s() - started_s, 1e-9) * 1e3 / chunk)  # a clock may stand still, a latency is above zero
        return times_ms

    def _wait(self) -> None:
        if self._queue is not None:
            self._queue.synchronize()
