"""What answering others' questions costs a volunteer's training: real worker processes, beside a service that is always asked or never.

    .venv/bin/python benchmarks/evaluations.py [--share 10 100] [--seconds 10] [--pairs 4] [--threads 1] [--workers 2]

The worker processes train microbatches (classifier-tiny, digits) without a pause, as a peer's do; a real service answers one who always
asks, at the share that its person allows. Stretches with and without questions come in pairs, in turn. Each line: the microbatches with
them against those without, the median of the pairs, the least and the most; how much of a core the measuring took, and how many networks a
minute it was.
"""

import argparse
import asyncio
import random
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.microbatches import Microbatch
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.peer.features.evaluation.measurer import Measured, Measurer
from manta_swarm.peer.features.evaluation.service import EvaluationService, EvaluationSubject
from manta_swarm.peer.workers.devices import Device
from manta_swarm.peer.workers.processes import ProcessPool, WorkerData
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.evaluations import MAX_WORD_BYTES, METHOD, EvaluationWord, Question, QuestionFate
from manta_swarm.protocol.signing import Identity, sha256

_TIMEOUT_S = 600.0  # until a process has loaded its libraries, on a busy machine

RUN, STATE = sha256(b"run"), sha256(b"state")
PEER, ASKER = Identity(bytes(31) + b"\x01"), Identity(bytes(31) + b"\x02")


class Counting(Measurer):
    """Adds up what was measured."""

    networks = 0
    cpu_s = 0.0

    async def measure(self, architecture: str, part: str) -> Measured:
        measured = await super().measure(architecture, part)
        Counting.networks += 1
        Counting.cpu_s += measured.cpu_ms / 1000
        return measured


class Host:
    """The peer that is asked; implements ``peer.features.evaluation.service.EvaluationHost``."""

    held_round = 0

    def __init__(self, data: bytes, weights: bytes) -> None:
        self.data = data
        self.state = weights

    def weights(self, state: bytes) -> bytes | None:
        return self.state if state == STATE else None

    async def start(self) -> Counting:
        return await Counting.start(TINY.name, "digits", self.data, None)

    def measured(self, count: int) -> None:
        pass


class Training:
    """A worker pool that is never idle."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool, self.microbatches = pool, 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def go_on(self) -> None:
        """Train microbatches until this is cancelled."""
        index = 0
        while True:
            for worker in self._pool.free():
                microbatch = Microbatch(0, bytes(32), 0, PEER.public_key, index, TINY.sample(random.Random(index % 4)), 32)
                self._tasks.add(task := asyncio.create_task(self._one(worker, microbatch)))
                task.add_done_callback(self._tasks.discard)
                index += 1
            await self._pool.changes.next()

    async def end(self) -> None:
        """Wait for the microbatches that are under way."""
        await asyncio.gather(*self._tasks)

    async def _one(self, worker: int, microbatch: Microbatch) -> None:
        done = await self._pool.train(worker, microbatch)
        self._pool.release(done)
        self.microbatches += 1


class Asking:
    """One who always asks, while ``is_on`` is set."""

    def __init__(self, asker: MemoryEndpoint) -> None:
        self._asker, self._rng, self.is_on = asker, random.Random(0), asyncio.Event()

    async def go_on(self) -> None:
        """Ask one question after the other until this is cancelled."""
        while True:
            await self.is_on.wait()
            question = pack(Question(RUN, 0, STATE, "search", (TINY.sample(self._rng).text,), secrets.token_bytes(16)))
            fate = int(QuestionFate.HELD)
            while fate == QuestionFate.HELD:
                said = await self._asker.call(PEER.public_key, METHOD, question, timeout_s=600)
                fate = unpack(EvaluationWord, said, max_bytes=MAX_WORD_BYTES).fate
            if fate != QuestionFate.DONE:
                await asyncio.sleep(0.2)


async def paired(arguments: argparse.Namespace, training: Training, asking: Asking) -> list[float]:
    """Return the rates of microbatches with questions against those without, of each pair of stretches."""
    ratios = []
    for _ in range(arguments.pairs):
        rates = []
        for is_on in (True, False):
            (asking.is_on.set if is_on else asking.is_on.clear)()
            microbatches, at_s = training.microbatches, time.monotonic()
            await asyncio.sleep(arguments.seconds)
            rates.append((training.microbatches - microbatches) / (time.monotonic() - at_s))
        ratios.append(rates[0] / rates[1])
    return ratios


async def reached(condition: Callable[[], bool], tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Return once a condition holds; what ends one of the tasks before ends this."""
    async with asyncio.timeout(_TIMEOUT_S):
        while not condition():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)


async def measure(arguments: argparse.Namespace) -> None:
    """Print a line for each share."""
    supernet, data = build(TINY), digits()
    supernet.initialise(torch.Generator().manual_seed(1))
    weights = supernet.flat_weights_N.detach()
    pool = ProcessPool(TINY.name, WorkerData.of(data, None), (Device("cpu", arguments.threads),) * arguments.workers)
    training, network = Training(pool), MemoryNetwork()
    asking = Asking(network.endpoint(ASKER.public_key))
    service = EvaluationService(PEER, EvaluationSubject(RUN, data.digest, TINY), Host(data.digest, weights.numpy().tobytes()))
    await pool.start()
    await pool.load(weights, None)
    async with service.open(network.endpoint(PEER.public_key)):
        tasks = [asyncio.create_task(asking.go_on())]
        try:
            service.limit(100, 100)
            asking.is_on.set()
            await reached(lambda: Counting.networks > 0, tasks)  # its libraries are loaded, before what it gives way to begins
            tasks.append(asyncio.create_task(training.go_on()))
            await reached(lambda: training.microbatches > 0, tasks)
            for share in arguments.share:
                service.limit(share, 100)
                networks, cpu_s = Counting.networks, Counting.cpu_s
                ratios = await paired(arguments, training, asking)
                on_s = arguments.seconds * arguments.pairs
                results.say(
                    f"evaluation {share:3d}%: microbatches with it / without {statistics.median(ratios):.3f} "
                    f"({min(ratios):.3f} to {max(ratios):.3f}); about {(Counting.cpu_s - cpu_s) / on_s:.3f} of a core, "
                    f"{60 * (Counting.networks - networks) / on_s:.0f} networks a minute",
                    share_percent=share,
                    with_to_without=ratios,
                    cores=(Counting.cpu_s - cpu_s) / on_s,
                    networks_a_minute=60 * (Counting.networks - networks) / on_s,
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await training.end()
            await pool.close()


def main() -> None:
    """Be the program."""
    parser = results.parser(__doc__)
    parser.add_argument("--share", type=int, nargs="+", default=[10, 100], help="hundredths of the time, one line each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a stretch")
    parser.add_argument("--pairs", type=int, default=4, help="of stretches, for each share")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--workers", type=int, default=2, help="processes that train")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments))
    results.write(arguments)


if __name__ == "__main__":
    main()
