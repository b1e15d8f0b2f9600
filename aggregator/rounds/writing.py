"""All by which a log takes contributions and commits rounds, put together: what an operator has while it writes, and a fellow has not."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aggregator.audits.desk import Audits, attendant
from aggregator.audits.jobs import VECTORS, JobFolder
from aggregator.audits.records import FOLDER as RECORDS
from aggregator.audits.records import MAX_RECORDS_BYTES, RecordsDesk
from aggregator.audits.shown import Shown
from aggregator.audits.trust_file import TrustFile
from aggregator.rounds.admissions import AdmissionDesk
from aggregator.rounds.bodies import Kept
from aggregator.rounds.commits import Commits, Write
from aggregator.rounds.extras import Extras, KeepExtras
from aggregator.rounds.intake import Intake, Store
from aggregator.rounds.opening import OpenRun
from aggregator.rounds.revocations import RevocationDesk
from aggregator.rounds.timeline import Timeline
from aggregator.rounds.waiting import Waiting
from aggregator.rounds.weights import Weights
from protocol.admission import INVITATION
from protocol.closing import Closing
from protocol.footprint import kept_rounds
from protocol.signing import Identity, PublicKey
from swarm.blobs import Shelf
from swarm.records import RecordsFolder
from swarm.rpc import Endpoint, Handler
from swarm.tasks import together
from swarm.vectors import VectorsFolder, serve_vectors


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """How claims are audited, in a run whose are."""

    share: float  # of a core's time
    data_root: Path | None
    say: Callable[[str], None]
    vectors_bytes: int  # of vectors that peers showed, on the disk


class Writing:
    """The writer's desks, and the rounds that they serve."""

    def __init__(
        self,
        gate: Endpoint,
        endpoint: Endpoint,
        identity: Identity,
        directory: Path,
        opened: OpenRun,
        closing: Closing,
        address_of: Callable[[PublicKey], str],
        shelf: Shelf,
        weights: Weights,
        timeline: Timeline,
        on_commit: Callable[[], None],
        on_measure: Handler,
        waiting: Waiting,
        *,
        write: Write | None = None,
        store: Store | None = None,
        keep_extras: KeepExtras | None = None,
        audit: AuditSettings,
    ) -> None:
        """Prepare; ``open`` and ``work`` answer from then on.

        Args:
            gate: this node, which calls peers.
            endpoint: where peers call.
            identity: the operator's.
            directory: the run's.
            opened: the run.
            closing: without a round yet.
            address_of: see ``Intake``.
            shelf: what peers get by digest.
            weights: are told what each row of a round weighs.
            timeline: is told what happens when.
            on_commit: is called after each committed round.
            on_measure: takes what peers say of how good the model is.
            waiting: what waits for a round.
            write: see ``Commits``.
            store: see ``Intake``.
            keep_extras: see ``Extras``.
            audit: for a run that has audits.
        """
        self._log, self._bodies = opened.log, opened.bodies
        self._endpoint, self._on_measure = endpoint, on_measure
        self._directory, self._audit = directory, audit
        self.audits: Audits | None = None
        log = opened.log
        self.closing = closing
        self.commits = Commits(
            log,
            self.closing,
            lambda: self.intake,
            lambda: self.extras,
            opened.follower,
            opened.bodies,
            shelf,
            weights,
            on_commit,
            timeline,
            write,
        )
        changed, num_weights = self.commits.changed, opened.follower.num_weights
        self.intake = Intake(endpoint, identity, lambda: log.ledger, self.closing, opened.bodies, num_weights, changed, address_of, store)
        self.extras = Extras(endpoint, waiting, lambda: log.ledger, self.intake.faults, keep_extras)
        self.admissions = AdmissionDesk(endpoint, identity, lambda: log.ledger, self.commits.append)
        self.revocations = RevocationDesk(endpoint, identity, lambda: log.ledger, self.commits.append)
        trust = log.ledger.manifest.trust
        if trust.is_audited:
            rounds = kept_rounds(trust)
            folder = RecordsFolder(directory / RECORDS, kept_rounds=rounds, max_bytes=MAX_RECORDS_BYTES)
            self._records = RecordsDesk(endpoint, folder, lambda: log.ledger, self.closing, self.intake.faults)
            self._vectors = VectorsFolder(directory / VECTORS, kept_rounds=rounds, max_bytes=audit.vectors_bytes)
            shown = Shown(gate, log.ledger.manifest, folder, self._vectors, num_weights)
            told = TrustFile(directory)
            self.audits = Audits(identity, log, shown, JobFolder(directory), take=self.extras.hand_in, say=audit.say, told=told)

    async def open(self) -> None:
        """Take from now on what peers may bring at any time."""
        await self._endpoint.serve("measure", self._on_measure)
        if self.audits is not None:
            await self._records.start()
            await self.audits.serve(self._endpoint)
            await serve_vectors(self._endpoint, self._vectors)

    def committed(self) -> None:
        """A round was committed."""
        if self.audits is not None:
            self.audits.committed()

    def audited(self) -> dict[str, int]:
        """Return what was found out, where there are audits."""
        return {} if self.audits is None else asdict(self.audits.totals)

    async def work(self, kept: Sequence[tuple[int, Kept]] | None) -> None:
        """Take contributions and commit rounds to the run's end, then serve on, until this is cancelled; ``kept`` as in ``begin``.

        Raises:
            StorageError: the disk failed; what was acknowledged is safe.
        """
        await self.begin(kept)
        await together(self._commit(), self._keep_auditing())

    async def _commit(self) -> None:
        await self.commits.run()
        await asyncio.Event().wait()

    async def _keep_auditing(self) -> None:
        """Find out what is due, in a process of its own beside this one."""
        if self.audits is None:
            return
        root = () if self._audit.data_root is None else (str(self._audit.data_root.expanduser().absolute()),)
        process = attendant(self._directory, self._audit.share, root)
        await together(self.audits.keep(), process.keep())

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
        await self.extras.start()
        if self._log.ledger.manifest.admission.how == INVITATION:
            await self.admissions.start()
        if not self._log.ledger.manifest.admission.is_open:
            await self.revocations.start()

    async def close(self) -> None:
        """Take nothing more, and finish what is being written."""
        await self.admissions.close()
        await self.commits.close()
        await self.intake.close()
        await self.extras.close()
