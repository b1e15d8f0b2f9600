"""What a peer and its workers say: what is not exactly that is refused."""

import struct
from dataclasses import replace

import pytest

from automl.data.shared import ImagesIn
from peer.crew import worker_messages as said
from peer.crew.worker_messages import HEAD_BYTES, MAX_BYTES, Message, framed, head, message_of
from protocol.encoding import encode
from protocol.errors import EncodingError

TASK = said.Task(3, 1, 0, 7, b"b" * 32, 0, b"k" * 32, 5, "r32 u1.0:k3e2", 16, 100)
MESSAGES: list[Message] = [
    said.Setup("classifier-tiny", "cpu", 1, 0, 0, 64, (ImagesIn("digits", 16, 10, (1442, 1, 8, 8), 0),), (), ()),
    said.Setup("stereo-tiny", "cuda:1", 4, 2**31, 1, 32, (), (said.PairsOf("layers", "", 327_744),), ()),
    said.Setup("classifier-base", "cpu", 4, 0, 0, 32, (), (), (said.ShardsOf("shards-x", "/data", bytes(32)),)),
    said.Ready("cpu", 205_696),
    TASK,
    said.Missing(3, 9, "the shard 7 is missing"),
    said.Answer(0, 5, struct.pack(">d", 2.5)),
    said.Failed("out of memory"),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_said_is_understood(message: Message) -> None:
    data = framed(message)
    length, kind = head(data[:HEAD_BYTES])
    assert length == len(data) - HEAD_BYTES
    assert message_of(kind, data[HEAD_BYTES:]) == message


def test_lots_are_recorded_or_not() -> None:
    with pytest.raises(ValueError, match="no setup"):
        replace(MESSAGES[1], cuda_graphs=2)  # type: ignore[type-var]


def test_a_loss_keeps_its_bits() -> None:
    assert said.Answer(0, 0, struct.pack(">d", 0.1)).loss_value == 0.1


@pytest.mark.parametrize("data", [struct.pack(">IB", 10, 6), struct.pack(">IB", 10, 255), struct.pack(">IB", MAX_BYTES + 1, 0)])
def test_an_unknown_kind_or_too_much_is_refused_before_it_is_read(data: bytes) -> None:
    with pytest.raises(EncodingError, match="no message"):
        head(data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (2, framed(TASK)[HEAD_BYTES:] + b"\0"),
        (2, framed(TASK)[HEAD_BYTES:-1]),
        (2, encode((3, 2, 0, 7, b"", 0, b"", 5, "", 16))),
        (2, encode((3, 1, -1, 7, b"", 0, b"", 5, "", 16))),
        (3, framed(TASK)[HEAD_BYTES:]),
        (3, encode((0, 5, b"7bytes."))),
        (3, encode((0, 5, b"8 bytes.", b"p" * 31))),
        (4, encode(("x" * 301,))),
    ],
)
def test_what_is_no_message_of_its_kind_is_refused(kind: int, data: bytes) -> None:
    with pytest.raises(EncodingError):
        message_of(kind, data)
