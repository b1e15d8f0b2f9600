"""What the process that measures for others is asked, and answers (see ``peer.aside.messages``)."""

from dataclasses import dataclass

from protocol.evaluations import MAX_RESULT_BYTES, Result

MAX_ANSWER_BYTES = MAX_RESULT_BYTES + 64


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
