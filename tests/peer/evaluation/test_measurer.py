"""The real process that measures for others, against the evaluator of this process; killed, and asked for what is not here."""

import asyncio
import os
import random
import signal

import psutil
import pytest
import torch

from automl.data.digits import digits
from automl.models.networks import build
from automl.search.evaluators import LocalEvaluator
from automl.search.members import measured_of
from automl.spaces.space import TINY
from peer.evaluation.measurer import NICENESS, Measurer, MeasurerLost
from protocol.errors import UserError
from protocol.evaluations import difference

pytestmark = pytest.mark.swarm


def test_it_measures_as_a_search_does_and_is_gone_when_it_is_killed() -> None:
    supernet = build(TINY)
    supernet.initialise(torch.Generator().manual_seed(1))
    data = digits()
    architecture = TINY.sample(random.Random(2))
    (here,) = LocalEvaluator(supernet, data).measure([architecture], "search")

    async def work() -> None:
        measurer = await Measurer.start(TINY.name, "digits", data.digest, None)
        try:
            process = psutil.Process(measurer.pid)
            assert process.nice() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
            measurer.load(supernet.flat_weights_N.detach().numpy().tobytes())
            there = await measurer.measure(architecture.text, "search")
            assert measured_of(there.result, TINY.task).losses.tolist() == pytest.approx(here.losses.tolist(), abs=100)
            assert difference(there.result, there.result) == ""
            assert there.cpu_ms > 0
            asking = asyncio.create_task(measurer.measure(architecture.text, "test"))
            await asyncio.sleep(0)
            os.kill(measurer.pid, signal.SIGKILL)
            with pytest.raises(MeasurerLost):
                await asking
        finally:
            await measurer.close()
        assert not psutil.pid_exists(measurer.pid)
        with pytest.raises(UserError, match="not the run's"):
            await Measurer.start(TINY.name, "digits", bytes(32), None)

    asyncio.run(work())
