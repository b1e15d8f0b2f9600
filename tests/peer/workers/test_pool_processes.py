"""Real worker processes: the same bits as one worker in this process, whatever happens to them, and nothing left.

Most of them are forked; those of the first test and of a peer that is killed are started as a peer starts them.
"""

import asyncio
import dataclasses
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from manta_swarm.automl.data.catalog import digits, load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.sharded import ShardedImages
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.peer.cohort.cohort import CohortSession
from manta_swarm.peer.train.step_runner import StepRunner
from manta_swarm.peer.train.work import ComputeThread, GradientAccumulator
from manta_swarm.peer.workers.devices import Device
from manta_swarm.peer.workers.pool import InProcess, WorkerLost, WorkerPool
from manta_swarm.peer.workers.processes import ProcessPool, WorkerData, WorkerTimeouts
from manta_swarm.protocol.microbatches import place_of_microbatch, sample_indices
from manta_swarm.protocol.rounds import CommitRef, RoundMachine
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.child import Program, Restart, with_threads
from tests.automl.data.files import noise, write_picture
from tests.memory_log import MICROBATCH, signed_manifest, until
from tests.network.processes import DEADLINE_S, are_gone, wait_for
from tests.peer.contexts import progress_of
from tests.runs import FixedTrainingSpec
from tests.runtime.forked_child import forked_children, forked_program

__all__ = ["forked_children"]

pytestmark = pytest.mark.swarm

PEER = Identity(b"\x0b" * 32)
SIGNED = signed_manifest()
START = CommitRef.start(SIGNED.open(), SIGNED.run)
ASKED = (TINY.largest(), TINY.smallest())
PATIENT = WorkerTimeouts(least_s=240.0, restart=Restart(0.01, 0.02, free=1))
QUICK = dataclasses.replace(PATIENT, least_s=10.0)  # where a worker stands still
CPU = Device("cpu", 1)


def weights_of(seed: int) -> Tensor:
    supernet = build(TINY)
    supernet.initialise(torch.Generator().manual_seed(seed))
    return supernet.flat_weights_N


def microbatch_at(index: int) -> tuple[Microbatch, int]:
    place = place_of_microbatch(len(ASKED), START.commit, PEER.public_key, index)
    return Microbatch(7, START.commit, 0, PEER.public_key, index, ASKED[place], MICROBATCH), place


@dataclasses.dataclass
class Drawn:
    """The microbatches of one step. Implements ``peer.train.step_runner.Microbatches``."""

    most: int
    step: int = 0

    def at(self, index: int) -> tuple[Microbatch, int]:
        return microbatch_at(index)


class Unhurried:
    """Always has time for another microbatch."""

    def may_start(self, step: int, microbatches: int, ends: float | None, worker: int) -> bool:
        return True


async def trained(pool: WorkerPool, microbatches: int, beside: Callable[[], Awaitable[None]] | None = None) -> GradientAccumulator:
    """Return the gradient accumulator of so many microbatches on a worker pool, while ``beside`` goes on."""
    accumulator, machine = (
        GradientAccumulator(pool.num_weights, ASKED),
        RoundMachine(SIGNED.open(), SIGNED.run, PEER.public_key, FixedTrainingSpec(), START),
    )
    cohort_session: asyncio.Future[CohortSession] = asyncio.get_running_loop().create_future()
    cohort_session.set_result(CohortSession(PEER.public_key))
    runner = StepRunner(Drawn(microbatches), 0, accumulator, pool, progress_of(machine), cohort_session, Unhurried())
    runners.append(runner)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runner.run())
        if beside is not None:
            await beside()
    runners.remove(runner)
    assert machine.samples == accumulator.samples == microbatches * MICROBATCH
    return accumulator


lines: list[str] = []  # what a person would have read
runners: list[StepRunner] = []  # under way


async def told(pool: WorkerPool) -> None:
    """Take note of what happens at a worker pool, as a session does."""
    while True:
        lines.extend(await pool.changes.next())
        for runner in runners:
            runner.look_again()


def alone(weights: Tensor, teacher: Tensor | None, microbatches: int, dataset: Dataset | None = None) -> GradientAccumulator:
    """What one worker makes of as many microbatches, in this process, on one thread."""

    async def whole() -> GradientAccumulator:
        compute = ComputeThread()
        pool = InProcess(Worker(TINY.name, dataset or digits()), compute)
        try:
            await pool.load(weights, teacher)
            return await trained(pool, microbatches)
        finally:
            compute.close()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return asyncio.run(whole())
    finally:
        torch.set_num_threads(threads)


def same(one: GradientAccumulator, other: GradientAccumulator) -> bool:
    """Whether two gradient accumulators are the same, to the bit."""
    return (
        bool((one.gradient() == other.gradient()).all()) and one.claimed(bytes(32)) == other.claimed(bytes(32)) and one.loss == other.loss
    )


def play(
    story: Callable[[ProcessPool], Awaitable[None]],
    *,
    devices: tuple[Device, ...] = (CPU, CPU),
    timeouts: WorkerTimeouts = PATIENT,
    data: Callable[[], WorkerData] = lambda: WorkerData.of(digits(), None),
    cuda_graphs: bool = False,
) -> None:
    """Run ``story`` with a worker pool; at its end nothing of it is left."""
    lines.clear()
    descriptors = set(os.listdir("/proc/self/fd"))

    async def whole() -> set[int]:
        pool = ProcessPool(TINY.name, data(), devices, timeouts, cuda_graphs=cuda_graphs)
        telling = asyncio.create_task(told(pool))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await pool.start()
                await story(pool)
                return set(pool.pids.values())
        finally:
            telling.cancel()
            await pool.close()

    pids = asyncio.run(whole())
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    gc.collect()  # what is mapped goes with the worker pool
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert not [name for name in os.listdir("/dev/shm") if "manta" in name]


async def busy(pool: ProcessPool) -> None:
    """Return once both workers are at a microbatch."""
    await until(lambda: len(pool.present()) == 2 and not pool.free())


def test_two_workers_train_the_same_microbatches_as_one_to_the_bit_on_each_state_and_teacher() -> None:
    async def story(pool: ProcessPool) -> None:
        for weights, teacher, want in zip(states, teachers, expected, strict=True):
            await pool.load(weights, teacher)
            assert same(await trained(pool, 6), want)
        assert lines == []

    states, teachers = [weights_of(1), weights_of(2), weights_of(1)], [None, weights_of(3), None]
    expected = [alone(weights, teacher, 6) for weights, teacher in zip(states, teachers, strict=True)]
    assert not same(expected[0], expected[1])
    play(story)


@pytest.mark.usefixtures("forked_children")
def test_workers_read_shards_themselves_and_leave_out_the_microbatches_whose_samples_are_missing(tmp_path: Path) -> None:
    for number in range(300):
        write_picture(tmp_path / "own" / str(number % 10) / f"{number}.png", noise(32, 32, seed=number))
    shard_images(tmp_path / "own", tmp_path / "some", lambda *_: None, shard_bytes=4 << 10)
    dataset = load_dataset("shards-some", tmp_path)
    assert isinstance(dataset, ShardedImages)
    whole = alone(weights_of(1), None, 4, dataset)
    needed = sample_indices(7, START.commit, 0, PEER.public_key, 2, dataset.num_train, MICROBATCH)[0]  # by the microbatch of index 2
    dataset.shards.path(dataset.shards.number_of(needed)).unlink()
    dataset = load_dataset("shards-some", tmp_path)
    expected = alone(weights_of(1), None, 4, dataset)
    assert not same(expected, whole)

    async def story(pool: ProcessPool) -> None:
        await pool.load(weights_of(1), None)
        assert same(await trained(pool, 4), expected)
        assert lines == []  # no worker ended

    play(story, data=lambda: WorkerData.of(dataset, tmp_path))


@pytest.mark.usefixtures("forked_children")
def test_a_worker_that_is_killed_or_stands_still_in_a_microbatch_is_replaced_and_its_microbatch_done_again() -> None:
    async def story(pool: ProcessPool) -> None:
        await pool.load(weights_of(1), None)
        await until(lambda: len(pool.present()) == 2)
        assert same(await trained(pool, 2), alone_2)  # both have an idea by now of how long a microbatch takes
        for struck, number in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
            lines.clear()
            before = dict(pool.pids)

            async def strike(pid: int = before[struck], number: signal.Signals = number) -> None:
                await busy(pool)
                os.kill(pid, number)

            assert same(await trained(pool, 8, strike), alone_8)
            await until(lambda: len(pool.present()) == 2)
            assert pool.pids[struck] != before[struck]
            assert pool.pids[1 - struck] == before[1 - struck]
            assert not psutil.pid_exists(before[struck])
            assert [line for line in lines if f"worker {struck} (cpu) ended" in line and "is done again" in line] == lines

    alone_2, alone_8 = alone(weights_of(1), None, 2), alone(weights_of(1), None, 8)
    play(story, timeouts=QUICK)


def test_a_pause_ends_the_workers_at_once_and_after_it_they_go_on_and_with_other_threads_others_do(forked_children: list[Program]) -> None:
    async def story(pool: ProcessPool) -> None:
        await pool.load(weights_of(1), None)
        await until(lambda: len(pool.present()) == 2)
        lost = [asyncio.create_task(pool.train(worker, microbatch_at(worker)[0])) for worker in (0, 1)]
        await busy(pool)
        before = set(pool.pids.values())
        await pool.pause()
        assert not any(psutil.pid_exists(pid) for pid in before)
        assert (pool.is_paused, list(pool.present()), list(pool.free())) == (True, [], [])
        assert [type(each) for each in await asyncio.gather(*lost, return_exceptions=True)] == [WorkerLost, WorkerLost]
        await pool.resume()
        assert same(await trained(pool, 4), expected)
        await until(lambda: len(pool.present()) == 2)
        resumed = set(pool.pids.values())

        async def equip() -> None:
            for pid in resumed:
                os.kill(pid, signal.SIGSTOP)  # they stay at their microbatches
            await busy(pool)
            await pool.equip((Device("cpu", 2), Device("cpu", 2)), 2**31)
            assert not any(psutil.pid_exists(pid) for pid in resumed)

        assert (await trained(pool, 3, equip)).samples == 3 * MICROBATCH  # the microbatches of those that were ended are done again
        assert [program.environment for program in forked_children] == [with_threads(1)] * 4 + [with_threads(2)] * 2
        assert lines == []

    expected = alone(weights_of(1), None, 4)
    play(story)


@pytest.mark.usefixtures("forked_children")
def test_workers_that_end_again_and_again_are_said_once_and_tried_on() -> None:
    async def story(pool: ProcessPool) -> None:
        await until(lambda: any("again and again" in line for line in lines))
        await until(lambda: len(pool.pids) == 2)
        assert sum("again and again" in line for line in lines) == 1
        assert sum("worker 0" in line for line in lines) == 1
        assert list(pool.present()) == []

    play(story, devices=(Device("cuda:77", 1), Device("cuda:78", 1)))


def test_workers_end_with_a_peer_that_is_killed_even_one_that_stands_still(tmp_path: Path) -> None:
    parent = forked_program(tmp_path / "log", "tests.peer.workers.killed_peer")
    try:
        wait_for(lambda: "\n" in (tmp_path / "log").read_text(), "the workers are there", detail=parent.last_lines)
        workers = [psutil.Process(int(pid)) for pid in (tmp_path / "log").read_text().split()]
        assert len(workers) == 2
        workers[0].suspend()
    finally:
        parent.process.kill()
        parent.process.wait(DEADLINE_S)
    wait_for(lambda: are_gone(workers), "the workers have ended")
    pids = {str(pid) for pid in (parent.pid, *(worker.pid for worker in workers))}
    assert not [name for name in os.listdir("/dev/shm") if "manta" in name or not pids.isdisjoint(name.split("_"))]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_gpus_train_what_the_cpu_does_within_their_rounding_and_are_free_in_a_pause(cuda_graphs: bool) -> None:
    async def story(pool: ProcessPool) -> None:
        await pool.load(weights_of(1), None)
        accumulator = await trained(pool, 6)
        difference = torch.from_numpy(accumulator.gradient() - expected.gradient())
        assert float(difference.norm()) < 0.1 * float(torch.from_numpy(expected.gradient()).norm())
        await pool.pause()
        assert not pool.pids

    expected = alone(weights_of(1), None, 6)
    gpus = tuple(Device(f"cuda:{index}", 1) for index in range(torch.cuda.device_count()))
    play(story, devices=gpus, timeouts=WorkerTimeouts(), cuda_graphs=cuda_graphs)
