"""A local step's microbatches on several workers, which come back in whatever order a test says, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.peer.cohort.cohort import CohortSession
from manta_swarm.peer.train.step_runner import StepRunner
from manta_swarm.peer.train.work import GradientAccumulator
from manta_swarm.peer.workers.pool import Changes, TrainedMicrobatch, WorkerLost
from manta_swarm.protocol.errors import SamplesMissing
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.rounds import CommitRef, RoundMachine
from manta_swarm.protocol.signing import Identity
from tests.memory_log import signed_manifest, until
from tests.peer.contexts import progress_of
from tests.runs import FixedTrainingSpec

PEER = Identity(b"\x0b" * 32)
SIGNED = signed_manifest()
START = CommitRef.start(SIGNED.open(), SIGNED.run)
MICROBATCH = SIGNED.open().microbatch_samples
ASKED = (TINY.largest(), TINY.smallest())
MANY = 100


class HeldPool:
    """Workers that end a microbatch when a test says so. Implements ``peer.workers.pool.WorkerPool``."""

    num_weights = 3
    is_paused = False

    def __init__(self, size: int) -> None:
        self.size = size
        self.gone: set[int] = set()
        self.busy: dict[int, tuple[Microbatch, asyncio.Future[TrainedMicrobatch]]] = {}  # by worker
        self.released: list[int] = []  # indices of microbatches, in the order in which they were added
        self.changes = Changes()

    def present(self) -> Sequence[int]:
        return [worker for worker in range(self.size) if worker not in self.gone]

    def free(self) -> Sequence[int]:
        return [worker for worker in self.present() if worker not in self.busy]

    def release(self, done: TrainedMicrobatch) -> None:
        self.released.append(done.slot)

    async def start(self) -> None: ...

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        future = asyncio.get_running_loop().create_future()
        self.busy[worker] = microbatch, future
        try:
            done: TrainedMicrobatch = await future
            return done
        finally:
            del self.busy[worker]

    # The test's side.

    def indices(self) -> dict[int, int]:
        """Return by worker the index of the microbatch that it is at."""
        return {worker: microbatch.index for worker, (microbatch, _) in self.busy.items()}

    def ends(self, worker: int, took_ms: float = 10.0, value: float = 1.0) -> None:
        microbatch, future = self.busy[worker]
        gradient = torch.tensor([value, 2.0 ** -(3 * microbatch.index), 0.1 * (microbatch.index + 1)])
        result = MicrobatchResult(gradient, 1.0, microbatch.samples)
        future.set_result(TrainedMicrobatch(result, took_ms, microbatch.index))

    def dies(self, worker: int) -> None:
        self.gone.add(worker)
        self.busy[worker][1].set_exception(WorkerLost("signal 9"))

    def misses(self, worker: int) -> None:
        self.busy[worker][1].set_exception(SamplesMissing("the shard x is missing"))

    def comes_back(self, worker: int) -> None:
        self.gone.discard(worker)
        self.changes.note()


@dataclass
class InTurn:
    """The microbatches of one step, of one architecture and the other in turn. Implements ``peer.train.step_runner.Microbatches``."""

    most: int
    step: int = 0

    def at(self, index: int) -> tuple[Microbatch, int]:
        return Microbatch(7, START.commit, 0, PEER.public_key, index, ASKED[index % 2], MICROBATCH), index % 2


@dataclass
class Timing:
    """Has time for so many microbatches."""

    microbatches: int
    asked: list[tuple[int, int]] = field(default_factory=list)  # microbatches so far and worker, whenever it was asked

    def may_start(self, step: int, microbatches: int, ends: float | None, worker: int) -> bool:
        self.asked.append((microbatches, worker))
        return microbatches < self.microbatches


@dataclass
class Scene:
    """A step runner that runs, and what it leaves."""

    pool: HeldPool
    accumulator: GradientAccumulator
    machine: RoundMachine
    pace: Pace
    cohort_session: "asyncio.Future[CohortSession]"
    step_runner: StepRunner
    timing: "Timing"

    async def at(self, **indices: int) -> None:
        """Return once each of these workers is at the microbatch of this index."""
        wanted = {int(name[1:]): index for name, index in indices.items()}
        await until(lambda: self.pool.indices() == wanted)


async def follow(pool: HeldPool, step_runner: StepRunner) -> None:
    """Tell the step runner what happens at the worker pool, as a session does."""
    while True:
        await pool.changes.next()
        step_runner.look_again()


@asynccontextmanager
async def beside(*, workers: int = 2, microbatches: int = MANY, most: int = MANY, has_place: bool = True) -> AsyncIterator[Scene]:
    """Yield a scene beside which a step runner runs, and which lasts until that has ended.

    Args:
        workers: in the pool.
        microbatches: how many there is time for.
        most: how many the gradient accumulator may have.
        has_place: whether the place in the cohort is known from the start.
    """
    pool, accumulator, pace = HeldPool(workers), GradientAccumulator(3, ASKED), Pace()
    machine = RoundMachine(SIGNED.open(), SIGNED.run, PEER.public_key, FixedTrainingSpec(), START)
    cohort_session: asyncio.Future[CohortSession] = asyncio.get_running_loop().create_future()
    if has_place:
        cohort_session.set_result(CohortSession(PEER.public_key))
    timing = Timing(microbatches)
    step_runner = StepRunner(InTurn(most), 0, accumulator, pool, progress_of(machine, pace), cohort_session, timing)
    running, following = asyncio.create_task(step_runner.run()), asyncio.create_task(follow(pool, step_runner))
    try:
        yield Scene(pool, accumulator, machine, pace, cohort_session, step_runner, timing)
        await running
    finally:
        for task in (running, following):
            task.cancel()
        await asyncio.gather(running, following, return_exceptions=True)


async def one_after_the_other(count: int) -> GradientAccumulator:
    """What one worker makes of as many microbatches."""
    async with beside(workers=1, microbatches=count) as scene:
        for index in range(count):
            await scene.at(w0=index)
            scene.pool.ends(0)
    return scene.accumulator


async def test_microbatches_are_added_in_the_order_of_their_indices_whoever_was_faster() -> None:
    async with beside(microbatches=5) as scene:
        await scene.at(w0=0, w1=1)
        for index in range(2, 5):  # worker 1 is as fast as can be
            scene.pool.ends(1)
            await scene.at(w0=0, w1=index)
        assert scene.pool.released == []
        scene.pool.ends(1)
        await scene.at(w0=0)
        scene.pool.ends(0)
    alone = await one_after_the_other(5)
    assert scene.pool.released == [0, 1, 2, 3, 4]
    assert np.array_equal(scene.accumulator.gradient(), alone.gradient())
    assert scene.accumulator.claimed(bytes(32)) == alone.claimed(bytes(32))
    assert scene.machine.samples == scene.accumulator.samples == 5 * MICROBATCH
    assert scene.step_runner.next_index == 5


async def test_a_microbatch_whose_worker_was_lost_is_done_again_by_whoever_is_free() -> None:
    async with beside(microbatches=3) as scene:
        await scene.at(w0=0, w1=1)
        scene.pool.dies(0)
        await scene.at(w1=1)
        scene.pool.ends(1)
        await scene.at(w1=0)
        scene.pool.comes_back(0)
        await scene.at(w0=2, w1=0)
        scene.pool.ends(0)
        scene.pool.ends(1)
    assert scene.pool.released == [0, 1, 2]
    assert scene.accumulator.claimed(bytes(32)) == (await one_after_the_other(3)).claimed(bytes(32))
    assert scene.machine.samples == 3 * MICROBATCH


async def test_microbatches_that_need_samples_which_are_not_here_are_left_out_however_many_there_are() -> None:
    async with beside(workers=1, microbatches=2) as scene:
        for index in range(5):
            await scene.at(w0=index)
            scene.pool.misses(0)
        for index in (5, 6):
            await scene.at(w0=index)
            scene.pool.ends(0)
    assert scene.pool.released == [5, 6]
    assert scene.machine.samples == scene.accumulator.samples == 2 * MICROBATCH
    assert scene.step_runner.next_index == 7


async def test_it_is_given_up_where_microbatch_after_microbatch_needs_samples_that_are_not_here() -> None:
    async def story() -> None:
        async with beside(workers=1) as scene:
            for index in range(64):
                await scene.at(w0=index)
                scene.pool.misses(0)

    found = "64 microbatches in a row need samples that are not here, of the last one: the shard x is missing"
    with pytest.raises(SamplesMissing, match=found):
        await story()


async def test_a_microbatch_that_was_lost_when_there_is_no_time_any_more_is_dropped_and_the_others_count() -> None:
    async with beside() as scene:
        await scene.at(w0=0, w1=1)
        scene.timing.microbatches = 1
        scene.pool.dies(0)
        scene.pool.ends(1)
    assert (scene.accumulator.samples, scene.machine.samples, scene.pool.released) == (MICROBATCH, MICROBATCH, [1])


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_microbatch_is_waited_for_while_its_worker_comes_back_in_time_and_else_there_is_none(in_time: bool) -> None:
    async with beside(workers=1, microbatches=1) as scene:
        await scene.at(w0=0)
        scene.pool.dies(0)
        if in_time:
            await until(lambda: scene.pool.busy == {})
            scene.pool.comes_back(0)
            await scene.at(w0=0)
            scene.pool.ends(0)
        else:
            scene.timing.microbatches = 0
    assert scene.accumulator.samples == scene.machine.samples == in_time * MICROBATCH


async def test_a_microbatch_that_takes_worker_after_worker_with_it_is_dropped_and_the_others_count() -> None:
    async with beside(workers=1) as scene:
        for _ in range(3):
            await scene.at(w0=0)
            scene.pool.dies(0)
            await until(lambda: scene.pool.busy == {})
            scene.pool.comes_back(0)
        await scene.at(w0=1)
        scene.timing.microbatches = 1
        scene.pool.ends(0)
    assert (scene.accumulator.samples, scene.machine.samples, scene.pool.released) == (MICROBATCH, MICROBATCH, [1])


async def test_a_step_in_which_every_microbatch_ends_its_worker_is_given_up() -> None:
    async with beside(workers=1) as scene:
        for index in (0, 0, 0, 1, 1, 1, 2, 2, 2):
            await scene.at(w0=index)
            scene.pool.dies(0)
            await until(lambda: scene.pool.busy == {})
            scene.pool.comes_back(0)
    assert (len(scene.accumulator), scene.machine.samples) == (0, 0)


async def test_no_more_microbatches_are_under_way_than_a_claim_may_have() -> None:
    async with beside(workers=4, most=3) as scene:
        await scene.at(w0=0, w1=1, w2=2)
        for worker in (0, 2, 1):
            scene.pool.ends(worker)
    assert len(scene.accumulator) == 3


async def test_once_the_first_microbatch_is_done_the_cohort_is_waited_for_while_the_others_go_on() -> None:
    async with beside(microbatches=3, has_place=False) as scene:
        await scene.at(w0=0, w1=1)
        scene.pool.ends(1)
        await scene.at(w0=0)
        await asyncio.sleep(0.01)
        assert scene.pool.indices() == {0: 0}
        scene.cohort_session.set_result(CohortSession(PEER.public_key))
        await scene.at(w0=0, w1=2)
        scene.pool.ends(0)
        scene.pool.ends(1)
    assert len(scene.accumulator) == 3


async def test_a_free_worker_that_is_faster_is_asked_first() -> None:
    async with beside(microbatches=4) as scene:
        await scene.at(w0=0, w1=1)
        scene.pool.ends(0, took_ms=500.0)
        scene.pool.ends(1, took_ms=20.0)
        await scene.at(w0=3, w1=2)
        scene.pool.ends(0)
        scene.pool.ends(1)


async def test_after_three_microbatches_in_a_row_that_make_no_sense_no_more_are_started() -> None:
    async with beside(workers=1) as scene:
        for index, value in enumerate([1.0, float("inf"), float("nan"), 1.0, float("inf"), float("inf"), float("-inf")]):
            await scene.at(w0=index)
            scene.pool.ends(0, value=value)
    assert len(scene.pool.released) == 7
    assert (len(scene.accumulator), scene.machine.samples) == (2, 2 * MICROBATCH)


async def test_microbatches_so_far_are_those_done_and_those_under_way() -> None:
    async with beside(microbatches=3) as scene:
        await scene.at(w0=0, w1=1)
        assert scene.timing.asked[:2] == [(0, 0), (1, 1)]
        scene.pool.ends(1)
        await scene.at(w0=0, w1=2)
        assert (2, 1) in scene.timing.asked
        scene.pool.ends(0)
        scene.pool.ends(1)


async def test_what_goes_wrong_in_a_worker_s_code_is_told_and_no_microbatch_stays_under_way() -> None:
    async def story() -> None:
        async with beside() as scene:
            await scene.at(w0=0, w1=1)
            scene.pool.busy[0][1].set_exception(RuntimeError("a fault of ours"))

    with pytest.raises(RuntimeError, match="a fault of ours"):
        await story()
