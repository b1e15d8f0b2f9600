"""What a peer and a process beside it say to each other: each message after its length (4 bytes, big-endian) and its kind (1 byte).

The process is started with what it works for in its arguments. It says that it is ready, then it is given weights, and questions one at a
time. What questions and answers are, each kind of process says itself (``peer.evaluation``, ``peer.audits``).
"""

import struct
from enum import IntEnum

from protocol.errors import EncodingError

HEAD_BYTES = 5
MAX_REASON = 150


class Kind(IntEnum):
    """What a message is."""

    READY = 0  # from the process: it has its data
    WEIGHTS = 1  # to it: a state's parameters, binary32, little-endian; there is no answer
    ASK = 2  # to it: a question
    ANSWER = 3  # from it: what came of it
    CANNOT = 4  # from it: text; it will never do anything here, and ends
    TEACHER = 5  # to it: the parameters of what the weights' round learns from too, or nothing; there is no answer
    SETUP = 6  # to it, before all else: what it works for, where that is more than its arguments say
    GO_ON = 7  # to it: after an answer that says that it is not over yet; there is no data


def framed(kind: Kind, data: bytes) -> bytes:
    """Return a message as it travels."""
    return struct.pack(">IB", len(data), kind) + data


def head(data: bytes, *, max_bytes: int) -> tuple[int, Kind]:
    """Return the length and the kind of the message that follows these ``HEAD_BYTES``.

    Raises:
        EncodingError: there is no such message.
    """
    length, kind = struct.unpack(">IB", data)
    if kind not in tuple(Kind) or length > max_bytes:
        raise EncodingError(f"no message: kind {kind}, {length} bytes")
    return length, Kind(kind)
