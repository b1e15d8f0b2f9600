"""What a peer that audits hears from the log: which questions wait for its answer.

The log says no more than what its entries say already: the beacon picked the lots and the panels (``protocol.trust``), so whom an auditor
looks at is nobody's choice. It only saves auditors from copying the log. An auditor checks what it is told by the commits that it holds
itself, and the log takes no finding on anything else.
"""

from dataclasses import dataclass

from protocol.audits import CHECKS, LOT, WHOLE, Trust
from protocol.errors import LedgerError
from protocol.fields import MAX_ROUND, require
from protocol.records import MAX_CLAIM_BYTES, Claim, SignedClaim
from protocol.trust import is_whole, lots_audited

ASK = "audits"  # the log's method
ANSWERED = (LOT, WHOLE)  # the checks that peers which audit answer: what the beacon asks, the cheap ones first
MAX_DUTIES = 16
MAX_ASK_BYTES = 64
MAX_DUTIES_BYTES = 64 + MAX_DUTIES * (MAX_CLAIM_BYTES + 64)


@dataclass(frozen=True, slots=True)
class AskDuties:
    """A question for what waits; whoever asks it is counted on for some rounds."""

    round: int  # the newest that the caller knows

    def __post_init__(self) -> None:
        require(0 <= self.round <= MAX_ROUND, "round out of range")


@dataclass(frozen=True, slots=True)
class Duty:
    """One question that waits for the caller's answer."""

    claim: SignedClaim
    round: int  # whose table has it
    row: int
    check: str
    lot: int  # its place under the claim's ``lots_root``; of a whole claim 0

    def __post_init__(self) -> None:
        require(1 <= self.round <= MAX_ROUND and 0 <= self.row < 2**16, "round or row out of range")
        require(self.check in CHECKS and 0 <= self.lot < 2**40, "an unknown check, or a lot out of range")


@dataclass(frozen=True, slots=True)
class Duties:
    """What waits: single lots, then whole claims, of each the oldest first."""

    duties: tuple[Duty, ...]

    def __post_init__(self) -> None:
        require(len(self.duties) <= MAX_DUTIES, f"at most {MAX_DUTIES} questions at once")


def check_duty(duty: Duty, claim: Claim, trust: Trust, *, run: bytes, base: bytes, beacon: bytes) -> None:
    """Check that this is what the beacon asks about a claim.

    Args:
        duty: as the log says it.
        claim: its claim, opened.
        trust: the manifest's.
        run: the run's id.
        base: digest of the commit before the claim's round, as the caller knows it.
        beacon: of the table that has it.

    Raises:
        LedgerError: it is not.
    """
    if claim.run != run or claim.base != base or claim.round > duty.round:
        raise LedgerError("a question about a claim of another run, base or table")
    if duty.check not in ANSWERED:
        raise LedgerError("a question that this auditor does not answer")
    if duty.check == LOT and duty.lot not in lots_audited(trust, beacon, duty.claim.digest, claim.lots):
        raise LedgerError("a question about another lot than the beacon's")
    if duty.check == WHOLE and (duty.lot or not is_whole(trust, beacon, duty.claim.digest)):
        raise LedgerError("a question about all lots of a claim of which the beacon asks for some")
