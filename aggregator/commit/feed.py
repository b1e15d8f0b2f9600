"""Tells whoever asks where the run stands: the newest commit, as soon as there is one, its table, and what each contribution weighs in it.

Weights are known from the commit on, and computed again from the bodies after a start. The log has only the root over them; they are for
whoever computes one group of a mean again without the norms of whole bodies.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from manta_swarm.aggregator.intake.bodies import Bodies
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.states.replay import parsed_bodies
from manta_swarm.codec.mean import table_mean
from manta_swarm.network import timeouts
from manta_swarm.network.log_client import MAX_FAULTS, AfterRound, AskContributions, AskCredit, AskListing, AskRound, CreditWord, FeedAnswer
from manta_swarm.network.operator_line import lacking
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, StorageError, Unreachable
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.ledger import KEPT_TABLES, Ledger
from manta_swarm.protocol.listed import Listed, weighed_in
from manta_swarm.protocol.notes import parse_tree_head, split_note
from manta_swarm.protocol.records import Included, Listing, Round, Threshold, open_entry
from manta_swarm.protocol.reputation import paid_with
from manta_swarm.protocol.rewards import MAX_CLAIMS_BYTES, RoundContributions
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.table import Weighed, weighed_bytes, weights_root
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.tasks import wait_within

logger = logging.getLogger("manta.weights")

MAX_WAITING = 2048  # callers who wait for a commit; further ones are told at once where the run stands
MAX_WAITING_OF_ONE = 2
_MAX_REQUEST_BYTES = 128


class TableWeights:
    """Knows what contributions weigh in the mean, for the tables that a log keeps whole."""

    def __init__(self, log: Log, bodies: Bodies, num_weights: int) -> None:
        """Know none yet."""
        self._log = log
        self._bodies = bodies
        self._num_weights = num_weights
        self._known: dict[int, tuple[Weighed, ...]] = {}
        self._computing = asyncio.Lock()  # one table at a time, and each once

    def remember(self, round_: int, weighed: Sequence[Weighed]) -> None:
        """Remember the weights of a round that was committed."""
        self._known = {each: known for each, known in self._known.items() if each > round_ - KEPT_TABLES}
        self._known[round_] = tuple(weighed)

    async def of(self, round_: int) -> tuple[Weighed, ...]:
        """Return the weights of a round's table, in its order.

        Raises:
            Unreachable, AskAnother: that table, or a body of it, is not kept here.
        """
        async with self._computing:
            if round_ not in self._known:
                try:
                    self._known[round_] = await asyncio.to_thread(self._computed, self._log.ledger, round_)
                except StorageError as error:  # it stops nothing: no promise depends on it
                    logger.error("weights not computed round=%d reason=%s", round_, error)
                    raise lacking(self._log.ledger, "that table's weights cannot be computed here any more") from error
            return self._known[round_]

    def _computed(self, ledger: Ledger, round_: int) -> tuple[Weighed, ...]:
        listed = ledger.table_at(round_)
        if listed is None:
            raise Unreachable("that table is not kept here any more, or not made yet")
        codec = ledger.manifest.exchange.codec
        parsed = parsed_bodies(self._bodies, listed, codec, self._num_weights, round_)
        min_exponents = [ledger.min_exponent_at(one.round - 1) for one in listed]
        table, min_exponent = [one.weighing for one in listed], ledger.min_exponent_at(round_ - 1)
        found = table_mean(table, parsed, min_exponents, self._thresholds(ledger, round_ - 1), min_exponent, self._num_weights)
        weighed = weighed_in(listed, found.weights, found.clipped)
        if weights_root(weighed) != self._entry(ledger, round_).weights:
            raise StorageError(f"the weights of round {round_} are not those that the log says: the log, or this machine, is wrong")
        return weighed

    def _thresholds(self, ledger: Ledger, round_: int) -> tuple[Threshold, ...]:
        return self._entry(ledger, round_).thresholds if round_ else ()

    def _entry(self, ledger: Ledger, round_: int) -> Round:
        index = ledger.index_at(round_)
        assert index is not None
        entry = open_entry(self._log.entry(index))
        assert isinstance(entry, Round)
        return entry


class _Proven:
    """A round's receipt, and where its contributions stand under the same head. Entries are read, in a thread, when they are asked for."""

    def __init__(self, log: Log, index: int, listed: Sequence[Listed]) -> None:
        """Use the round whose entry is at ``index``."""
        self.receipt = log.receipt(index)
        self._size = parse_tree_head(split_note(self.receipt.tree_head)[0]).size
        self._log = log
        self.earned = log.ledger.shares(listed)
        self._places = {key: place for place, one in enumerate(listed) for key in one.keys}
        self._count = len(listed)
        self._first = index - len(listed)
        self.weights: bytes | None = None  # as they travel, once somebody asked for them

    async def contribution(self, key: bytes) -> Included | None:
        """Return the contribution that has a claim of ``key``; None: none has."""
        place = self._places.get(key)
        return None if place is None else await asyncio.to_thread(self._log.included, self._first + place, self._size)

    async def contributions(self, place: int, size: int) -> bytes:
        """Return its contributions from a place on as they travel, as many as an answer has room for; proven under a head of this size.

        Raises:
            EncodingError: it has none there, or that head is of before it.
            Unreachable, AskAnother: this log has not so many entries.
        """
        end = self._first + self._count
        if not 0 <= place < self._count or size <= end:
            raise EncodingError("that round has no contribution there, or is not under that head")
        if size > self._log.head.size:
            raise lacking(self._log.ledger, "this log has not so many entries")
        return await asyncio.to_thread(self._page, place, size)

    def _page(self, place: int, size: int) -> bytes:
        end = self._first + self._count
        entries = self._log.entries(self._first + place, self._count - place, MAX_CLAIMS_BYTES)
        lengths = list(accumulate(len(entry) + 8 for entry in entries))
        fitting = entries[: max(1, bisect_right(lengths, MAX_CLAIMS_BYTES))]
        return pack(RoundContributions(tuple(fitting), self._log.range_proof(self._first, end, size)))


def credit_word(ledger: Ledger, key: bytes, earned: tuple[int, ...]) -> CreditWord:
    """Return what a log says of a key's credit; ``earned``: by its work in the round that was asked for."""
    reputation = ledger.reputation
    standing = reputation.standing(key)
    newest = max((round_ for round_, _ in standing.pending), default=None)
    last = None if newest is None else paid_with(reputation.rules, ledger.manifest.num_rounds, newest)
    return CreditWord(
        round=ledger.round,
        paid=standing.paid,
        pending=standing.credit - standing.paid,
        until=last or 0,
        faults=standing.faults[-MAX_FAULTS:],
        good=reputation.good[key],
        proven=int(reputation.is_proven(key)),
        earned=earned,
    )


class OpenRounds(Protocol):
    """Knows how long the open round still is."""

    def left_ms(self, now: int) -> int:
        """Return for how many ms headers may still come at a time of the clock."""


class FeedService:
    """Answers the calls "commit-after", "listing", "weights", "contributions" and "credit"."""

    def __init__(self, endpoint: Endpoint, log: Log, rounds: OpenRounds, weights: TableWeights, clock: Clock = SYSTEM_CLOCK) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            endpoint: where others call.
            log: the log.
            rounds: knows the round that the writing operator has open.
            weights: knows what contributions of the newest rounds weigh.
            clock: by which rounds are open.
        """
        self._endpoint = endpoint
        self._log = log
        self._rounds = rounds
        self._weights = weights
        self._clock = clock
        self._committed = asyncio.Event()
        self._waiting: Counter[PublicKey] = Counter()
        self._round = log.ledger.round  # the newest that is told: the log may have one more that the next round was not opened after yet
        self._tables: dict[int, _Proven] = {}  # by round

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve("commit-after", self._on_commit_after)
        await self._endpoint.serve("listing", self._on_listing)
        await self._endpoint.serve("weights", self._on_weights)
        await self._endpoint.serve("contributions", self._on_contributions)
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
        if ask.round >= self._round and not is_last and ask.waits_as and may_wait:
            await self._wait(caller)
        left_ms = self._rounds.left_ms(round(self._clock.now_ms()))
        if self._round <= ask.round:
            return pack(FeedAnswer((), (), left_ms))
        table = self._table_of(self._round)
        found = await table.contribution(caller)
        return pack(FeedAnswer((table.receipt,), () if found is None else (found,), left_ms))

    async def _wait(self, caller: PublicKey) -> None:
        """Return at the next commit, or when it should have come long ago."""
        committed = self._committed
        timeout_ms = self._rounds.left_ms(round(self._clock.now_ms())) + grace_ms(self._log.ledger.open_ms)
        self._waiting[caller] += 1
        try:
            await wait_within(committed, timeout_ms / 1000 + timeouts.FEED_HELD_S)
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]

    async def _on_listing(self, _caller: PublicKey, request: bytes) -> bytes:
        """Answer with the listing of the contribution that has a key's claim, or with nothing: the round has none."""
        ask = unpack(AskListing, request, max_bytes=_MAX_REQUEST_BYTES)
        table = self._table_of(ask.round)
        found = await table.contribution(ask.key)
        return b"" if found is None else pack(Listing(table.receipt, found))

    async def _on_weights(self, _caller: PublicKey, request: bytes) -> bytes:
        round_ = unpack(AskRound, request, max_bytes=_MAX_REQUEST_BYTES).round
        table = self._table_of(round_)
        if table.weights is None:
            table.weights = weighed_bytes(await self._weights.of(round_))
        return table.weights

    async def _on_contributions(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskContributions, request, max_bytes=_MAX_REQUEST_BYTES)
        return await self._table_of(ask.round).contributions(ask.place, ask.size)

    async def _on_credit(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskCredit, request, max_bytes=_MAX_REQUEST_BYTES)
        ledger = self._log.ledger
        earned: tuple[int, ...] = ()
        if ask.round in ledger.reputation.pending:
            earned = (ledger.reputation.expected(ask.round).get(ask.key, 0),)
        elif ledger.table_at(ask.round) and ask.round <= self._round:
            earned = (self._table_of(ask.round).earned.get(ask.key, 0),)
        return pack(credit_word(ledger, ask.key, earned))

    def _table_of(self, round_: int) -> _Proven:
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
            self._tables[round_] = _Proven(self._log, index, listed)
        return self._tables[round_]
