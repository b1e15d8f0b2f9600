"""How long a peer works in a round: a pure estimate from what it measured, so that its contribution is in by the deadline."""

from collections import defaultdict, deque
from collections.abc import Sequence

from manta_swarm.protocol.exchange import MAX_MICROBATCH_MS

_REMEMBERED = 16  # microbatches, and times of handing in
_FIRST_PART = 8  # of the round's time, for handing in, before anything was measured


class Pace:
    """Estimates, by one peer's durations, when it has to end its work. Times are milliseconds of any clock that does not go back.

    A peer may have several workers, each with a microbatch at a time, and each as fast as it is; they are numbered.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._deadline: float = 0.0
        self._open_ms: float = 0.0
        self._microbatches_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self._on_base_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self._by_worker: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._headers_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self._inclusion_promises_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self.duty = 1.0  # share of the time in which a worker computes; the rest follows its microbatches, and none is started meanwhile

    def opened(self, now: float, left_ms: float) -> None:
        """Note that headers for the round have ``left_ms`` from ``now`` on."""
        self._deadline, self._open_ms = now + left_ms, left_ms

    def base_began(self) -> None:
        """Note that the microbatches to come are of another base."""
        self._on_base_ms.clear()

    def microbatch_took(self, duration_ms: float, worker: int = 0) -> None:
        """Note how long a microbatch took a worker."""
        self._microbatches_ms.append(duration_ms)
        self._on_base_ms.append(duration_ms)
        self._by_worker[worker].append(duration_ms)

    def usual_ms(self, worker: int) -> float:
        """Return the median duration of a worker's microbatches; 0 before it had one."""
        return _median(self._by_worker[worker]) if worker in self._by_worker else 0.0

    def longest_ms(self, worker: int) -> float:
        """Return the longest of a worker's last microbatches; 0 before it had one."""
        return max(self._by_worker[worker]) if worker in self._by_worker else 0.0

    def header_took(self, duration_ms: float) -> None:
        """Note how long it took from the last microbatch until the log had the header."""
        self._headers_ms.append(duration_ms)

    def inclusion_promise_took(self, duration_ms: float) -> None:
        """Note how long it took from the last microbatch until the inclusion promise."""
        self._inclusion_promises_ms.append(duration_ms)

    @property
    def microbatch_ms(self) -> int:
        """The median microbatch's duration with the rest after it, as a claim may name it; 1 before there is one."""
        return min(max(1, round(self._microbatch_ms / self.duty)), MAX_MICROBATCH_MS)

    @property
    def on_base_ms(self) -> float:
        """The median microbatch's duration on the newest base; 0 before it had one."""
        return _median(self._on_base_ms) if self._on_base_ms else 0.0

    def left_ms(self, now: float) -> float:
        """Return how long headers still have."""
        return self._deadline - now

    def left_again_ms(self, now: float, open_ms: float, grace_ms: float) -> float:
        """Return how long headers still have in a round that is open again, for as long, whenever nothing is in by its deadline.

        Args:
            now: the time.
            open_ms: how long the round is open.
            grace_ms: after a deadline for so long it may be that something is in: there is no time then.
        """
        late_ms = -self.left_ms(now)
        if late_ms < 0:
            return -late_ms
        late_ms %= open_ms
        return open_ms - late_ms if late_ms >= grace_ms else 0.0

    def may_start_microbatch(
        self,
        now: float,
        microbatches: int,
        *,
        is_awaited: bool,
        step: int = 0,
        steps: int = 1,
        ends: float | None = None,
        worker: int = 0,
        workers: Sequence[int] = (0,),
    ) -> bool:
        """Return whether another microbatch of a local step can be done by a worker; the first one always may.

        It has to be done before it is time to hand in, and there has to be time left for as many usual microbatches in each of the steps to
        come: so the steps share the time evenly. In a cohort the step's end is the founder's word.

        Args:
            now: the time.
            microbatches: of this step, done and under way.
            is_awaited: the log waits for this peer's body after the deadline, so that only the header has to be there by then.
            step: from 0.
            steps: of the round.
            ends: when this step ends in the peer's cohort; None: the peer divides its time itself.
            worker: whose microbatch it would be.
            workers: all that are there.
        """
        if microbatches == 0:
            return True
        work_ends = self._deadline - 2 * self._hand_in_ms(is_awaited)
        if ends is None:
            ends = work_ends - (steps - 1 - step) * self._step_ms(microbatches + 1, workers)
        return now + self._long_microbatch_ms(worker) <= min(ends, work_ends)

    @property
    def _microbatch_ms(self) -> float:
        return _median(self._microbatches_ms) if self._microbatches_ms else 0.0

    def _step_ms(self, microbatches: int, workers: Sequence[int]) -> float:
        """Return how long these workers together take for so many microbatches, with rests: each as many as it can, whole ones."""
        usual_ms = [self.usual_ms(worker) / self.duty for worker in workers if self.usual_ms(worker) > 0]
        if not usual_ms:
            return microbatches * self._microbatch_ms / self.duty
        in_turns_ms = -(-microbatches // len(usual_ms)) * min(usual_ms)
        return max(in_turns_ms, microbatches / sum(1 / each for each in usual_ms)) if len(usual_ms) > 1 else in_turns_ms

    def _long_microbatch_ms(self, worker: int) -> float:
        """The third longest microbatch, and at least the median: who is late waits for a whole round, and architectures differ in size."""
        longest_last = sorted(self._by_worker.get(worker, self._microbatches_ms))
        return longest_last[max(len(longest_last) // 2, len(longest_last) - 3)] if longest_last else 0.0

    def _hand_in_ms(self, is_awaited: bool) -> float:
        measured = self._headers_ms if is_awaited else self._inclusion_promises_ms
        return _median(measured) if measured else self._open_ms / _FIRST_PART


def _median(values: "deque[float]") -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
