"""Audits at one operator, whoever writes: what peers bring, what waits for auditors, and the states and bodies that audits begin with.

What is handed out of the newest rounds lies in memory (``network.blobs``). States and bodies of older rounds come from the disk: what an
auditor asks for may be as old as a contribution that is not paid yet.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.audits.assignments import AssignmentsService
from manta_swarm.aggregator.features.audits.brought import BroughtVectors
from manta_swarm.aggregator.features.audits.facts import LogFacts
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.status import AuditCounts
from manta_swarm.automl.training.update import state_piece_sizes, state_pieces
from manta_swarm.codec.coding import body_groups, group_sizes
from manta_swarm.network.blobs import Blob, LazyBlob
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.vectors import serve_vectors
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.exchange import MAX_AGE


@dataclass(frozen=True, slots=True)
class _Kept:
    """What may be on the disk; implements ``network.blobs.LazyBlob``."""

    lending: "Lending"
    root: bytes
    num_pieces: int
    round: int  # of the body; of the state that was committed
    contribution: bytes  # of the body; empty: it is a state

    def hashes(self) -> tuple[bytes, ...] | None:
        """Return the hashes of all pieces; None: it is not what it should be."""
        blob = self.lending.read(self)
        return None if blob is None else blob.hashes

    def piece(self, place: int) -> bytes | None:
        """Return a piece; None: it is not what it should be."""
        blob = self.lending.read(self)
        return None if blob is None or place >= len(blob.pieces) else bytes(blob.pieces[place])


class Lending:
    """Lends states and bodies of one operator to auditors; implements ``network.blobs.Lender``."""

    def __init__(self, context: RunContext, brought: BroughtVectors) -> None:
        """Read states, and bodies of contributions that ``brought`` opened lately."""
        self._context = context
        self._brought = brought
        self._reading = threading.Lock()  # guards the next one
        self._last: tuple[bytes, Blob] | None = None  # what was read last: its pieces are asked for one by one

    def find(self, root: bytes) -> LazyBlob | None:
        """Return what may be on the disk under a root; None: nothing of this run is asked for."""
        ledger = self._context.ledger
        manifest = ledger.manifest
        for audited in self._brought.opened_lately:
            if audited.contribution.body == root:
                count = len(group_sizes(manifest.exchange.codec, self._context.num_weights))
                round_, digest = audited.audit.round, audited.audit.work.contribution
                return _Kept(self, root, count, round_, digest)
        oldest = min((audit.round for audit in ledger.reputation.audits.values()), default=ledger.round)
        for base in range(ledger.round, max(0, oldest - 1 - MAX_AGE) - 1, -1):
            if ledger.state_at(base) == root:
                sizes = state_piece_sizes(self._context.num_weights, manifest.optimizer, manifest.exchange.local_steps)
                return _Kept(self, root, len(sizes), base, b"")
        return None

    def read(self, kept: _Kept) -> Blob | None:
        """Return what is kept; None: it is gone, or not what it should be."""
        with self._reading:
            if self._last is None or self._last[0] != kept.root:
                try:
                    blob = (
                        self._body(kept)
                        if kept.contribution
                        else Blob.of(state_pieces(self._context.state_keeper.snapshots.load(kept.round, kept.root)))
                    )
                except StorageError:  # it is gone: the auditor is told that it is not here
                    blob = None
                if blob is None or blob.root != kept.root:
                    return None
                self._last = kept.root, blob
            return self._last[1]

    def _body(self, kept: _Kept) -> Blob | None:
        codec = self._context.manifest.exchange.codec
        for one in self._context.bodies.read(kept.round):
            if one.header.contribution.digest == kept.contribution:
                return Blob.of(body_groups(codec, one.body, self._context.num_weights))
        return None


class Audits(Feature):
    """The audit feature of one operator, in a run whose contributions are audited."""

    def __init__(self, context: RunContext, max_bytes: int) -> None:
        """Take up what was brought before, which blocks; at most ``max_bytes`` of what peers bring are on the disk.

        Raises:
            StorageError: the disk refuses.
        """
        self._context = context
        self._facts = LogFacts(context.log)
        self.faults = CallerFaults(context.clock)
        self.brought = BroughtVectors(
            context.directory, self._facts, num_weights=context.num_weights, max_bytes=max_bytes, faults=self.faults, clock=context.clock
        )
        self.assignments = AssignmentsService(self.brought, self._facts, self.faults)
        self._lending = Lending(context, self.brought)
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        """See ``Feature``; older states and bodies are handed out as those in the blob store are."""
        endpoint = self._context.endpoint
        self._context.blob_store.lend_from(self._lending)
        await self.brought.serve(endpoint)
        await self.assignments.serve(endpoint)
        await serve_vectors(endpoint, self.brought.folder)

    def on_committed(self, *, is_leader: bool) -> None:
        """See ``Feature``."""
        self._changed.set()

    async def run(self, addresses: Sequence[str]) -> None:
        """Forget what is not needed any more after each round; see ``Feature``."""
        try:
            while True:
                self._changed.clear()
                self._facts.committed()
                self.assignments.committed()
                await self.brought.committed()
                await self._changed.wait()
        finally:
            await self.brought.close()

    def status(self) -> Mapping[str, object]:
        """Return what there is."""
        audits = self._context.ledger.reputation.audits.values()
        counts = AuditCounts(
            waiting=sum(not audit.outcomes or None in audit.outcomes for audit in audits),
            verdicts=sum(len(audit.verdicts) for audit in audits),
            brought_bytes=self.brought.num_bytes,
            without_room=self.brought.num_full,
            volunteers=self.assignments.num_volunteers,
        )
        return {"audits": counts}
