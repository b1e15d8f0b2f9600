"""What the process that audits is asked, and answers (see ``peer.aside.messages``)."""

from dataclasses import dataclass

from protocol.audits import MAX_EXTRA_BYTES
from protocol.records import LotRecord, SignedClaim

MAX_ASK_BYTES = 1 << 26
MAX_ANSWER_BYTES = MAX_EXTRA_BYTES
MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class Ask:
    """One lot of a claim on the weights that were sent last."""

    claim: SignedClaim
    lots: tuple[LotRecord, ...]  # all of them
    place: int  # of the one that is computed


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it."""

    holds: int  # 1: it does
    projection: bytes  # as it came out here
    reason: str  # for people
    cpu_ms: int  # that it took
