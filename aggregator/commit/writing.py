"""All by which a log takes contributions and commits rounds, put together: what an operator has while it writes, and a fellow has not."""

import asyncio
from collections.abc import Callable, Sequence

from manta_swarm.aggregator.commit.commits import Commits, Others, Write
from manta_swarm.aggregator.commit.settling import Settling
from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.commit.weights import Weights
from manta_swarm.aggregator.follow.opening import OpenRun
from manta_swarm.aggregator.intake.admissions import AdmissionDesk
from manta_swarm.aggregator.intake.bodies import Kept
from manta_swarm.aggregator.intake.intake import Intake, Store
from manta_swarm.aggregator.intake.revocations import RevocationDesk
from manta_swarm.aggregator.intake.verdicts import KeepVerdicts, Verdicts
from manta_swarm.aggregator.intake.waiting import Waiting
from manta_swarm.network.blobs import Shelf
from manta_swarm.network.rpc import Endpoint, Handler
from manta_swarm.protocol.admission import INVITATION
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.signing import Identity, PublicKey


class Writing:
    """The writer's desks, and the rounds that they serve."""

    def __init__(
        self,
        endpoint: Endpoint,
        identity: Identity,
        opened: OpenRun,
        closing: Closing,
        address_of: Callable[[PublicKey], str],
        shelf: Shelf,
        weights: Weights,
        timeline: Timeline,
        on_commit: Callable[[], None],
        on_measure: Handler,
        waiting: Waiting,
        settling: Settling,
        *,
        write: Write | None = None,
        store: Store | None = None,
        keep_verdicts: KeepVerdicts | None = None,
        others: Others | None = None,
    ) -> None:
        """Prepare; ``open`` and ``work`` answer from then on.

        Args:
            endpoint: where peers call.
            identity: the operator's.
            opened: the run.
            closing: without a round yet.
            address_of: see ``Intake``.
            shelf: what peers get by digest.
            weights: are told what each row of a round weighs.
            timeline: is told what happens when.
            on_commit: is called after each committed round.
            on_measure: takes what peers say of how good the model is.
            waiting: what waits for a round.
            settling: says when the run may be settled.
            write: see ``Commits``.
            store: see ``Intake``.
            keep_verdicts: see ``Verdicts``.
            others: see ``Commits``.
        """
        self._log, self._bodies = opened.log, opened.bodies
        self._endpoint, self._on_measure = endpoint, on_measure
        log = opened.log
        self.closing = closing
        self.commits = Commits(
            log,
            self.closing,
            lambda: self.intake,
            lambda: self.verdicts,
            opened.follower,
            opened.bodies,
            shelf,
            weights,
            on_commit,
            timeline,
            settling,
            write,
            others,
        )
        changed, num_weights = self.commits.changed, opened.follower.num_weights
        self.intake = Intake(endpoint, identity, lambda: log.ledger, self.closing, opened.bodies, num_weights, changed, address_of, store)
        self.verdicts = Verdicts(endpoint, waiting, lambda: log.ledger, self.intake.faults, changed, keep_verdicts)
        self.admissions = AdmissionDesk(endpoint, identity, lambda: log.ledger, self.commits.append)
        self.revocations = RevocationDesk(endpoint, identity, lambda: log.ledger, self.commits.append)

    async def open(self) -> None:
        """Take from now on what peers may bring at any time."""
        await self._endpoint.serve("measure", self._on_measure)

    async def work(self, kept: Sequence[tuple[int, Kept]] | None) -> None:
        """Take contributions and commit rounds to the run's end, settle it, and serve on until this is cancelled; ``kept`` as in ``begin``.

        Raises:
            StorageError: the disk failed; what was acknowledged is safe.
        """
        await self.begin(kept)
        await self.commits.run()
        await asyncio.Event().wait()

    async def begin(self, kept: Sequence[tuple[int, Kept]] | None = None) -> None:
        """Open the next round, with what has a ticket, and answer from now on.

        Args:
            kept: contributions that operators kept, each with its round; None: those on the disk, from before the program's start.

        Raises:
            StorageError: they cannot be read.
        """
        self.commits.begin()
        for round_ in (self._log.ledger.round + 1, self._log.ledger.round + 2):
            if kept is None:
                self.intake.restore(self._bodies.read(round_, mend=True), round_)
            else:
                self.intake.restore_valid([one for of_round, one in kept if of_round == round_], round_)
        await self.intake.start()
        await self.verdicts.start()
        if self._log.ledger.manifest.admission.how == INVITATION:
            await self.admissions.start()
        if not self._log.ledger.manifest.admission.is_open:
            await self.revocations.start()

    async def close(self) -> None:
        """Take nothing more, and finish what is being written."""
        await self.admissions.close()
        await self.commits.close()
        await self.intake.close()
        await self.verdicts.close()
