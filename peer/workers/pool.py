"""What trains a peer's microbatches, as its rounds see it: a pool of workers, which may have to rest for a share of the time.

Each worker takes a microbatch at a time. Here are pools of one worker, and of none.

Workers are numbered from 0; a number stands for a device, and stays when what computes on it was started again. A worker pool of processes
is in ``peer.workers.processes``.

A throttled pool computes only a share of the time: after a microbatch its worker rests, and takes none until the share is kept. What counts
is the time in which a worker computed, against all that went by: whatever else the peer waits for, the commit or the network, is rest as
well. So a worker never computes more than its share, and as much as that where there is always something to do.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from manta_swarm.automl.environment import give_back_memory
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.peer.train.work import ComputeThread, now_ms
from manta_swarm.protocol.errors import Weather
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

_WHOLE = 100


class WorkerLost(Weather):
    """The worker died, hung or was stopped in the middle of a microbatch: whoever is free may do it again, and gets the same."""


@dataclass(frozen=True, slots=True)
class TrainedMicrobatch:
    """A microbatch that was trained."""

    result: MicrobatchResult  # its gradient is good until it is released
    took_ms: float
    slot: int = 0  # of the gradient, where the worker pool keeps several
    partner: bytes = b""  # the key of the site that trained it too, with the other view of its samples


class Changes:
    """The changes at a worker pool that a peer waits for: a worker may be free again, or is gone; and what a person should read of that."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()
        self._lines: list[str] = []

    def note(self, line: str = "") -> None:
        """Something happened; ``line`` is for the person."""
        if line:
            self._lines.append(line)
        self._happened.set()

    async def next(self) -> list[str]:
        """Return the lines for the person, once anything happened since this returned last."""
        await self._happened.wait()
        self._happened.clear()
        lines, self._lines = self._lines, []
        return lines


class WorkerPool(Protocol):
    """All workers of a peer, on one state."""

    @property
    def changes(self) -> Changes:
        """What happened, for whoever gives out microbatches."""

    @property
    def num_weights(self) -> int:
        """N: the length of the gradients."""

    @property
    def size(self) -> int:
        """How many workers there are when all goes well."""

    @property
    def is_paused(self) -> bool:
        """Whether no microbatch is to be started."""

    def present(self) -> Sequence[int]:
        """Return the workers that are there, busy or not; none while paused."""

    def free(self) -> Sequence[int]:
        """Return those of the present workers that could take a microbatch now."""

    async def start(self) -> None:
        """Begin; workers may come later. For who may be interrupted: ``close`` is called in any case."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Take over a state's parameters (N,), and those of its teacher, for the microbatches to come. No microbatch is under way."""

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        """Return what ``worker``, which is free, made of a microbatch.

        Raises:
            WorkerLost: nothing; the microbatch may be started again.
            SamplesMissing: nothing; this computer has not got the microbatch's samples as they should be, the worker can take another
                microbatch.
        """

    def release(self, done: TrainedMicrobatch) -> None:
        """Take the memory of a microbatch's gradient back: nobody reads it any more."""

    async def pause(self) -> None:
        """Start no microbatch until ``resume``, and give back what the workers hold, as far as they are processes of their own."""

    async def resume(self) -> None:
        """Go on."""

    async def close(self) -> None:
        """End all workers."""


class MicrobatchWorker(Protocol):
    """Computes microbatches (``automl.training.microbatches.Worker``)."""

    @property
    def num_weights(self) -> int:
        """N."""

    def load(self, parameters: Tensor) -> None:
        """Take over a state's parameters (N,)."""

    def teach(self, parameters: Tensor | None) -> None:
        """Take over the parameters (N,) of a teacher, or do without."""

    def train(self, microbatch: Microbatch) -> MicrobatchResult:
        """Return what a microbatch gave."""


class SingleWorker:
    """What worker pools of one worker have in common: it is busy or not, and paused or not."""

    def __init__(self) -> None:
        """Begin with one that is free."""
        self._is_busy = self._is_paused = False
        self.changes = Changes()

    @property
    def size(self) -> int:
        """There is one worker."""
        return 1

    @property
    def is_paused(self) -> bool:
        """Whether no microbatch is to be started."""
        return self._is_paused

    def present(self) -> Sequence[int]:
        """Return the one worker, unless paused."""
        return () if self._is_paused else (0,)

    def free(self) -> Sequence[int]:
        """Return the one worker if it is there, unless busy."""
        return () if self._is_busy else self.present()

    def release(self, done: TrainedMicrobatch) -> None:
        """See ``WorkerPool``: the gradient has memory of its own."""

    async def pause(self) -> None:
        """Start no microbatch; the one under way is finished."""
        self._is_paused = True
        self.changes.note()

    async def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self.changes.note()


class InProcess(SingleWorker):
    """A worker pool of one, in this process: its microbatches are computed in the thread in which all else that is heavy is.

    Implements ``WorkerPool``.
    """

    def __init__(self, worker: MicrobatchWorker, compute: ComputeThread) -> None:
        """Let ``worker`` compute in the thread of ``compute``, which somebody else closes."""
        super().__init__()
        self._worker = worker
        self._compute = compute

    @property
    def num_weights(self) -> int:
        """N."""
        return self._worker.num_weights

    async def start(self) -> None:
        """Start nothing: the thread is there."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """See ``WorkerPool``."""
        await self._compute.run(self._worker.teach, teacher)
        await self._compute.run(self._worker.load, parameters)

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        """Return what a microbatch gave; it is never lost."""
        self._is_busy = True
        started_ms = now_ms()
        try:
            result = await self._compute.run(self._worker.train, microbatch)
        finally:
            self._is_busy = False
        took_ms = now_ms() - started_ms
        if self.is_paused:
            await asyncio.to_thread(give_back_memory)
        return TrainedMicrobatch(result, took_ms)

    async def pause(self) -> None:
        """Start no microbatch; memory goes back to the system as far as none is under way, else with its end."""
        await super().pause()
        if not self._is_busy:
            await asyncio.to_thread(give_back_memory)

    async def close(self) -> None:
        """End nothing: whoever made the thread ends it."""


class IdlePool:
    """The worker pool of a peer that trains nothing: it has no workers. Implements ``WorkerPool``."""

    def __init__(self, num_weights: int) -> None:
        """Stand in a run with so many weights."""
        self.num_weights = num_weights
        self.is_paused = False
        self.changes = Changes()

    @property
    def size(self) -> int:
        """There are no workers."""
        return 0

    def present(self) -> Sequence[int]:
        """Return none."""
        return ()

    def free(self) -> Sequence[int]:
        """Return none."""
        return ()

    async def start(self) -> None:
        """Begin nothing."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Take over nothing."""

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        """See ``WorkerPool``: there is no worker."""
        raise WorkerLost(f"there is no worker {worker}")

    def release(self, done: TrainedMicrobatch) -> None:
        """Take nothing back."""

    async def pause(self) -> None:
        """Be paused."""
        self.is_paused = True

    async def resume(self) -> None:
        """Go on."""
        self.is_paused = False

    async def close(self) -> None:
        """End nothing."""


@dataclass
class RestAccount:
    """One worker's account of time: how much rest it owes."""

    looked_ms: float  # when it was settled last
    owed_ms: float = 0.0  # rest

    def settle(self, now_ms: float, busy_ms: float, duty: int) -> None:
        """Add up the rest that is owed after computing for so long since it was settled last, at ``duty`` hundredths of the time."""
        idle_ms = max(0.0, now_ms - self.looked_ms - busy_ms)
        self.owed_ms = max(0.0, self.owed_ms - idle_ms) + busy_ms * (_WHOLE / duty - 1)
        self.looked_ms = now_ms

    def rest_ms(self, now_ms: float) -> float:
        """Return how long it has to rest from now on; nothing or less: not at all."""
        return self.owed_ms - (now_ms - self.looked_ms)


@dataclass
class _Account(RestAccount):
    """The time of a worker of this pool."""

    counted_ms: float = 0.0  # by the counter of the whole peer, if there is one, when it was settled last


class Counting(Protocol):
    """Counts how long a thread computes, whatever it does (``peer.train.work.ComputeThread``)."""

    @property
    def busy_ms(self) -> float:
        """How many milliseconds it has computed so far."""


class ThrottledPool:
    """Makes another worker pool rest, so that it keeps to the duty. Implements ``WorkerPool``."""

    def __init__(self, pool: WorkerPool, duty: int = _WHOLE, *, thread: Counting | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Let ``pool`` compute ``duty`` hundredths of the time.

        ``thread`` is the one in which its one worker computes, with all else that is heavy; None: each worker has a process of its own.
        """
        self._pool = pool
        self.changes = pool.changes  # the end of a rest is one more
        self._duty = duty
        self._thread = thread
        self._clock = clock
        self._accounts: dict[int, _Account] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.samples_trained = 0  # whatever came of them

    @property
    def duty(self) -> int:
        """Hundredths of the time in which it may compute."""
        return self._duty

    @duty.setter
    def duty(self, duty: int) -> None:
        self._duty = duty
        for account in self._accounts.values():
            account.owed_ms = 0.0  # what was owed was owed to another share
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.changes.note()

    @property
    def num_weights(self) -> int:
        """N."""
        return self._pool.num_weights

    @property
    def size(self) -> int:
        """How many workers there are when all goes well."""
        return self._pool.size

    @property
    def is_paused(self) -> bool:
        """Whether no microbatch is to be started."""
        return self._pool.is_paused

    def present(self) -> Sequence[int]:
        """Return the workers that are there, those that rest too."""
        return self._pool.present()

    def free(self) -> Sequence[int]:
        """Return the workers that could take a microbatch now."""
        return [worker for worker in self._pool.free() if self._rest_ms(worker) <= 0]

    async def start(self) -> None:
        """Begin."""
        await self._pool.start()

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """See ``WorkerPool``."""
        await self._pool.load(parameters, teacher)

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        """See ``WorkerPool``; then the worker rests."""
        self._accounts.setdefault(worker, _Account(self._clock.now_ms(), counted_ms=self._counted_ms()))
        try:
            done = await self._pool.train(worker, microbatch)
        except BaseException:
            self._settle(worker, None)
            raise
        self._settle(worker, done.took_ms)
        self.samples_trained += microbatch.samples
        return done

    def release(self, done: TrainedMicrobatch) -> None:
        """See ``WorkerPool``."""
        self._pool.release(done)

    async def pause(self) -> None:
        """See ``WorkerPool``."""
        await self._pool.pause()

    async def resume(self) -> None:
        """See ``WorkerPool``."""
        await self._pool.resume()

    async def close(self) -> None:
        """End all workers."""
        for timer in self._timers.values():
            timer.cancel()
        await self._pool.close()

    def _counted_ms(self) -> float:
        return 0.0 if self._thread is None else self._thread.busy_ms

    def _rest_ms(self, worker: int) -> float:
        """Return how long a worker has to rest from now on."""
        account = self._accounts.get(worker)
        return 0.0 if account is None else account.rest_ms(self._clock.now_ms())

    def _settle(self, worker: int, took_ms: float | None) -> None:
        """Add up what a worker owes after a microbatch that took so long; None: it was lost, and how long it took is not known."""
        account, now, counted_ms = self._accounts[worker], self._clock.now_ms(), self._counted_ms()
        account.settle(now, (took_ms or 0.0) if self._thread is None else counted_ms - account.counted_ms, self._duty)
        account.counted_ms = counted_ms
        if account.owed_ms > 0:  # and a moment longer, so that it is over by any clock
            if (before := self._timers.pop(worker, None)) is not None:
                before.cancel()
            self._timers[worker] = asyncio.get_running_loop().call_later(account.owed_ms / 1000 + 0.001, self.changes.note)
