"""Decides what comes next in the log, and keeps what is acknowledged: with one operator, when its own disk has it.

With several operators it takes a quorum of them (``aggregator.features.operators.leader``).
"""

from collections.abc import Sequence
from typing import Protocol

from manta_swarm.aggregator.intake.bodies import Bodies, StoredContribution
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.states.state_keeper import Next
from manta_swarm.aggregator.worker import WorkerThread
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.verdicts import Verdict


class Decider(Protocol):
    """Decides entries, and keeps what is acknowledged before that."""

    has_others: bool  # other operators have to agree

    async def write(self, entries: Sequence[bytes], after: Next | None, bodies: Sequence[Blob]) -> None:
        """Return once entries are in the log.

        Args:
            entries: of a round, or one that stands between rounds.
            after: what the round's contributions lead to; None: there is no round among the entries.
            bodies: of the round's contributions.

        Raises:
            StorageError: the disk failed.
        """

    async def store(self, contributions: Sequence[tuple[int, StoredContribution]]) -> None:
        """Return once contributions, each with the round that it counts in, are where they have to be before a promise is given.

        Raises:
            NotTaken: they will not get there.
            StorageError: the disk failed.
        """

    async def keep_verdicts(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        """Return once verdicts that are on this operator's disk are on those of others, too, as many as have to have them.

        Raises:
            Unreachable: too few others can be reached.
            StorageError: the disk failed.
        """

    async def waiting_verdicts(self) -> Sequence[Signed[Verdict]]:
        """Return the verdicts that wait at other operators.

        Raises:
            Unreachable: not enough of them say so.
        """

    def close(self) -> None:
        """End the decider's threads."""


class LoneDecider:
    """The decider of a run with a single operator: what is on its own disk is decided, and safe."""

    has_others = False

    def __init__(self, log: Log, bodies: Bodies) -> None:
        """Write to ``log``, and to ``bodies`` beside it: each has a thread of its own."""
        self._log = log
        self._bodies = bodies
        self._log_thread = WorkerThread("log")
        self._disk = WorkerThread("bodies")

    async def write(self, entries: Sequence[bytes], after: Next | None, bodies: Sequence[Blob]) -> None:
        """See ``Decider``."""
        await self._log_thread.do(self._log.commit, entries)

    async def store(self, contributions: Sequence[tuple[int, StoredContribution]]) -> None:
        """See ``Decider``."""
        await self._disk.do(self._bodies.append, contributions)

    async def keep_verdicts(self, verdicts: Sequence[Signed[Verdict]]) -> None:
        """Return at once: nobody else has to have the verdicts."""

    async def waiting_verdicts(self) -> Sequence[Signed[Verdict]]:
        """Return none: there are no other operators."""
        return ()

    def close(self) -> None:
        """Finish what is being written."""
        self._log_thread.close()
        self._disk.close()
