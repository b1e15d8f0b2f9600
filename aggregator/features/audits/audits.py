"""Audits at one operator, whoever writes: what peers bring, what waits for auditors, and what was brought for whoever fetches it."""

import asyncio
from pathlib import Path

from manta_swarm.aggregator.features.audits.brought import Brought
from manta_swarm.aggregator.features.audits.duties import DutiesDesk
from manta_swarm.aggregator.features.audits.facts import LogFacts
from manta_swarm.aggregator.features.audits.lending import Lending
from manta_swarm.aggregator.follow.snapshots import Snapshots
from manta_swarm.aggregator.intake.bodies import Bodies
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.status import AuditCounts
from manta_swarm.network.blobs import Shelf
from manta_swarm.network.budget import Faults
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.vectors import serve_vectors
from manta_swarm.runtime.clock import SYSTEM_CLOCK


class Audits:
    """One operator's, of a run whose contributions are audited."""

    def __init__(self, log: Log, snapshots: Snapshots, bodies: Bodies, directory: Path, num_weights: int, max_bytes: int) -> None:
        """Take up what was brought before, which blocks; ``serve`` answers from then on, ``keep`` has to run beside it.

        Args:
            log: the run's.
            snapshots: states that audits may begin with.
            bodies: of contributions that may be audited.
            directory: the run's.
            num_weights: N, values of a vector.
            max_bytes: of what peers bring, on the disk.

        Raises:
            StorageError: the disk refuses.
        """
        rules = log.ledger.manifest.audit_rules
        assert rules is not None
        self._log = log
        self._facts = LogFacts(log)
        self.faults = Faults(SYSTEM_CLOCK)
        self.brought = Brought(
            directory,
            num_weights=num_weights,
            max_bytes=max_bytes,
            kept_rounds=rules.pending_rounds,
            reputation=lambda: log.ledger.reputation,
            header=self._facts.header,
            faults=self.faults,
        )
        self.duties = DutiesDesk(self.brought, self._facts, self.faults)
        self._lending = Lending(log, snapshots, bodies, self.brought, num_weights)
        self._changed = asyncio.Event()

    async def serve(self, endpoint: Endpoint, shelf: Shelf) -> None:
        """Answer from now on; older states and bodies are handed out as what is on the ``shelf`` is."""
        shelf.lend_from(self._lending)
        await self.brought.serve(endpoint)
        await self.duties.serve(endpoint)
        await serve_vectors(endpoint, self.brought.folder)

    def committed(self) -> None:
        """The log has a new round, or is settled."""
        self._changed.set()

    async def keep(self) -> None:
        """Forget what is not needed any more after each round, until this is cancelled.

        Raises:
            StorageError: the disk refuses.
        """
        try:
            while True:
                self._changed.clear()
                self._facts.committed()
                self.duties.committed()
                await self.brought.committed()
                await self._changed.wait()
        finally:
            await self.brought.close()

    def status(self) -> AuditCounts:
        """Return what there is."""
        audits = self._log.ledger.reputation.audits.values()
        return AuditCounts(
            waiting=sum(not audit.outcomes or None in audit.outcomes for audit in audits),
            verdicts=sum(len(audit.verdicts) for audit in audits),
            brought_bytes=self.brought.num_bytes,
            without_room=self.brought.num_full,
            volunteers=self.duties.num_volunteers,
        )
