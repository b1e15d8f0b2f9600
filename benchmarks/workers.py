"""What several workers in one peer gain: samples a second of worker pools of worker processes, against one worker in one process.

    .venv/bin/python benchmarks/workers.py [--supernet classifier-tiny] [--microbatches 24] [--turns 4] [--workers 2] [--samples 32]
    [--gloo]

One worker with one thread, one worker with as many threads as there are workers, and a worker pool of that many with a thread each train
the same microbatches (the largest, the smallest and random architectures, in turn), gradients added in the order of the microbatches. They
take turns, so that a machine that gets slower does so for all. Prints the median samples a second of each, the spread over the turns,
samples a second of CPU time (which other programs disturb less), and the ratios; and whether the gradients are the same. With --gloo: what
it takes to add two gradients of this length by torch.distributed's all_reduce (two ranks on loopback), and from shared memory as a peer
does.
"""

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import results
import torch
from torch import Tensor

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.peer.cohort.cohort import CohortSession
from manta_swarm.peer.context import Progress
from manta_swarm.peer.submit.promises import Promises
from manta_swarm.peer.train.step_runner import StepRunner
from manta_swarm.peer.train.work import ComputeThread, GradientAccumulator
from manta_swarm.peer.workers.devices import Device
from manta_swarm.peer.workers.pool import InProcess, WorkerPool
from manta_swarm.peer.workers.processes import ProcessPool, WorkerData
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.pace import Pace

_KEY, _BASE = b"k" * 32, b"b" * 32
_ADDED = 50  # gradients, to measure how long adding takes


@dataclass(frozen=True, slots=True)
class Taken:
    """What some microbatches took."""

    seconds: float
    cpu_s: float


class Counting:
    """What a step runner tells of its microbatches; here nothing comes of it. Stands where a ``RoundMachine`` does."""

    def microbatch_started(self, *, to_finish: bool = False) -> None:
        """Take note of nothing."""

    async def counted(self, round: int) -> None:
        """Know no round."""

    def microbatch_trained(self, samples: int) -> bool:
        """Count every microbatch."""
        return samples > 0


@dataclass(frozen=True, slots=True)
class InTurn:
    """Microbatches of these architectures, one after the other, and time for all of them."""

    most: int
    samples: int
    asked: Sequence[Architecture]
    step: int = 0

    def at(self, index: int) -> tuple[Microbatch, int]:
        """Return the microbatch of an index, and the place of its architecture."""
        place = index % len(self.asked)
        return Microbatch(1, _BASE, 0, _KEY, index, self.asked[place], self.samples), place

    @staticmethod
    def may_start(step: int, microbatches: int, ends: float | None, worker: int) -> bool:
        """Return that there is time."""
        return True


def architectures_of(space: SearchSpace) -> tuple[Architecture, ...]:
    """Return what a round of data-parallel trains."""
    return (space.largest(), space.smallest(), *(space.sample(random.Random(f"workers:{index}")) for index in range(2)))


async def timed(
    pool: WorkerPool, asked: Sequence[Architecture], microbatches: int, samples: int, first: int
) -> "tuple[Taken, GradientAccumulator]":
    """Return what so many microbatches take from ``first`` on, and their gradient accumulator."""
    accumulator = GradientAccumulator(pool.num_weights, asked)
    cohort_session: asyncio.Future[CohortSession] = asyncio.get_running_loop().create_future()
    cohort_session.set_result(CohortSession(_KEY))  # type: ignore[arg-type]
    progress = Progress(Counting(), Promises(Counting()), Pace())  # type: ignore[arg-type]
    shift = StepRunner(InTurn(microbatches, samples, asked), first, accumulator, pool, progress, cohort_session, InTurn)
    telling = asyncio.create_task(told(pool, shift))
    started_s, started_cpu_s = time.perf_counter(), cpu_s(pool)
    await shift.run()
    telling.cancel()
    return Taken(time.perf_counter() - started_s, cpu_s(pool) - started_cpu_s), accumulator


async def told(pool: WorkerPool, shift: StepRunner) -> None:
    """Tell a step runner of what happens at its worker pool, until this is cancelled."""
    while True:
        for line in await pool.changes.next():
            print(line, file=sys.stderr)
        shift.look_again()


def cpu_s(pool: WorkerPool) -> float:
    """Return the CPU seconds of this process and of a worker pool's so far."""
    workers = [psutil.Process(pid).cpu_times() for pid in pool.pids.values()] if isinstance(pool, ProcessPool) else []
    return time.process_time() + sum(times.user + times.system for times in workers)


async def measure(arguments: argparse.Namespace) -> None:
    """Print what the module says."""
    space, many = space_named(arguments.supernet), arguments.workers
    dataset = load_dataset("layers" if space.task == "stereo" else "digits")
    supernet = build(space)
    supernet.initialise(torch.Generator().manual_seed(0))
    weights, asked = supernet.flat_weights_N, architectures_of(space)
    compute = ComputeThread()
    alone = InProcess(Worker(space.name, dataset), compute)
    pool = ProcessPool(space.name, WorkerData.of(dataset, None), [Device("cpu", 1)] * many)
    try:
        await pool.start()
        while len(pool.present()) < many:
            await pool.changes.next()
        taken: dict[str, list[Taken]] = {}
        for each in (alone, pool):
            await each.load(weights, None)
        for turn in range(-1, arguments.turns):  # the first turn warms up
            gradients: list[Tensor] = []
            for name, who, threads in (
                ("one worker, 1 thread", alone, 1),
                (f"one worker, {many} threads", alone, many),
                (f"{many} workers, 1 thread each", pool, 1),
            ):
                await compute.run(torch.set_num_threads, threads)  # they are a thread's own
                took, accumulator = await timed(
                    who, asked, arguments.microbatches, arguments.samples, arguments.microbatches * turn if turn > 0 else 0
                )
                gradients.append(torch.from_numpy(accumulator.gradient()))
                if turn >= 0:
                    taken.setdefault(name, []).append(took)
    finally:
        await pool.close()
        compute.close()
    show(taken, gradients, arguments.microbatches * arguments.samples)


def show(taken: dict[str, list[Taken]], gradients: Sequence[Tensor], samples: int) -> None:
    """Print rates, ratios and differences; ``samples`` are those of a turn."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, some in taken.items():
        rates, of_cpu = [samples / each.seconds for each in some], statistics.median(samples / each.cpu_s for each in some)
        spread = f"{min(rates):.1f} to {max(rates):.1f}"
        line = f"  {name:<28} {statistics.median(rates):8.1f} samples/s   {spread:<18} {of_cpu:8.1f} samples a CPU second"
        results.say(line, workers=name, samples_a_second=rates, samples_a_cpu_second=of_cpu)
    one, threads, workers = taken.values()
    for name, other in (("one worker with one thread", one), ("one worker with as many threads", threads)):
        pairs = list(zip(workers, other, strict=True))
        ratio = statistics.median(theirs.seconds / mine.seconds for mine, theirs in pairs)
        of_cpu = statistics.median(theirs.cpu_s / mine.cpu_s for mine, theirs in pairs)
        print(f"workers against {name}: {ratio:.2f} times, a CPU second {of_cpu:.2f} times")
    for name, gradient in (("other threads", gradients[1]), ("workers", gradients[2])):
        difference = float((gradient - gradients[0]).norm() / gradients[0].norm())
        print(f"gradient of {name} against one worker with one thread: relative difference {difference:.1e}")


_RANK = """
import sys, time, torch
import torch.distributed as dist
rank, count, times, store = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
values = torch.ones(count)
dist.all_reduce(values)
taken = []
for _ in range(times):
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(values)
    taken.append(time.perf_counter() - started)
if rank == 0:
    print(sorted(taken)[times // 2])
dist.destroy_process_group()
"""


def compare_with_gloo(count: int, store: str) -> None:
    """Print what adding two gradients takes, either way."""
    ranks = [
        subprocess.Popen([sys.executable, "-c", _RANK, str(rank), str(count), str(_ADDED), store], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    gloo_s = float(said[0])
    torch.set_num_threads(1)
    total, microbatch, slot = torch.zeros(count), torch.ones(count), torch.zeros(count)
    taken = []
    for _ in range(_ADDED):
        started_s = time.perf_counter()
        for _ in range(2):
            slot.copy_(microbatch)  # the worker's part
            total.add_(slot, alpha=32)  # the peer's part
        taken.append(time.perf_counter() - started_s)
    memory_s = statistics.median(taken)
    line = f"two gradients of {count} values: gloo {1000 * gloo_s:.2f} ms, from shared memory {1000 * memory_s:.2f} ms"
    results.say(line, values=count, gloo_s=gloo_s, shared_memory_s=memory_s)


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--supernet", default="classifier-tiny", metavar="NAME", help="one that fits the digits, or a stereo one")
    parser.add_argument("--microbatches", type=int, default=24, metavar="N")
    parser.add_argument("--turns", type=int, default=4, metavar="N")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--samples", type=int, default=32, metavar="N", help="of a microbatch")
    parser.add_argument("--gloo", action="store_true")
    arguments = parser.parse_args()
    try:
        space = space_named(arguments.supernet)
    except UserError as error:
        parser.error(str(error))
    asyncio.run(measure(arguments))
    if arguments.gloo:
        with tempfile.TemporaryDirectory() as folder:
            compare_with_gloo(build(space, "meta").num_weights, f"{folder}/store")
    results.write(arguments)


if __name__ == "__main__":
    main()
