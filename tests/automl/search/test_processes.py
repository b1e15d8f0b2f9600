import asyncio
import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.search.evaluators import LocalEvaluator
from manta_swarm.automl.search.process import command
from manta_swarm.automl.search.processes import MESSAGES, MeasureAnswer, MeasureRequest, ProcessEvaluator
from manta_swarm.automl.spaces.space import TINY, Architecture
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


# A program that does and answers what it is given for each question. It loads nothing: what is about the parent needs no networks.
ANSWERING = """import json, os, signal, socket, sys
answers, line = json.loads(sys.argv[1]), socket.socket(fileno=0)
while asked := line.recv(1 << 16).hex():
    before, answer = answers[asked]
    exec(before)
    line.sendall(bytes.fromhex(answer))
"""


def answering(before: Mapping[Architecture, str]) -> list[str]:
    """Return a program that answers with ``measured_of``; before some of its answers it does something."""

    def said(architecture: Architecture) -> tuple[str, str]:
        found = MeasureAnswer.of(measured_of(architecture, "search"))
        return before.get(architecture, ""), MESSAGES.to_parent.framed(found).hex()

    answers = {MESSAGES.to_child.framed(MeasureRequest(one.text, "search")).hex(): said(one) for one in (TINY.smallest(), *SAMPLED)}
    return python("-c", ANSWERING, json.dumps(answers))


@pytest.mark.swarm
def test_another_process_agrees_with_this_one(tmp_path: Path) -> None:
    supernet = build(TINY)
    supernet.initialise(torch.Generator().manual_seed(1))
    snapshot = tmp_path / "round.safetensors"
    save_snapshot(snapshot, State(1, supernet.flat_weights_N, ()), {"supernet": TINY.name, "dataset": "digits"})
    here = LocalEvaluator(supernet, digits())
    with ProcessEvaluator(command(snapshot, "digits", "cpu", FP32, None), 1) as there:
        assert list(there.measure(SAMPLED[:4], "search")) == list(here.measure(SAMPLED[:4], "search"))
        assert list(there.measure(SAMPLED[:1], "test")) == list(here.measure(SAMPLED[:1], "test"))
    assert not running()


@pytest.mark.swarm
def test_answers_come_in_the_order_asked_for(tmp_path: Path) -> None:
    """The first is answered when another process is asked for the last one."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    waits = {SAMPLED[0]: f"open({pipe!r})", SAMPLED[-1]: f"open({pipe!r}, 'w')"}
    with ProcessEvaluator(answering(waits), 2) as evaluator:
        assert list(evaluator.measure(SAMPLED, "search")) == [measured_of(each, "search") for each in SAMPLED]
        assert list(evaluator.measure([], "search")) == []
    assert not running()


@pytest.mark.swarm
def test_a_process_that_dies_ends_the_search_with_a_word() -> None:
    with (
        ProcessEvaluator(answering(dict.fromkeys(SAMPLED, "os._exit(9)")), 2) as evaluator,
        pytest.raises(OwnFault, match=r"exit code 9.*same command"),
    ):
        list(evaluator.measure(SAMPLED, "search"))
    assert not running()


@pytest.mark.swarm
def test_an_error_in_a_process_is_the_error_of_the_search(tmp_path: Path) -> None:
    missing = command(tmp_path / "round.safetensors", "digits", "cpu", FP32, None)
    with ProcessEvaluator(missing, 1) as evaluator, pytest.raises(UserError, match=r"round\.safetensors"):
        list(evaluator.measure(SAMPLED, "search"))
    assert not running()


@pytest.mark.swarm
def test_a_search_that_is_broken_off_leaves_no_process() -> None:
    with ProcessEvaluator(answering(dict.fromkeys(SAMPLED, "signal.pause()")), 2) as evaluator:
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

    async def heard(child: Child, kind: type[MeasureAnswer], timeout_s: float) -> MeasureAnswer:
        found = await hear(child, kind, timeout_s)
        monkeypatch.setattr(Child, "hear", hear)  # it is pressed once
        press(turns)
        return found

    def press(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(press, turns - 1)
        else:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Child, "hear", heard)
    with pytest.raises(KeyboardInterrupt), ProcessEvaluator(answering({}), 1) as evaluator:
        list(evaluator.measure(SAMPLED, "search"))
    assert not running()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_process_at_all_is_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ProcessEvaluator(answering({}), 0)
