"""Audits at one operator, whoever writes: what peers bring, what waits for auditors, and what was brought for whoever fetches it."""

import asyncio
from collections.abc import Mapping, Sequence

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.audits.assignments import AssignmentsService
from manta_swarm.aggregator.features.audits.brought import Brought
from manta_swarm.aggregator.features.audits.facts import LogFacts
from manta_swarm.aggregator.features.audits.lending import Lending
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.status import AuditCounts
from manta_swarm.network.rates import Faults
from manta_swarm.network.vectors import serve_vectors


class Audits(Feature):
    """The audit feature of one operator, in a run whose contributions are audited."""

    def __init__(self, context: RunContext, max_bytes: int) -> None:
        """Take up what was brought before, which blocks; at most ``max_bytes`` of what peers bring are on the disk.

        Raises:
            StorageError: the disk refuses.
        """
        self._context = context
        self._facts = LogFacts(context.log)
        self.faults = Faults(context.clock)
        self.brought = Brought(
            context.directory, self._facts, num_weights=context.num_weights, max_bytes=max_bytes, faults=self.faults, clock=context.clock
        )
        self.assignments = AssignmentsService(self.brought, self._facts, self.faults)
        self._lending = Lending(context, self.brought)
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        """See ``Feature``; older states and bodies are handed out as what is on the blob store is."""
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
