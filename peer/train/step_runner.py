"""Runs the microbatches of one local step side by side: each is started by whoever is free, and added in the order of the indices.

So the sum is the same whoever was faster. A microbatch whose worker was lost is done again, under the same index, as long as there is time;
where there is none, or if it takes worker after worker with it, it is dropped, and the others count without it. So is a microbatch that
needs samples which this computer has not got.
"""

import asyncio
import heapq
import logging
from collections import Counter
from dataclasses import replace
from typing import Any, Protocol

import torch

from manta_swarm.automl.training.microbatches import Microbatch
from manta_swarm.peer.cohort.cohort import CohortSession
from manta_swarm.peer.context import Progress
from manta_swarm.peer.train.work import GradientAccumulator
from manta_swarm.peer.workers.pool import TrainedMicrobatch, WorkerLost, WorkerPool
from manta_swarm.protocol.errors import SamplesMissing

_FAILURES = 3  # microbatches in a row whose gradient is not finite, or that nobody could train, before a step is given up
_MISSES = 64  # microbatches in a row that need samples which are not here, before it is no use to go on
_LOSSES = 3  # workers that were lost with a microbatch, before it is dropped: it may be what ends them
_LOOK_AGAIN_S = 0.25  # while no worker is there: whether there is still time for a microbatch

logger = logging.getLogger("manta.peer")


class Microbatches(Protocol):
    """The microbatches of one local step (``peer.train.trainer.StepMicrobatches``)."""

    @property
    def step(self) -> int:
        """The number of the local step, from 0."""

    @property
    def most(self) -> int:
        """How many microbatches the gradient accumulator may have at the end of the step."""

    def at(self, index: int) -> tuple[Microbatch, int]:
        """Return the microbatch of an index, and the place of its architecture."""


class MayStart(Protocol):
    """Decides whether there is time for another microbatch (``peer.train.trainer.Timing``)."""

    def may_start(self, step: int, microbatches: int, ends: float | None, worker: int) -> bool:
        """Return whether a worker is to start another microbatch of a step, which has so many and ends then as its cohort says."""


class StepRunner:
    """One local step's microbatches on a worker pool."""

    def __init__(
        self,
        microbatches: Microbatches,
        first: int,
        accumulator: GradientAccumulator,
        pool: WorkerPool,
        progress: Progress,
        cohort_session: "asyncio.Future[CohortSession]",
        timing: MayStart,
    ) -> None:
        """Prepare; ``first`` is the index of the step's first microbatch, ``progress`` is told of each microbatch.

        ``cohort_session`` is waited for once the first microbatch is done, while those that are under way go on.
        """
        self._microbatches = microbatches
        self._accumulator = accumulator
        self._pool = pool
        self._machine = progress.machine
        self._pace = progress.pace
        self._cohort_session = cohort_session
        self._timing = timing
        self._next = self._to_add = first
        self._again: list[int] = []  # indices of microbatches whose worker was lost, the least first
        self._losses: Counter[int] = Counter()  # by index
        self._under_way: dict[asyncio.Task[TrainedMicrobatch], tuple[int, int]] = {}  # index and worker
        self._ready: dict[int, TrainedMicrobatch | None] = {}  # by index; None: dropped
        self._failures = 0
        self._missed: set[int] = set()  # indices of microbatches that need samples which are not here
        self._misses = 0  # of them in a row
        self._has_first = len(accumulator) > 0
        self._changed = asyncio.Event()
        self.samples_dropped = 0  # trained, and of no use since

    @property
    def next_index(self) -> int:
        """The index of the next step's first microbatch."""
        return self._next

    def look_again(self) -> None:
        """Something changed: a worker may be free, or a microbatch may not be started any more that might have been."""
        self._changed.set()

    async def run(self) -> None:
        """Train microbatches until no more is to be started and all that were have come back.

        Raises:
            SamplesMissing: of many microbatches in a row samples are not here.
        """
        try:
            while True:
                self._changed.clear()
                self._start_microbatches()
                if not self._under_way and not self._awaits_place and not self._awaits_worker():
                    break
                await self._next_event()
                self._collect()
            for index in self._again:
                self._ready[index] = None
            self._add_ready()
        finally:
            for training in self._under_way:
                training.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    # Starting.

    def _start_microbatches(self) -> None:
        for worker in sorted(self._pool.free(), key=self._pace.usual_ms):
            if self._could_start(worker):
                self._start(worker)

    def _start(self, worker: int) -> None:
        if self._again:
            index = heapq.heappop(self._again)
        else:
            index, self._next = self._next, self._next + 1
        self._machine.microbatch_started(to_finish=self._microbatches.step > 0)
        microbatch, _ = self._microbatches.at(index)
        training = asyncio.ensure_future(self._pool.train(worker, microbatch))
        self._under_way[training] = (index, worker)

    def _could_start(self, worker: int) -> bool:
        begun = len(self._under_way) + sum(done is not None for done in self._ready.values())
        if self._awaits_place or self._failures >= _FAILURES or len(self._accumulator) + begun >= self._microbatches.most:
            return False
        ends = self._cohort_session.result().step_ends(self._microbatches.step) if self._cohort_session.done() else None
        return self._timing.may_start(self._microbatches.step, self._accumulator.step_microbatches + begun, ends, worker)

    @property
    def _awaits_place(self) -> bool:
        return self._has_first and not self._cohort_session.done()

    def _awaits_worker(self) -> bool:
        """Return whether another microbatch would be started if a worker were there that is not."""
        free = self._pool.free()
        return any(self._could_start(worker) for worker in range(self._pool.size) if worker not in free)

    # Collecting.

    async def _next_event(self) -> None:
        """Wait until a microbatch comes back, the place in the cohort is known, or it is to be looked again what may be started."""
        changed = asyncio.create_task(self._changed.wait())
        waiting: set[asyncio.Future[Any]] = {changed, *self._under_way, *([self._cohort_session] if self._awaits_place else [])}
        try:
            timeout_s = None if len(waiting) > 1 else _LOOK_AGAIN_S
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def _collect(self) -> None:
        for training in [each for each in self._under_way if each.done()]:
            index, worker = self._under_way.pop(training)
            try:
                done = training.result()
            except WorkerLost as error:
                logger.info("microbatch to be done again index=%d worker=%d reason=%s", index, worker, error)
                self._machine.microbatch_trained(0)
                self._lose(index)
                continue
            except SamplesMissing as error:
                self._miss(index, error)
                continue
            self._misses = 0
            self._pace.microbatch_took(done.took_ms, worker)
            self._ready[index] = done
            self._has_first = True
        self._add_ready()

    def _lose(self, index: int) -> None:
        """A worker was lost with this microbatch."""
        self._losses[index] += 1
        if self._losses[index] < _LOSSES:
            heapq.heappush(self._again, index)
            return
        logger.error("microbatch dropped: %d workers were lost with it index=%d", _LOSSES, index)
        self._ready[index] = None

    def _miss(self, index: int, error: SamplesMissing) -> None:
        """A microbatch needs samples that this computer has not got."""
        self._machine.microbatch_trained(0)
        self._misses += 1
        if self._misses == _MISSES:
            raise SamplesMissing(f"{_MISSES} microbatches in a row need samples that are not here, of the last one: {error}") from error
        logger.warning("microbatch dropped: %s index=%d", str(error), index)  # no frames, and no memory, are to hang on a line
        self._missed.add(index)
        self._ready[index] = None

    def _add_ready(self) -> None:
        while self._to_add in self._ready:
            done = self._ready.pop(self._to_add)
            is_good = done is not None and self._add(self._to_add, done)
            if self._to_add not in self._missed:
                self._failures = 0 if is_good else self._failures + 1
            if done is not None:
                self._pool.release(done)
            self._to_add += 1

    def _add(self, index: int, done: TrainedMicrobatch) -> bool:
        """Add a microbatch that was trained; False: it is of no use."""
        result = done.result
        is_finite = result.is_finite
        if self._accumulator.is_blind and not is_finite:  # what is counted must not depend on the samples
            result, is_finite = replace(result, gradient=torch.zeros_like(result.gradient), loss=0.0), True
        if not is_finite:
            logger.error("microbatch dropped: its gradient is not finite index=%d", index)
            self._machine.microbatch_trained(0)
            return False
        microbatch, place = self._microbatches.at(index)
        if not self._accumulator.has_room(microbatch.index):
            logger.warning("microbatch dropped: too many before it were index=%d", index)
            self._machine.microbatch_trained(0)
            return False
        if not self._machine.microbatch_trained(result.samples):
            self.samples_dropped += result.samples
            return False
        self._accumulator.add(microbatch, place, result, done.partner)
        return True
