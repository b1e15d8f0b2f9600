import asyncio
import random
import threading

import pytest
import torch
from torch import Tensor

import manta_swarm.peer.workers.crew
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.lots import Lot, LotResult
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.crew import InProcess

LOT = Lot(1, bytes(32), 0, bytes(32), 0, TINY.sample(random.Random("crew")), 16)


class Held:
    """A worker whose lot ends when it is let go."""

    num_weights = 1

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def load(self, parameters: Tensor) -> None: ...

    def teach(self, parameters: Tensor | None) -> None: ...

    def train(self, lot: Lot) -> LotResult:
        self.has_begun.set()
        assert self.may_end.wait(60)
        return LotResult(torch.zeros(1), 0.0, lot.samples)


def test_a_pause_gives_memory_back_at_once_or_with_the_end_of_the_lot_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(manta_swarm.peer.workers.crew, "give_back_memory", lambda: given.append("back"))

    async def scene() -> None:
        worker, compute = Held(), ComputeThread()
        crew = InProcess(worker, compute)
        try:
            await crew.pause()
            assert given == ["back"]
            await crew.resume()
            lot = asyncio.create_task(crew.train(0, LOT))
            assert await asyncio.to_thread(worker.has_begun.wait, 60)
            await crew.pause()
            assert given == ["back"]  # nothing is free yet, and the pause does not wait for the lot
            worker.may_end.set()
            await lot
            assert given == ["back"] * 2
            await crew.resume()
            await crew.train(0, LOT)
            assert given == ["back"] * 2
        finally:
            worker.may_end.set()
            compute.close()

    asyncio.run(scene())
