"""What the process that audits is asked, and answers (see ``peer.aside.messages``).

All lots of a claim are computed one after the other: after each it says so, and waits until it is told to go on. So it works no more than
its share of the time, and is ended in the middle, however long they take.
"""

from dataclasses import dataclass

from protocol.audits import DIFFERS, HOLDS, MAX_EXTRA_BYTES
from protocol.fields import require
from protocol.records import LotRecord, SignedClaim, StepRecord

MAX_ASK_BYTES = 1 << 26  # beside a body
MAX_ANSWER_BYTES = MAX_EXTRA_BYTES
MAX_REASON = 200

WORKING = "working"  # an outcome: it is not over
MISSED = "missed"  # nothing can be found now: what was got of others is not on the disk any more
_OUTCOMES = (HOLDS, DIFFERS, WORKING, MISSED)


@dataclass(frozen=True, slots=True)
class Ask:
    """One lot of a claim, or all of them, on the weights that were sent last."""

    claim: SignedClaim
    check: str  # of ``protocol.duties.ANSWERED``
    place: int  # of the lot that is computed; with all of them 0
    lots: tuple[LotRecord, ...]  # all of the claim's
    steps: tuple[StepRecord, ...]
    is_alone: int  # 1: its contribution has no other claim
    body: bytes  # where all lots are compared with it (``protocol.wanted.is_by_body``); else empty
    floor: int  # of the claim's base


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it."""

    outcome: str
    projection: bytes  # as it came out here
    reason: str  # for people
    cpu_ms: int  # that it took, since the last word

    def __post_init__(self) -> None:
        require(self.outcome in _OUTCOMES, "an unknown outcome")
