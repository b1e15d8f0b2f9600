import asyncio
import random
import threading

import pytest
import torch
from torch import Tensor

import manta_swarm.peer.workers.pool
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.pool import InProcess

MICROBATCH = Microbatch(1, bytes(32), 0, bytes(32), 0, TINY.sample(random.Random("pool")), 16)


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


def test_a_pause_gives_memory_back_at_once_or_with_the_end_of_the_microbatch_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(manta_swarm.peer.workers.pool, "give_back_memory", lambda: given.append("back"))

    async def scene() -> None:
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

    asyncio.run(scene())
