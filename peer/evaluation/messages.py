"""What the process that measures for others is asked, and answers (``runtime.line``)."""

from dataclasses import dataclass

from protocol.evaluations import MAX_RESULT_BYTES, Result
from runtime.line import Messages

MAX_WEIGHTS_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Weights:
    """A state's parameters, to measure with from now on; there is no answer."""

    parameters: bytes  # binary32, little-endian


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


# That it has its data it says by a ``Beat``.
MESSAGES = Messages((Weights, Ask), (Measured,), max_to_child=MAX_WEIGHTS_BYTES, max_to_parent=MAX_RESULT_BYTES + 64)
