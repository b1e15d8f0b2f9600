"""What the process that measures for others does with what it is told: its loop, in a thread, over a pair of sockets."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from automl.data.digits import digits
from automl.models.networks import build
from automl.search.evaluators import LocalEvaluator
from automl.search.members import result_of
from automl.spaces.space import TINY
from peer.aside.line import Line
from peer.aside.messages import HEAD_BYTES, Kind, framed, head
from peer.evaluation.messages import MAX_ANSWER_BYTES, Ask, Measured
from peer.evaluation.process import Bench, serve
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, UserError

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(TINY.name, "digits", digits().digest.hex(), None)


@contextmanager
def served(bench: Bench) -> Iterator[tuple[socket.socket, list[BaseException]]]:
    """Yield the peer's end of the line, and how the process ended, once the line was closed or what it was told was wrong."""
    ended: list[BaseException] = []
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)

    def be_process() -> None:
        with theirs:
            try:
                serve(Line(theirs), bench)
            except (EOFError, EncodingError, ValueError, UserError) as error:
                ended.append(error)

    thread = threading.Thread(target=be_process)
    thread.start()
    try:
        with ours:
            yield ours, ended
    finally:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def _said(line: socket.socket) -> tuple[Kind, bytes]:
    with line.makefile("rb") as file:
        length, kind = head(file.read(HEAD_BYTES), max_bytes=MAX_ANSWER_BYTES)
        return kind, file.read(length)


def test_it_says_that_it_is_ready_and_measures_with_the_newest_weights(bench: Bench) -> None:
    architecture, supernet = TINY.sample(random.Random(5)), build(TINY)
    with served(bench) as (line, ended):
        assert _said(line) == (Kind.READY, b"")
        for seed in (1, 2):
            supernet.initialise(torch.Generator().manual_seed(seed))
            line.sendall(framed(Kind.WEIGHTS, supernet.flat_weights_N.detach().numpy().tobytes()))
            line.sendall(framed(Kind.ASK, pack(Ask(architecture.text, "search"))))
            kind, data = _said(line)
            assert kind == Kind.ANSWER
            (here,) = LocalEvaluator(supernet, digits()).measure([architecture], "search")
            assert unpack(Measured, data, max_bytes=MAX_ANSWER_BYTES).result == result_of(here, TINY.task)
    assert [type(error) for error in ended] == [EOFError]


@pytest.mark.parametrize(
    "message",
    [
        bytes([0, 0, 0, 0, 9]),  # there is no such kind
        b"\xff\xff\xff\xff" + bytes([Kind.WEIGHTS]),
        framed(Kind.ASK, b"\x80"),
        framed(Kind.ASK, pack(Ask("r32 nothing", "search"))),
        framed(Kind.ASK, pack(Ask(TINY.smallest().text, "train"))),
    ],
)
def test_what_nobody_understands_ends_it(bench: Bench, message: bytes) -> None:
    with served(bench) as (line, ended):
        assert _said(line) == (Kind.READY, b"")
        line.sendall(message)
        assert line.recv(1) == b""
    assert [isinstance(error, EncodingError | ValueError) for error in ended] == [True]


def test_other_data_than_the_runs_and_data_that_are_not_here_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the data set digits here is not the run's"):
        Bench(TINY.name, "digits", "00" * 32, None)
    with pytest.raises(UserError):
        Bench(TINY.name, "folder-none", "00" * 32, tmp_path)
