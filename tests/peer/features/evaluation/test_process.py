"""What the process that measures for others does with what it is told: its loop, in a thread, over a pair of sockets."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.search.evaluators import LocalEvaluator, result_of
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.peer.features.evaluation.measurer import MESSAGES, Ask, Measured, Weights
from manta_swarm.peer.features.evaluation.process import SubnetMeasurer, serve
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import EncodingError, UserError
from manta_swarm.runtime.line import HEAD_BYTES, Heartbeat, Parent

TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def bench() -> SubnetMeasurer:
    return SubnetMeasurer(TINY.name, "digits", digits().digest.hex(), None)


@contextmanager
def served(bench: SubnetMeasurer) -> Iterator[tuple[socket.socket, list[BaseException]]]:
    """Yield the peer's end of the line, and how the process ended, once the line was closed or what it was told was wrong."""
    ended: list[BaseException] = []
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)

    def be_process() -> None:
        with theirs:
            try:
                serve(Parent(MESSAGES, theirs, on_end=lambda: None), bench)
            except (EOFError, EncodingError, ValueError, UserError) as error:
                ended.append(error)

    thread = threading.Thread(target=be_process)
    thread.start()
    try:
        with ours:
            yield ours, ended
    finally:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def _said(line: socket.socket) -> Any:
    with line.makefile("rb") as file:
        length, kind = MESSAGES.to_parent.head(file.read(HEAD_BYTES))
        return MESSAGES.to_parent.message(kind, file.read(length))


def test_it_says_that_it_is_ready_and_measures_with_the_newest_weights(bench: SubnetMeasurer) -> None:
    architecture, supernet = TINY.sample(random.Random(5)), build(TINY)
    with served(bench) as (line, ended):
        assert _said(line) == Heartbeat()
        for seed in (1, 2):
            supernet.initialise(torch.Generator().manual_seed(seed))
            line.sendall(MESSAGES.to_child.framed(Weights(supernet.flat_weights_N.detach().numpy().tobytes())))
            line.sendall(MESSAGES.to_child.framed(Ask(architecture.text, "search")))
            measured = _said(line)
            (here,) = LocalEvaluator(supernet, digits()).measure([architecture], "search")
            assert isinstance(measured, Measured)
            assert measured.result == result_of(here, TINY.task)
    assert [type(error) for error in ended] == [EOFError]


@pytest.mark.parametrize(
    "message",
    [
        bytes([0, 0, 0, 0, 9]),  # there is no such kind
        b"\xff\xff\xff\xff" + bytes([0]),
        bytes([0, 0, 0, 1, 1]) + encode(()),
        MESSAGES.to_child.framed(Ask("r32 nothing", "search")),
        MESSAGES.to_child.framed(Ask(TINY.smallest().text, "train")),
    ],
)
def test_what_nobody_understands_ends_it(bench: SubnetMeasurer, message: bytes) -> None:
    with served(bench) as (line, ended):
        assert _said(line) == Heartbeat()
        line.sendall(message)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
    assert [isinstance(error, EncodingError | ValueError) for error in ended] == [True]


def test_other_data_than_the_runs_and_data_that_are_not_here_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the data set digits here is not the run's"):
        SubnetMeasurer(TINY.name, "digits", "00" * 32, None)
    with pytest.raises(UserError):
        SubnetMeasurer(TINY.name, "folder-none", "00" * 32, tmp_path)
