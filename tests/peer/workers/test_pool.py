"""Worker pools: of one worker, and one that rests after its microbatches, by a clock that the test turns."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import torch
from torch import Tensor

import manta_swarm.peer.workers.pool
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.pool import Changes, InProcess, ThrottledPool, TrainedMicrobatch, WorkerLost
from tests.network.virtual_time import LoopClock, now

pytestmark = pytest.mark.virtual_time

MICROBATCH = Microbatch(1, bytes(32), 0, bytes(32), 0, TINY.sample(random.Random("pool")), 16)

COUNTED_MICROBATCH = Microbatch(7, b"base", 0, b"key", 0, TINY.smallest(), 8)


class Held:
    """A worker whose microbatch ends when it is let go."""

    num_weights = 1

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def load(self, parameters: Tensor) -> None: ...

    def teach(self, parameters: Tensor | None) -> None: ...

    def train(self, microbatch: Microbatch) -> MicrobatchResult:
        self.has_begun.set()
        assert self.may_end.wait(60)
        return MicrobatchResult(torch.zeros(1), 0.0, microbatch.samples)


async def test_a_pause_gives_memory_back_at_once_or_with_the_end_of_the_microbatch_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    monkeypatch.setattr(manta_swarm.peer.workers.pool, "give_back_memory", lambda: given.append("back"))

    worker, compute = Held(), ComputeThread()
    pool = InProcess(worker, compute)
    try:
        await pool.pause()
        assert given == ["back"]
        await pool.resume()
        microbatch = asyncio.create_task(pool.train(0, MICROBATCH))
        assert await asyncio.to_thread(worker.has_begun.wait, 60)
        await pool.pause()
        assert given == ["back"]  # nothing is free yet, and the pause does not wait for the microbatch
        worker.may_end.set()
        await microbatch
        assert given == ["back"] * 2
        await pool.resume()
        await pool.train(0, MICROBATCH)
        assert given == ["back"] * 2
    finally:
        worker.may_end.set()
        compute.close()


class SlowPool:
    """Two workers whose microbatches take as long as a test says. Implements ``peer.workers.pool.WorkerPool``."""

    num_weights = 3
    size = 2
    is_paused = False

    def __init__(self) -> None:
        self.busy: set[int] = set()
        self.busy_s = 0.0  # of all that is computed, in all
        self.dies = False
        self.changes = Changes()

    @property
    def busy_ms(self) -> float:
        return 1000 * self.busy_s

    def present(self) -> Sequence[int]:
        return (0, 1)

    def free(self) -> Sequence[int]:
        return [worker for worker in (0, 1) if worker not in self.busy]

    def release(self, done: TrainedMicrobatch) -> None: ...

    async def start(self) -> None: ...

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        self.busy.add(worker)
        took_s = 0.25 * (1 + worker)
        await asyncio.sleep(took_s)
        self.busy_s += took_s
        self.busy.discard(worker)
        if self.dies:
            raise WorkerLost("signal 9")
        return TrainedMicrobatch(MicrobatchResult(torch.zeros(3), 1.0, microbatch.samples), 1000 * took_s)


@asynccontextmanager
async def throttled(duty: int, *, counts_all: bool = False) -> AsyncIterator[tuple[ThrottledPool, SlowPool]]:
    slow = SlowPool()
    pool = ThrottledPool(slow, duty, thread=slow if counts_all else None, clock=LoopClock())
    yield pool, slow
    await pool.close()


async def work(pool: ThrottledPool, worker: int, until_s: float) -> float:
    """Give a worker a microbatch whenever it is free; return the seconds that it computed."""
    computed_ms = 0.0
    while now() < until_s:
        if worker in pool.free():
            computed_ms += (await pool.train(worker, COUNTED_MICROBATCH)).took_ms
        else:
            await pool.changes.next()
    return computed_ms / 1000


@pytest.mark.parametrize("duty", [1, 60, 100])
@pytest.mark.parametrize("worker", [0, 1])
async def test_a_worker_computes_its_share_of_the_time(duty: int, worker: int) -> None:
    async with throttled(duty) as (pool, _slow):
        computed_s = await work(pool, worker, 1000)
        assert computed_s / now() == pytest.approx(duty / 100, rel=0.02)


async def test_what_else_is_computed_in_its_thread_is_rested_for_too() -> None:
    async with throttled(30, counts_all=True) as (pool, slow):

        async def other_work() -> None:
            while True:
                await asyncio.sleep(4)
                slow.busy_s += 0.5

        others = asyncio.create_task(other_work())
        await work(pool, 0, 1000)
        others.cancel()
        assert slow.busy_s / now() == pytest.approx(0.3, rel=0.05)


async def test_waiting_for_something_else_is_rest_and_is_not_saved_up() -> None:
    async with throttled(50) as (pool, _slow):
        await pool.train(0, COUNTED_MICROBATCH)
        assert list(pool.free()) == [1]
        await asyncio.sleep(0.3)
        assert list(pool.free()) == [0, 1]
        await asyncio.sleep(100)
        await pool.train(0, COUNTED_MICROBATCH)
        assert list(pool.free()) == [1]


async def test_another_share_holds_at_once() -> None:
    async with throttled(1) as (pool, _slow):
        await pool.train(0, COUNTED_MICROBATCH)
        await asyncio.sleep(1)
        assert list(pool.free()) == [1]
        pool.duty = 100
        assert list(pool.free()) == [0, 1]
        await pool.train(0, COUNTED_MICROBATCH)
        assert list(pool.free()) == [0, 1]


async def test_a_microbatch_that_was_lost_is_not_rested_for() -> None:
    async with throttled(10) as (pool, slow):
        slow.dies = True
        with pytest.raises(WorkerLost):
            await pool.train(0, COUNTED_MICROBATCH)
        assert list(pool.free()) == [0, 1]
