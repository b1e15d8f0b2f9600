"""Tells whoever asks where the run stands: the newest commit, as soon as there is one, and what is in its table."""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from aggregator.log.lacking import lacking
from aggregator.log.log import Log
from aggregator.rounds.intake import now_ms
from protocol.earnings import MAX_CLAIMS_ENTRIES, TableClaims
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, Unreachable
from protocol.exchange import grace_ms
from protocol.ledger import KEPT_TABLES, Ledger
from protocol.listed import Listed
from protocol.merkle import Tree, leaf_hash
from protocol.records import Header, SignedClaim, SignedContribution, open_entry
from protocol.signing import PublicKey
from protocol.table import RowProof, table_bytes
from swarm import waits
from swarm.messages import MAX_FAULTS, AfterRound, AskClaims, AskCredit, AskRow, AskTable, CreditWord, News, ProvenRow, ShownRow
from swarm.rpc import Endpoint
from swarm.tasks import within

MAX_WAITING = 2048  # callers who wait for a commit; further ones are told at once where the run stands
MAX_WAITING_OF_ONE = 2
_MAX_REQUEST_BYTES = 128


class _ProvenTable:
    """A round's receipt, its table and the tree over its rows, made once for all who ask."""

    def __init__(self, log: Log, index: int, listed: Sequence[Listed]) -> None:
        """Use the table whose round's entry is at ``index``."""
        self.receipt = log.receipt(index)
        self._log = log
        self.earned = log.ledger.shares(listed)
        self.rows = [one.row for one in listed]
        self._places = {key: place for place, one in enumerate(listed) for key in one.keys}
        entries = list(accumulate(len(one.keys) + 1 for one in listed))  # of each contribution and those before it, with their claims
        self._indices = [index - entries[-1] + count - 1 for count in entries]  # of the contributions' own
        self._start = index - entries[-1]  # of the first claim
        self._contributions: dict[int, SignedContribution] = {}
        self._tree = Tree()
        for row in self.rows:
            self._tree.append(leaf_hash(pack(row)))
        self.data: bytes | None = None  # as it travels, once somebody asked for it

    def shown(self, key: bytes) -> ShownRow | None:
        """Return the row that has a claim of ``key``; None: none has."""
        place = self._places.get(key)
        if place is None:
            return None
        if place not in self._contributions:
            contribution = open_entry(self._log.entry(self._indices[place]))
            assert isinstance(contribution, SignedContribution)
            self._contributions[place] = contribution
        proof = RowProof(self.rows[place], place, tuple(self._tree.inclusion_proof(place, len(self.rows))))
        return ShownRow(proof, self._contributions[place])

    def claims(self, first: int) -> bytes:
        """Return its contributions from a place on with their claims, as they travel: as many as an answer has room for.

        Raises:
            EncodingError: it has none there.
        """
        if not 0 <= first < len(self.rows):
            raise EncodingError("that table has no contribution there")
        start = self._indices[first - 1] + 1 if first else self._start
        end = bisect_right(self._indices, start + MAX_CLAIMS_ENTRIES - 1)
        headers, claims = [], list[SignedClaim]()
        for entry in self._log.entries(start, self._indices[end - 1] + 1 - start):
            record = open_entry(entry)
            if isinstance(record, SignedClaim):
                claims.append(record)
                continue
            assert isinstance(record, SignedContribution)
            headers.append(Header(record, tuple(claims)))
            claims = []
        unproven = tuple(row.unproven_claims for row in self.rows[first:end])
        return pack(TableClaims(tuple(headers), unproven if any(unproven) else ()))


def credit_word(ledger: Ledger, key: bytes, earned: tuple[int, ...]) -> CreditWord:
    """Return what a log says of a key's credit; ``earned``: by its work in the round that was asked for."""
    account, standing = ledger.standing.account(key), ledger.standing
    newest = max((round_ for round_, _ in account.pending), default=None)
    return CreditWord(
        round=ledger.round,
        final=account.final,
        pending=account.credit - account.final,
        until=0 if newest is None else newest + standing.accounts.rounds,
        void=sum(each.amount for each in account.void),
        faults=account.void[-MAX_FAULTS:],
        samples=standing.samples[key],
        proven=int(standing.is_proven(key)),
        earned=earned,
    )


class NewsDesk:
    """Answers "commit-after", "row", "table", "claims" and "credit"."""

    def __init__(
        self, endpoint: Endpoint, log: Log, left_ms: Callable[[int], int], weights: Callable[[int], Awaitable[Sequence[int]]]
    ) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            endpoint: where others call.
            log: the log.
            left_ms: says how long headers for the open round still have at a time of ``now_ms``.
            weights: gives what each row of a committed round weighs in its mean.
        """
        self._endpoint = endpoint
        self._log = log
        self._left_ms = left_ms
        self._weights = weights
        self._committed = asyncio.Event()
        self._waiting: Counter[PublicKey] = Counter()
        self._round = log.ledger.round  # the newest that is told: the log may have one more that the next round was not opened after yet
        self._tables: dict[int, _ProvenTable] = {}  # by round

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve("commit-after", self._on_commit_after)
        await self._endpoint.serve("row", self._on_row)
        await self._endpoint.serve("table", self._on_table)
        await self._endpoint.serve("claims", self._on_claims)
        await self._endpoint.serve("credit", self._on_credit)

    def committed(self) -> None:
        """A round was committed, and the next one is open: tell all who wait."""
        self._round = self._log.ledger.round
        self._tables = {round_: table for round_, table in self._tables.items() if round_ > self._round - KEPT_TABLES}
        self._committed.set()
        self._committed = asyncio.Event()

    async def _on_commit_after(self, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AfterRound, request, max_bytes=_MAX_REQUEST_BYTES)
        if ask.round > self._round:  # it is told no lie by silence: this log shows its head, and the caller its own ("tree-head")
            raise Unreachable(f"this log has {self._round} rounds, and not the one that comes after round {ask.round}")
        is_last = self._round >= self._log.ledger.manifest.num_rounds
        may_wait = self._waiting.total() < MAX_WAITING and self._waiting[caller] < MAX_WAITING_OF_ONE
        if ask.round >= self._round and not is_last and ask.patient and may_wait:
            await self._wait(caller)
        left_ms = self._left_ms(now_ms())
        if self._round <= ask.round:
            return pack(News((), (), left_ms))
        table = self._table_of(self._round)
        shown = table.shown(caller)
        return pack(News((table.receipt,), () if shown is None else (shown,), left_ms))

    async def _wait(self, caller: PublicKey) -> None:
        """Return at the next commit, or when it should have come long ago."""
        committed = self._committed
        patience_ms = self._left_ms(now_ms()) + grace_ms(self._log.ledger.open_ms)
        self._waiting[caller] += 1
        try:
            await within(committed, patience_ms / 1000 + waits.PATIENCE_S)
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]

    async def _on_row(self, _caller: PublicKey, request: bytes) -> bytes:
        """Answer with the row that has a key's claim, its proof and its contribution, or with nothing: the table has none."""
        ask = unpack(AskRow, request, max_bytes=_MAX_REQUEST_BYTES)
        table = self._table_of(ask.round)
        shown = table.shown(ask.key)
        return b"" if shown is None else pack(ProvenRow(table.receipt, shown))

    async def _on_table(self, _caller: PublicKey, request: bytes) -> bytes:
        round_ = unpack(AskTable, request, max_bytes=_MAX_REQUEST_BYTES).round
        table = self._table_of(round_)
        if table.data is None:
            table.data = table_bytes(table.rows, await self._weights(round_))
        return table.data

    async def _on_claims(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskClaims, request, max_bytes=_MAX_REQUEST_BYTES)
        return self._table_of(ask.round).claims(ask.first)

    async def _on_credit(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskCredit, request, max_bytes=_MAX_REQUEST_BYTES)
        ledger = self._log.ledger
        earned = (self._table_of(ask.round).earned.get(ask.key, 0),) if ledger.table_at(ask.round) and ask.round <= self._round else ()
        return pack(credit_word(ledger, ask.key, earned))

    def _table_of(self, round_: int) -> _ProvenTable:
        """Return the table of a committed round.

        Raises:
            Unreachable: it is not kept here.
        """
        if round_ > self._round:
            raise lacking(self._log.ledger, "that table is not kept here any more, or not made yet")
        listed, index = self._log.ledger.table_at(round_), self._log.ledger.index_at(round_)
        if listed is None or index is None:
            raise Unreachable("that table is not kept here any more, or not made yet")
        if round_ not in self._tables:
            self._tables[round_] = _ProvenTable(self._log, index, listed)
        return self._tables[round_]
