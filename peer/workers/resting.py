"""A worker pool that computes only a share of the time: after a microbatch its worker rests, and takes none until the share is kept.

What counts is the time in which a worker computed, against all that went by: whatever else the peer waits for, the commit or the network,
is rest as well. So a worker never computes more than its share, and as much as that where there is always something to do.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from manta_swarm.automl.training.microbatches import Microbatch
from manta_swarm.peer.workers.pool import Done, WorkerPool
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

_WHOLE = 100


@dataclass
class Account:
    """One worker's time."""

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
class _Account(Account):
    """That of a worker pool's worker."""

    counted_ms: float = 0.0  # by the counter of the whole peer, if there is one, when it was settled last


class Counting(Protocol):
    """A thread that counts how long it computes, whatever it does (``peer.train.work.ComputeThread``)."""

    @property
    def busy_ms(self) -> float:
        """Milliseconds so far."""


class ThrottledPool:
    """Another worker pool, which rests. Implements ``peer.workers.pool.WorkerPool``."""

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
        """Return those that could take a microbatch now."""
        return [worker for worker in self._pool.free() if self._rest_ms(worker) <= 0]

    async def start(self) -> None:
        """Begin."""
        await self._pool.start()

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """See ``WorkerPool``."""
        await self._pool.load(parameters, teacher)

    async def train(self, worker: int, microbatch: Microbatch) -> Done:
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

    def release(self, done: Done) -> None:
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
