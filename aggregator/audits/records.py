"""Takes the records of claims from those who made them, as long as the log has the claim in hand or lists it, and hands them out again.

Whoever gave its records here may leave: an audit then needs nothing of it any more.
"""

import asyncio
from collections.abc import Callable

from aggregator.rounds.refusals import NotTheirs, is_too_much, noted
from protocol.closing import Closing, NotTaken
from protocol.encoding import unpack
from protocol.errors import EncodingError, LedgerError
from protocol.evidence import GIVE, MAX_PAGE_BYTES, RecordsPage, check_page
from protocol.ledger import KEPT_TABLES, Ledger
from protocol.signing import PublicKey
from swarm.budget import Faults
from swarm.records import RecordsFolder, serve_records
from swarm.round_folders import NoRoom
from swarm.rpc import Endpoint

FOLDER = "records"
MAX_RECORDS_BYTES = 1 << 30  # on the disk; of older rounds fewer are kept where newer ones need the room


class RecordsDesk:
    """Answers "give-records" and "records"."""

    def __init__(self, endpoint: Endpoint, folder: RecordsFolder, ledger: Callable[[], Ledger], closing: Closing, faults: Faults) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            endpoint: the log's.
            folder: keeps what was given.
            ledger: returns the log's ledger as it is published.
            closing: knows which claims are in hand.
            faults: counts what is no record of the caller's.
        """
        self._endpoint = endpoint
        self._folder = folder
        self._ledger = ledger
        self._closing = closing
        self._faults = faults

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve(GIVE, self._on_give)
        await serve_records(self._endpoint, self._folder)

    async def _on_give(self, caller: PublicKey, request: bytes) -> bytes:
        if is_too_much(self._faults, caller):
            raise NoRoom("too much that was wrong came from there lately")
        with noted(self._faults, caller):
            page = self._checked(caller, request)
        await asyncio.to_thread(self._folder.keep, page)
        return b""

    def _checked(self, caller: PublicKey, request: bytes) -> RecordsPage:
        """Return a page that is its claim's.

        Raises:
            RemoteFault: it is not, or nobody asked for it.
        """
        page, ledger = unpack(RecordsPage, request, max_bytes=MAX_PAGE_BYTES), self._ledger()
        claim = ledger.verified.claim(page.claim)
        if caller not in (claim.key, claim.founder):
            raise NotTheirs("records of another's claim")
        exchange = ledger.manifest.exchange
        if claim.run != ledger.run or claim.lots * ledger.manifest.lot_samples > exchange.max_claim_samples:
            raise LedgerError("records of a claim that this log does not take")
        if not self._is_in_hand(page.claim.digest):
            raise NotTaken("no contribution with that claim is in hand, or in one of the newest tables")  # nobody's fault: it may be late
        check_page(page, claim)
        if page.lots[-1].samples != ledger.manifest.lot_samples:
            raise EncodingError("records of lots of another size than this run's")
        return page

    def _is_in_hand(self, claim: bytes) -> bool:
        ledger = self._ledger()
        tables = (ledger.table_at(round_) or () for round_ in range(max(1, ledger.round - KEPT_TABLES + 1), ledger.round + 1))
        return self._closing.has_claim(claim) or any(claim in listed.claims for table in tables for listed in table)
