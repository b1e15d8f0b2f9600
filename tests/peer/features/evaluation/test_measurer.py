"""The real process that measures for others: what it finds against what a search finds here, its priority, its end, and what it cannot."""

import asyncio
import os
import random
import signal

import psutil
import pytest
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.search.evaluators import LocalEvaluator, result_of
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.peer.features.evaluation.measurer import Measurer
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.evaluations import difference
from manta_swarm.runtime.child import ChildLost
from tests.runtime.forked_child import forked_children

__all__ = ["forked_children"]

pytestmark = pytest.mark.swarm


def test_it_measures_as_a_search_does_and_is_gone_when_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.peer.features.evaluation.measurer.NICENESS", 1)  # with its own a busy machine takes minutes
    supernet, data, architecture = build(TINY), digits(), TINY.sample(random.Random(2))
    supernet.initialise(torch.Generator().manual_seed(1))
    (here,) = LocalEvaluator(supernet, data).measure([architecture], "search")

    async def work() -> None:
        measurer = await Measurer.start(TINY.name, "digits", data.digest, None)
        try:
            process = psutil.Process(measurer.pid)
            assert process.nice() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1)
            await measurer.load(supernet.flat_weights_N.detach().numpy().tobytes())
            there = await measurer.measure(architecture.text, "search")
            assert difference(there.result, result_of(here, TINY.task)) == ""
            assert there.cpu_ms > 0
            asking = asyncio.create_task(measurer.measure(architecture.text, "test"))
            await asyncio.sleep(0)  # it has asked
            os.kill(measurer.pid, signal.SIGKILL)
            with pytest.raises(ChildLost):
                await asking
        finally:
            await measurer.close()
        assert not psutil.pid_exists(measurer.pid)

    asyncio.run(work())


@pytest.mark.usefixtures("forked_children")
def test_of_other_data_than_the_run_s_nothing_is_measured() -> None:
    with pytest.raises(UserError, match="not the run's"):
        asyncio.run(Measurer.start(TINY.name, "digits", bytes(32), None))
