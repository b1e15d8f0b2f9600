"""Who convenes a cohort's members for a base, whom it takes, how long it waits, and whose vector it leaves out: pure decisions.

Each peer decides by what it knows, and two may decide differently; then there are two rosters, and nobody is hurt. Times are milliseconds.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from manta_swarm.protocol.exchange import CLIP, MAX_COHORT
from manta_swarm.protocol.signing import PublicKey

_REMEMBERED = 8  # durations
SILENT_ROUNDS = 8  # that a founder is passed over for, and an absent member is not waited for
_PART = 3  # of a step: so much a microbatch may take, and so long a late member is waited for
_CONVENING_PART, MAX_CONVENING_MS = 8, 2000.0  # of the time for work at most, to find a roster
_LEAST_TIMEOUT_MS = 200.0
_HEADER_BYTES = 60_000  # of a contribution with its claims: one entry
MAX_LEFT_OUT = 100  # indices that a member's claim leaves out over all its steps; five bytes each
_CLAIM_BYTES, _STEP_BYTES = 1024, 56  # of a claim that leaves out no more than that
_MEAN_BYTES = 44  # of a contribution for each step
_GATHERING_PART, _LEAST_GATHERING_MS = 16, 200.0  # of the time for work, to gather what was learnt; before it was measured


class PassedOver:
    """Remembers which peers are passed over, and until which round, because they were silent or failed when it was their turn."""

    def __init__(self) -> None:
        """Know of nobody."""
        self._until: dict[PublicKey, int] = {}
        self._late: dict[PublicKey, int] = {}  # how long the newest lateness is remembered, in rounds

    def note(self, key: PublicKey, round: int) -> None:
        """Pass over ``key``, which was silent or failed in ``round``."""
        self._until = {other: until for other, until in self._until.items() if until >= round}
        self._until[key] = round + SILENT_ROUNDS

    def note_late(self, key: PublicKey, round: int) -> None:
        """``key`` is there, and was not where it should have been: passed over for a round, then for two, four, at last eight."""
        self.note(key, round)
        self._late = {other: rounds for other, rounds in self._late.items() if other in self._until}
        self._late[key] = min(2 * self._late.get(key, 0) or 1, SILENT_ROUNDS)
        self._until[key] = round + self._late[key]

    def covers(self, key: PublicKey, round: int) -> bool:
        """Return whether ``key`` is passed over in ``round``."""
        return self._until.get(key, 0) >= round

    def forgive(self, key: PublicKey) -> None:
        """``key`` has spoken."""
        self._until.pop(key, None)
        self._late.pop(key, None)


def choose_founder(own: PublicKey, cohort_peers: Iterable[PublicKey], silent: PassedOver, round: int) -> PublicKey:
    """Return who convenes a roster for ``round``: the smallest key among ``own`` and those cohort peers who were not silent lately."""
    return min([own, *(cohort_peer for cohort_peer in cohort_peers if not silent.covers(cohort_peer, round))])


def fits(microbatch_ms: int, left_ms: float, local_steps: int) -> bool:
    """Return whether a peer with microbatches of this duration can keep up with a roster: a microbatch takes at most a third of a step.

    Steps here are those of the whole round, of which about three quarters are left by now: a round is open for four median microbatches a
    step at least, and whoever has those has to fit.
    """
    return microbatch_ms * _PART * local_steps * 3 <= left_ms * 4


def convening_ms(left_ms: float) -> float:
    """Return how long a roster is convened at most, where so much time is left for the work."""
    return max(0.0, min(left_ms / _CONVENING_PART, MAX_CONVENING_MS))


def claim_bytes(local_steps: int) -> int:
    """Return how many bytes a founder takes of a member's packed claim at most."""
    return _CLAIM_BYTES + _STEP_BYTES * local_steps


def most_members(local_steps: int) -> int:
    """Return how many members a roster has at most, so that their claims fit into one entry: fewer where there are many steps."""
    return max(1, min(MAX_COHORT, (_HEADER_BYTES - _MEAN_BYTES * local_steps) // claim_bytes(local_steps)))


@dataclass(frozen=True, slots=True)
class Timetable:
    """When the vectors of a roster's steps are due."""

    last_ms: float  # by then what was learnt has to be gathered
    local_steps: int
    averaging_ms: float  # that averaging a step takes, measured
    gathering_ms: float  # from the end of the work until all is gathered, measured; 0: not yet
    start_ms: float

    @property
    def _work_ms(self) -> float:
        total_ms = max(self.last_ms - self.start_ms, 0.0)
        reserve_ms = self.gathering_ms or max(total_ms / _GATHERING_PART, _LEAST_GATHERING_MS)
        return total_ms - min(reserve_ms, total_ms / 4)

    @property
    def step_ms(self) -> float:
        """How long a step is."""
        return self._work_ms / self.local_steps

    def ends_ms(self, step: int, now_ms: float) -> float:
        """Return when the vectors of a step are due, as ``step`` begins at ``now_ms``: what is left is shared among the steps to come."""
        left_ms = max(self.start_ms + self._work_ms - now_ms, 0.0) / (self.local_steps - step)
        averaging_ms = min(self.averaging_ms, left_ms / _PART) if self.local_steps > 1 else 0.0
        return now_ms + left_ms - averaging_ms

    @property
    def timeout_ms(self) -> float:
        """How long a founder waits for a late vector of a step: a third of it, or what a busy machine may take to answer at all."""
        return max(self.step_ms / _PART, min(_LEAST_TIMEOUT_MS, self._work_ms / _CONVENING_PART))

    @property
    def last_timeout_ms(self) -> float:
        """How long a founder waits for the last member to say that it has learnt something."""
        return min(self.timeout_ms, max(self.last_ms - self.start_ms - self._work_ms, _LEAST_GATHERING_MS))

    @property
    def last_adding_ms(self) -> float:
        """How long it then waits for members' parts, and as long for the sums."""
        return self.last_timeout_ms / 2


class Durations:
    """How long averaging and gathering took lately, in ms; 0: not measured."""

    def __init__(self) -> None:
        """Know of none."""
        self._averaging: deque[float] = deque(maxlen=_REMEMBERED)
        self._gathering: deque[float] = deque(maxlen=_REMEMBERED)

    def averaged(self, duration_ms: float) -> None:
        """Note how long vectors and their mean were on their way, and the mean in the making."""
        self._averaging.append(duration_ms)

    def gathered(self, duration_ms: float) -> None:
        """Note how long it took from the end of the work until what was learnt was signed, and on its way, and all of it was here."""
        self._gathering.append(duration_ms)

    @property
    def averaging_ms(self) -> float:
        """The median time that averaging took lately."""
        return statistics.median(self._averaging) if self._averaging else 0.0

    @property
    def gathering_ms(self) -> float:
        """The median time that gathering took lately."""
        return statistics.median(self._gathering) if self._gathering else 0.0


def outliers(norms: Sequence[float], samples: Sequence[int]) -> tuple[int, ...]:
    """Return the places of those whose vectors are too large to be averaged with the others', of whoever came.

    That is more than four times the usual norm, the lower median; fewer samples than whoever has that norm make a larger one, as
    ``protocol.table`` has it. Many samples are not that member's word alone: what counts of them is at most the upper median of all.
    A usual norm of nothing says nothing.
    """
    usual, behind_it = sorted(zip(norms, samples, strict=True))[(len(norms) - 1) // 2]
    enough = min(behind_it, sorted(samples)[len(samples) // 2])
    if usual == 0:
        return ()
    limits = [CLIP * usual * sqrt(enough / min(own, enough)) for own in samples]
    return tuple(place for place, (norm, limit) in enumerate(zip(norms, limits, strict=True)) if not norm <= limit)
