"""What travels between a child and its parent: what is not exactly a message is refused, before it is read where that can be."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.runtime.line import HEAD_BYTES, Failed, Heartbeat, Parent
from tests.runtime.stand_in import MESSAGES, Answer, Ask


@contextmanager
def parent() -> Iterator[tuple[Parent, socket.socket]]:
    """Yield a child's parent, and its end of the line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Parent(MESSAGES, theirs, on_end=lambda: None), ours
        ours.close()


@pytest.mark.parametrize("message", [Failed(1, "no data"), Heartbeat(), Answer("an answer")])
def test_what_a_child_says_is_understood(message: object) -> None:
    kinds = MESSAGES.to_parent
    data = kinds.framed(message)
    length, kind = kinds.head(data[:HEAD_BYTES])
    assert length == len(data) - HEAD_BYTES
    assert kinds.message(kind, data[HEAD_BYTES:]) == message


@pytest.mark.parametrize("data", [struct.pack(">IB", 10, 3), struct.pack(">IB", 10, 255), struct.pack(">IB", 1001, 0)])
def test_an_unknown_kind_or_too_much_is_refused_before_it_is_read(data: bytes) -> None:
    with pytest.raises(EncodingError, match="no message"):
        MESSAGES.to_parent.head(data)


@pytest.mark.parametrize("data", [encode((2, "why")), encode((0, "x" * 301)), encode((0, b"why")), b"\x80"])
def test_what_is_no_reason_is_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        MESSAGES.to_parent.message(Failed, data)


def test_a_child_hears_one_message_after_the_other_and_then_that_its_parent_is_gone() -> None:
    with parent() as (line, ours):
        for text in ("one", "x" * 100_000):
            ours.sendall(MESSAGES.to_child.framed(Ask(text)))
            assert line.hear() == Ask(text)
        line.say(Answer("here"))
        assert ours.recv(100) == MESSAGES.to_parent.framed(Answer("here"))
        ours.sendall(MESSAGES.to_child.framed(Ask("cut"))[:-1])
        ours.close()
        with pytest.raises(EOFError):
            line.hear()
        line.say(Answer("nobody hears it"))


@pytest.mark.parametrize("data", [struct.pack(">IB", 1, 1), struct.pack(">IB", 1 << 25, 0), struct.pack(">IB", 4, 0) + b"\xff" * 4])
def test_what_a_child_does_not_understand_is_an_error(data: bytes) -> None:
    with parent() as (line, ours):
        ours.sendall(data)
        with pytest.raises(EncodingError):
            line.hear()
