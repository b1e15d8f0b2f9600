import asyncio
import random
import signal
from pathlib import Path

import psutil
import pytest
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.search.evaluators import LocalEvaluator
from manta_swarm.automl.search.process import command
from manta_swarm.automl.search.processes import Found, ProcessEvaluator
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.snapshot import save_snapshot
from manta_swarm.automl.training.update import State
from manta_swarm.protocol.errors import OwnFault, UserError
from manta_swarm.runtime.child import Child, python
from tests import forked
from tests.automl.search.synthetic import measured_of

SAMPLED = [TINY.sample(random.Random(index)) for index in range(12)]


def running() -> list[psutil.Process]:
    """Return the processes that evaluators have started, those that programs of other tests are forked from left out."""
    return [each for each in psutil.Process().children() if each.pid != forked.server_pid()]


def by(name: str) -> list[str]:
    """Return the program that measures by a class of ``tests.automl.search.synthetic``."""
    return python("-m", "tests.automl.search.synthetic", name)


@pytest.mark.swarm
def test_processes_agree_with_this_process(tmp_path: Path) -> None:
    supernet = build(TINY)
    supernet.initialise(torch.Generator().manual_seed(1))
    snapshot = tmp_path / "round.safetensors"
    save_snapshot(snapshot, State(1, supernet.flat_weights_N, ()), {"supernet": TINY.name, "dataset": "digits"})
    here = LocalEvaluator(supernet, digits())
    with ProcessEvaluator(command(snapshot, "digits", "cpu", FP32, None), 2) as there:
        assert list(there.measure(SAMPLED[:6], "search")) == list(here.measure(SAMPLED[:6], "search"))
        assert list(there.measure(SAMPLED[:2], "test")) == list(here.measure(SAMPLED[:2], "test"))
    assert not running()


@pytest.mark.swarm
def test_answers_come_in_the_order_asked_for() -> None:
    slow_first = sorted(SAMPLED, key=lambda architecture: -architecture.resolution)
    with ProcessEvaluator(by("OutOfOrder"), 2) as evaluator:
        assert list(evaluator.measure(slow_first, "search")) == [measured_of(each, "search") for each in slow_first]
        assert list(evaluator.measure([], "search")) == []
    assert not running()


@pytest.mark.swarm
def test_a_process_that_dies_ends_the_search_with_a_word() -> None:
    with ProcessEvaluator(by("Dying"), 2) as evaluator, pytest.raises(OwnFault, match=r"exit code 9.*same command"):
        list(evaluator.measure(SAMPLED, "search"))
    assert not running()


@pytest.mark.swarm
def test_an_error_in_a_process_is_the_error_of_the_search() -> None:
    with ProcessEvaluator(by("Broken"), 1) as evaluator, pytest.raises(UserError, match="no such file"):
        list(evaluator.measure(SAMPLED, "search"))
    assert not running()


@pytest.mark.swarm
def test_a_search_that_is_broken_off_leaves_no_process() -> None:
    with ProcessEvaluator(by("Stuck"), 2) as evaluator:
        answers = evaluator.measure([TINY.smallest(), *SAMPLED], "search")
        assert next(answers) == measured_of(TINY.smallest(), "search")
        answers.close()
        assert not running()
        with pytest.raises(ValueError, match="stopped"):
            next(evaluator.measure(SAMPLED, "search"))


@pytest.mark.swarm
@pytest.mark.parametrize("turns", range(5))
def test_ctrl_c_is_one_at_every_turn_of_the_loop(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come while the loop stops with an answer, when whoever waited for it is not to be cancelled any more."""
    hear = Child.hear

    async def heard(child: Child, kind: type[Found], timeout_s: float) -> Found:
        found = await hear(child, kind, timeout_s)
        press(turns)
        return found

    def press(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(press, turns - 1)
        else:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Child, "hear", heard)
    with pytest.raises(KeyboardInterrupt), ProcessEvaluator(by("OutOfOrder"), 1) as evaluator:
        list(evaluator.measure(SAMPLED, "search"))
    assert not running()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_process_at_all_is_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ProcessEvaluator(by("OutOfOrder"), 0)
