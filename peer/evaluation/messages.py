"""What a peer and the process that measures for others say to each other: each message after its length (4 bytes, big-endian) and its kind.

The process is started with what it measures for in its arguments. It says that it is ready, then it is given weights, and architectures one
at a time.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from protocol.errors import EncodingError
from protocol.evaluations import MAX_RESULT_BYTES, Result

HEAD_BYTES = 5
MAX_ANSWER_BYTES = MAX_RESULT_BYTES + 64
MAX_REASON = 150


class Kind(IntEnum):
    """What a message is."""

    READY = 0  # from the process: it has its data
    WEIGHTS = 1  # to it: a state's parameters, binary32, little-endian; there is no answer
    ASK = 2  # to it: an Ask
    MEASURED = 3  # from it: a Measured
    CANNOT = 4  # from it: text; it will never measure anything here, and ends


@dataclass(frozen=True, slots=True)
class Ask:
    """One architecture on a part of the held-out data."""

    architecture: str
    part: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it."""

    result: Result
    cpu_ms: int  # that it took


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
