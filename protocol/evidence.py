"""What an audit of a claim begins with: the records of its lots and steps, as their key handed them out, a page at a time.

A claim has their roots only. Who made it keeps the records and gives them to the log, and both hand them to whoever asks
(docs/protocol.md, section 27). Nothing here computes a lot again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.audits import MAX_LOT_BYTES, MAX_PROOF, LotEvidence
from protocol.encoding import pack
from protocol.errors import EncodingError, ProofError
from protocol.exchange import MAX_LOCAL_STEPS
from protocol.fields import check_digest, require
from protocol.merkle import inclusion_proof, leaf_hash, root, verify_inclusion
from protocol.records import MAX_CLAIM_BYTES, Claim, LotRecord, SignedClaim, StepRecord

ASK, GIVE = "records", "give-records"  # methods of peers and of the log · of the log
PAGE_LOTS = 1024
MAX_STEP_BYTES = 160  # of a packed StepRecord
MAX_ASK_BYTES = 64
MAX_PAGE_BYTES = PAGE_LOTS * MAX_LOT_BYTES + MAX_LOCAL_STEPS * MAX_STEP_BYTES + MAX_CLAIM_BYTES + 4096


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
    """Some of a claim's records, with the proof that they are under its roots: whatever else somebody hands out is refused."""

    claim: SignedClaim
    first: int
    lots: tuple[LotRecord, ...]
    steps: tuple[StepRecord, ...]  # all of them with the first page, none with the others
    proof: tuple[bytes, ...]  # from the root over the page's lots to that over all; of a claim's only page empty

    def __post_init__(self) -> None:
        require(self.first >= 0 and self.first % PAGE_LOTS == 0, "a page begins at a multiple of its size")
        require(1 <= len(self.lots) <= PAGE_LOTS, f"a page has 1 to {PAGE_LOTS} lots")
        require(len(self.proof) <= MAX_PROOF, f"a proof has at most {MAX_PROOF} hashes")
        require(len(self.steps) <= MAX_LOCAL_STEPS and not (self.first and self.steps), "steps stand on the first page")


@dataclass(frozen=True, slots=True)
class Records:
    """All records of a claim."""

    lots: tuple[LotRecord, ...]
    steps: tuple[StepRecord, ...]


def pages(claim: SignedClaim, records: Records) -> list[RecordsPage]:
    """Return the pages of a claim's records, in order.

    A page is as large as a whole subtree of the claim's tree over its lots, so the roots of pages are the leaves of that tree's top.
    """
    lots = [records.lots[first : first + PAGE_LOTS] for first in range(0, len(records.lots), PAGE_LOTS)]
    roots = [_root_of(each) for each in lots]
    return [
        RecordsPage(claim, number * PAGE_LOTS, each, () if number else records.steps, tuple(inclusion_proof(roots, number)))
        for number, each in enumerate(lots)
    ]


def evidence_of(records: Records, lot: int) -> LotEvidence:
    """Return the record of the lot at a place, and the proof that it stands there under its claim's root."""
    packed = [pack(record) for record in records.lots]
    return LotEvidence(packed[lot], tuple(inclusion_proof(map(leaf_hash, packed), lot)))


def num_pages(claim: Claim) -> int:
    """Return how many pages the records of a claim have."""
    return -(-claim.lots // PAGE_LOTS)


def check_page(page: RecordsPage, claim: Claim) -> None:
    """Check that a page is its claim's: of the size that the claim gives it, and under its roots.

    Raises:
        EncodingError: it is not.
    """
    if len(page.lots) != min(PAGE_LOTS, claim.lots - page.first):
        raise EncodingError("a page of more or fewer lots than its claim has there")
    try:
        verify_inclusion(_root_of(page.lots), page.first // PAGE_LOTS, num_pages(claim), page.proof, claim.lots_root)
    except ProofError as error:
        raise EncodingError(f"records of other lots than the claim has: {error}") from error
    if not page.first:
        if len(page.steps) != (len(claim.steps) if len(claim.steps) > 1 else 0):
            raise EncodingError("records of more or fewer steps than the claim has")
        if (_root_of(page.steps) if page.steps else b"") != claim.steps_root:
            raise EncodingError("records of other steps than the claim has")


def records_of(found: Sequence[RecordsPage], claim: Claim) -> Records:
    """Return what all pages of a claim make together.

    Raises:
        EncodingError: they are not the claim's.
    """
    if [page.first for page in found] != [number * PAGE_LOTS for number in range(num_pages(claim))]:
        raise EncodingError("other pages than the claim has")
    for page in found:
        check_page(page, claim)
    return Records(tuple(record for page in found for record in page.lots), found[0].steps)


def _root_of(records: Sequence[LotRecord] | Sequence[StepRecord]) -> bytes:
    """Return the root over records.

    Raises:
        EncodingError: one is too large.
    """
    packed = [pack(record) for record in records]
    if max(map(len, packed)) > MAX_LOT_BYTES:
        raise EncodingError("a record is too large")
    return root(map(leaf_hash, packed))
