"""What a peer and its workers say: what is not exactly that is refused."""

import struct
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.automl.shared_memory import ImagesIn
from manta_swarm.peer.workers.worker_messages import MESSAGES, PairsOf, Ready, ShardsOf, Task, WorkerAnswer, WorkerSetup
from manta_swarm.protocol.encoding import encode, pack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.runtime.line import HEAD_BYTES

TASK = Task(3, 1, 0, 7, b"b" * 32, 0, b"k" * 32, 5, "r32 u1.0:k3e2", 16, 100)
SETUP = WorkerSetup("stereo-tiny", "cuda:1", 4, 2**31, 1, 32, (), (PairsOf("layers", "", 327_744),), ())
SAID = [
    WorkerSetup("classifier-tiny", "cpu", 1, 0, 0, 64, (ImagesIn("digits", 16, 10, (1442, 1, 8, 8), 0),), (), ()),
    SETUP,
    WorkerSetup("classifier-base", "cpu", 4, 0, 0, 32, (), (), (ShardsOf("shards-x", "/data", bytes(32)),)),
    Ready("cpu", 205_696),
    TASK,
    WorkerAnswer(3, 9, bytes(8), "the shard 7 is missing"),
    WorkerAnswer(0, 5, struct.pack(">d", 2.5), ""),
]


@pytest.mark.parametrize("message", SAID)
def test_what_is_said_is_understood(message: object) -> None:
    kinds = MESSAGES.to_child if type(message) in MESSAGES.to_child.records else MESSAGES.to_parent
    data = kinds.framed(message)
    length, kind = kinds.head(data[:HEAD_BYTES])
    assert length == len(data) - HEAD_BYTES
    assert kinds.message(kind, data[HEAD_BYTES:]) == message


def test_microbatches_are_recorded_or_not() -> None:
    with pytest.raises(ValueError, match="no setup"):
        replace(SETUP, cuda_graphs=2)


def test_a_loss_keeps_its_bits() -> None:
    assert WorkerAnswer(0, 0, struct.pack(">d", 0.1), "").loss_value == 0.1


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Task, pack(TASK) + b"\0"),
        (Task, pack(TASK)[:-1]),
        (Task, encode((3, 2, 0, 7, b"", 0, b"", 5, "", 16))),
        (Task, encode((3, 1, -1, 7, b"", 0, b"", 5, "", 16))),
        (WorkerAnswer, pack(TASK)),
        (WorkerAnswer, encode((0, 5, b"7bytes.", ""))),
        (WorkerAnswer, encode((0, 5, b"8 bytes.", b"text", b"p" * 31))),
        (WorkerAnswer, encode((0, 5, b"8 bytes.", "x" * 301))),
    ],
)
def test_what_is_no_message_of_its_kind_is_refused(kind: type[Any], data: bytes) -> None:
    with pytest.raises(EncodingError):
        MESSAGES.to_child.message(kind, data)
