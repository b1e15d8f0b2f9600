"""Shows the log's tree head to whoever asks, with what proves it, and hears which heads of it others hold: one that it has not stops it.

Nobody else can stop it: a head counts by the signature of the log's own key, over a round that is proven to be under it. Where a run has
several operators, one that is larger than the log shows only that it is behind the others: it takes no turn before it has what they have.
"""

import asyncio
import logging
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

from manta_swarm.aggregator.log.guard import RollbackGuard, keep_evidence
from manta_swarm.aggregator.log.log import Log
from manta_swarm.network.log_client import MAX_RECEIPT_BYTES
from manta_swarm.network.log_proofs import (
    MAX_ASK_CONSISTENCY_BYTES,
    MAX_ASK_ENTRIES_BYTES,
    MAX_ENTRIES_BYTES,
    PUBLISHED_S,
    AskConsistency,
    AskEntries,
    Consistency,
    HeldHead,
    ShownHead,
    publish_newest,
)
from manta_swarm.network.operator_line import lacking
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import MantaError, OtherHistory, StorageError
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.tiles import pack_bundle
from manta_swarm.runtime.tasks import wait_within

logger = logging.getLogger("manta.heads")
MAX_HELD_HEAD_BYTES = MAX_RECEIPT_BYTES + 16


class TreeHeadService:
    """Answers the calls "tree-head", and for its proof "entries" and "consistency"."""

    def __init__(
        self,
        endpoint: Endpoint,
        log: Log,
        signed: SignedManifest,
        directory: Path,
        guard: RollbackGuard,
    ) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            endpoint: this node's.
            log: the log.
            signed: the run's manifest.
            directory: where evidence is kept.
            guard: hears who holds which of this log's rounds.
        """
        self._endpoint = endpoint
        self._log = log
        self._signed = signed
        self._operators = Operators.of_signed(signed)
        self._directory = directory
        self._guard = guard
        self._has_heard = False  # of such a head: one proof is enough, and is kept once
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Answer from now on."""
        await self._endpoint.serve("tree-head", self._on_head)
        await self._endpoint.serve("entries", self._on_entries)
        await self._endpoint.serve("consistency", self._on_consistency)

    async def watch(self) -> None:
        """Wait until somebody shows a head that this log should have and has not.

        Raises:
            OtherHistory: that is so; the evidence is on the disk, and the log has stopped.
            StorageError: the evidence could not be kept; the log has stopped all the same.
        """
        await asyncio.shield(self.broken)

    async def _on_head(self, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(HeldHead, request, max_bytes=MAX_HELD_HEAD_BYTES)
        if not ask.receipt:
            self._guard.heard(caller, None)
            return pack(ShownHead(self._log.tree_head, ()))
        receipt = ask.receipt[0]
        held = open_round_receipt(receipt, self._operators)
        note, consistency = await asyncio.to_thread(self._log.shown_to, held.tree_head.size)
        if held.tree_head.size > self._log.head.size and not self._operators.is_alone:
            return pack(ShownHead(note, consistency))
        evidence = Histories.shown_after(self._signed, receipt, note, consistency)
        try:
            await asyncio.to_thread(self._log.hold_to, held.tree_head, evidence)
        except OtherHistory as error:
            await self._stop(evidence, error)
        else:
            self._guard.heard(caller, held)
        return pack(ShownHead(note, consistency))

    async def _on_entries(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskEntries, request, max_bytes=MAX_ASK_ENTRIES_BYTES)
        if ask.first + ask.count > self._log.head.size:
            raise lacking(self._log.ledger, "this log has not so many entries")
        found = await asyncio.to_thread(self._log.entries, ask.first, ask.count, MAX_ENTRIES_BYTES)
        ends = list(accumulate(2 + len(entry) for entry in found))
        return pack_bundle(found[: max(1, bisect_right(ends, MAX_ENTRIES_BYTES))])

    async def _on_consistency(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskConsistency, request, max_bytes=MAX_ASK_CONSISTENCY_BYTES)
        try:
            return pack(Consistency(self._log.consistency(ask.old, ask.new)))
        except ValueError as error:
            raise lacking(self._log.ledger, str(error)) from error

    async def _stop(self, evidence: Histories, found: OtherHistory) -> None:
        if self._has_heard:
            return
        self._has_heard = True
        error: MantaError = found
        try:
            await asyncio.to_thread(keep_evidence, self._directory, evidence)
        except StorageError as failed:
            error = failed
        self.broken.set_exception(error)


class TreeHeadPublisher:
    """Puts one log's newest head into the DHT, where whoever was shown another one finds it."""

    def __init__(self, endpoint: Endpoint, log: Log) -> None:
        """Prepare; ``keep`` does it."""
        self._endpoint = endpoint
        self._log = log
        self._news = asyncio.Event()

    def committed(self) -> None:
        """Publish soon: there is a newer head."""
        self._news.set()

    async def keep(self) -> None:
        """Publish the head, again and again, until this is cancelled."""
        least_s, most_s = PUBLISHED_S
        while True:
            self._news.clear()
            await self._publish()
            await asyncio.sleep(least_s)
            await wait_within(self._news, most_s - least_s)

    async def _publish(self) -> None:
        ledger = self._log.ledger
        index = ledger.index_at(ledger.round)
        if index is None:
            return  # nothing was committed
        try:
            if not await publish_newest(self._endpoint, ledger.run, await asyncio.to_thread(self._log.receipt, index)):
                logger.warning("the newest head is too large for the DHT round=%d", ledger.round)
        except MantaError as error:  # peers compare heads with each other as well
            logger.info("newest head not in the DHT reason=%s", error)
