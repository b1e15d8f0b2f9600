"""What an audit of a claim begins with: the records of its lots and steps, as their key handed them out, a page at a time.

A claim has their roots only. Who made it keeps the records and gives them to the log, and both hand them to whoever asks
(docs/protocol.md, section 27). Nothing here computes a lot again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.audits import MAX_LOT_BYTES, LotEvidence
from protocol.encoding import pack
from protocol.errors import EncodingError
from protocol.exchange import MAX_LOCAL_STEPS
from protocol.fields import check_digest, require
from protocol.merkle import inclusion_proof, leaf_hash, root
from protocol.records import Claim, LotRecord, SignedClaim, StepRecord

ASK, GIVE = "records", "give-records"  # methods of peers and of the log · of the log
PAGE_LOTS = 1024
MAX_STEP_BYTES = 160  # of a packed StepRecord
MAX_ASK_BYTES = 64
MAX_PAGE_BYTES = PAGE_LOTS * MAX_LOT_BYTES + MAX_LOCAL_STEPS * MAX_STEP_BYTES + 8192


@dataclass(frozen=True, slots=True)
class AskRecords:
    """A question for a page."""

    claim: bytes  # SignedClaim.digest
    first: int  # place of the first lot, a multiple of ``PAGE_LOTS``

    def __post_init__(self) -> None:
        check_digest(self.claim, "claim")
        require(self.first >= 0 and self.first % PAGE_LOTS == 0, "a page begins at a multiple of its size")


@dataclass(frozen=True, slots=True)
class RecordsPage:
    """Some of a claim's records. That they are under its roots shows once all pages are there."""

    claim: SignedClaim
    first: int
    lots: tuple[LotRecord, ...]
    steps: tuple[StepRecord, ...]  # all of them with the first page, none with the others

    def __post_init__(self) -> None:
        require(self.first >= 0 and self.first % PAGE_LOTS == 0, "a page begins at a multiple of its size")
        require(1 <= len(self.lots) <= PAGE_LOTS, f"a page has 1 to {PAGE_LOTS} lots")
        require(len(self.steps) <= MAX_LOCAL_STEPS and not (self.first and self.steps), "steps stand on the first page")


@dataclass(frozen=True, slots=True)
class Records:
    """All records of a claim."""

    lots: tuple[LotRecord, ...]
    steps: tuple[StepRecord, ...]


def pages(claim: SignedClaim, records: Records) -> list[RecordsPage]:
    """Return the pages of a claim's records, in order."""
    firsts = range(0, len(records.lots), PAGE_LOTS)
    return [RecordsPage(claim, first, records.lots[first : first + PAGE_LOTS], () if first else records.steps) for first in firsts]


def evidence_of(records: Records, lot: int) -> LotEvidence:
    """Return the record of the lot at a place, and the proof that it stands there under its claim's root."""
    packed = [pack(record) for record in records.lots]
    return LotEvidence(packed[lot], tuple(inclusion_proof(map(leaf_hash, packed), lot)))


def num_pages(claim: Claim) -> int:
    """Return how many pages the records of a claim have."""
    return -(-claim.lots // PAGE_LOTS)


def check_page(page: RecordsPage, claim: Claim) -> None:
    """Check that a page is of the size that its claim gives it; a claim's only page is checked against its roots too.

    Raises:
        EncodingError: it is not.
    """
    if len(page.lots) != min(PAGE_LOTS, claim.lots - page.first):
        raise EncodingError("a page of more or fewer lots than its claim has there")
    if not page.first and len(page.steps) != (claim.local_steps if claim.local_steps > 1 else 0):
        raise EncodingError("records of more or fewer steps than the claim has")
    if claim.lots <= PAGE_LOTS:
        records_of((page,), claim)


def records_of(found: Sequence[RecordsPage], claim: Claim) -> Records:
    """Return what all pages of a claim make together.

    Raises:
        EncodingError: they are not the claim's.
    """
    records = Records(tuple(record for page in found for record in page.lots), tuple(step for page in found for step in page.steps))
    lots = [pack(record) for record in records.lots]
    if max(map(len, lots), default=0) > MAX_LOT_BYTES or len(lots) != claim.lots or root(map(leaf_hash, lots)) != claim.lots_root:
        raise EncodingError("records of other lots than the claim has")
    steps = [pack(step) for step in records.steps]
    if (root(map(leaf_hash, steps)) if steps else b"") != claim.steps_root:
        raise EncodingError("records of other steps than the claim has")
    return records
