"""The vectors of this peer's claims that audits may ask for: kept on the disk, and handed to whoever asks (docs/protocol.md, section 27).

While a base is worked on, what was averaged and learnt is kept, with the weights at the base. Once the beacon of a claim's table is known,
the weights before those steps are computed again that may be asked for. What may be asked for stays, and the means, this peer's own
vectors and its residual do. Of what an earlier life of this peer left without a beacon, the weights before all steps are computed again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from automl.training.schedule import Plan
from peer.rounds.replaying import write_weights
from peer.training.work import Vector
from protocol.audits import PATIENCE
from protocol.errors import RemoteFault, StorageError
from protocol.evidence import Records
from protocol.exchange import MAX_AGE, codec_named
from protocol.footprint import kept_rounds, most_vectors_bytes
from protocol.leases import MAX_PLACES
from protocol.manifest import Manifest
from protocol.receipts import ProvenRound
from protocol.records import SignedClaim
from protocol.vectors import vectors_asked
from swarm import waits
from swarm.records import RecordsFolder
from swarm.round_folders import NoRoom
from swarm.rpc import Busy, Endpoint
from swarm.tasks import within
from swarm.vectors import WORKING, VectorsFolder, serve_vectors

_ASKED_AFTER = 2  # rounds after a claim's table: its beacon is a round old

logger = logging.getLogger("manta.peer")


@dataclass
class _Open:
    """A claim whose beacon is not known."""

    round: int
    is_old: bool  # of an earlier life
    table: int | None = None  # the round whose table has it
    is_asked: bool = True  # something of it may be asked for
    mean: bytes = b""  # digest of the mean of what was given, where there is one local step
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # whatever may be asked for is there


class OwnVectors:
    """One peer's."""

    def __init__(
        self,
        endpoint: Endpoint,
        folder: VectorsFolder,
        records: RecordsFolder,
        manifest: Manifest,
        plan: Plan,
        num_weights: int,
        *,
        commit: Callable[[int], ProvenRound | None],
        newest: Callable[[], int],
        is_looked_for: Callable[[bytes], bool],
    ) -> None:
        """Keep them in ``folder``; ``serve`` takes up what is there.

        Args:
            endpoint: hands them out.
            folder: of this peer's alone.
            records: of the same claims.
            manifest: the run's.
            plan: its plan.
            num_weights: N.
            commit: returns one of the newest commits, by its round.
            newest: returns the newest one's round.
            is_looked_for: returns whether a table that was not seen yet may have a claim, by its digest.
        """
        self._endpoint = endpoint
        self._folder = folder
        self._records = records
        self._manifest = manifest
        self._plan = plan
        self._num_weights = num_weights
        self._commit = commit
        self._newest = newest
        self._is_looked_for = is_looked_for
        self._round = 0  # of the work under way
        self._open: dict[bytes, _Open] = {}
        self._asked_by = 0  # with this round audits have had time to ask for what the newest tables have
        self._changed = asyncio.Event()

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        records: RecordsFolder,
        manifest: Manifest,
        plan: Plan,
        num_weights: int,
        directory: Path,
        *,
        has_light: bool,
        commit: Callable[[int], ProvenRound | None],
        newest: Callable[[], int],
        is_looked_for: Callable[[bytes], bool],
    ) -> "OwnVectors":
        """Return those in ``directory``, of an audited run; ``has_light``: this peer keeps those of light contributors too."""
        most = most_vectors_bytes(manifest.exchange, manifest.trust, num_weights) * (1 + MAX_PLACES * has_light)
        folder = VectorsFolder(directory, kept_rounds=kept_rounds(manifest.trust), max_bytes=most)
        return cls(endpoint, folder, records, manifest, plan, num_weights, commit=commit, newest=newest, is_looked_for=is_looked_for)

    async def serve(self) -> None:
        """Hand vectors to whoever asks, from now on.

        Raises:
            StorageError: the disk refuses.
        """
        for claim, round_ in (await asyncio.to_thread(self._left_open)).items():
            self._open[claim] = _Open(round_, is_old=True)
        await serve_vectors(self._endpoint, self._folder, missing=self._until_ready)

    # While a base is worked on.

    async def begin(self, round_: int) -> None:
        """Work for this round begins; what was kept of work that came to nothing goes.

        Raises:
            StorageError: the disk refuses.
        """
        self._round = round_
        await asyncio.to_thread(self._folder.keep_only, WORKING, ())

    async def keep(self, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors (N,) of the work under way, by their digests; they are on the disk when this returns.

        Raises:
            StorageError: the disk refuses, or there is no room.
        """
        await self._keep(self._round, WORKING, vectors)

    async def sealed(self, claim: SignedClaim, learnt: Vector, residual: Vector | None, *, is_alone: bool) -> None:
        """The work under way has its claim: keep what was ``learnt`` (N,), and the ``residual`` (N,) that was used, with the rest.

        Nothing of them can be asked for of a peer that ``is_alone``, with one step and a dense body.

        Raises:
            StorageError: the disk refuses, or there is no room.
        """
        opened, exchange = claim.open(), self._manifest.exchange
        used = {} if residual is None or not opened.residual else {opened.residual: residual}
        await self.keep({opened.vector: learnt, **used})
        await asyncio.to_thread(self._folder.name_working, claim.digest)
        is_asked = not is_alone or exchange.local_steps > 1 or codec_named(exchange.codec).is_sparse
        self._open[claim.digest] = _Open(opened.round, is_old=False, is_asked=is_asked)

    async def keep_mean(self, claim: SignedClaim, digest: bytes, mean: Vector) -> None:
        """Keep the mean (N,) of what was given, of this digest, with what is kept of this peer's claim in it.

        Raises:
            StorageError: the disk refuses, or there is no room.
        """
        if (found := self._open.get(claim.digest)) is not None:
            found.mean = digest
            await self._keep(found.round, claim.digest, {digest: mean})

    async def keep_light(self, claim: SignedClaim, learnt: Vector, residual: Vector | None) -> None:
        """Keep what a light contributor learnt (N,), and the residual (N,) that was used.

        Raises:
            StorageError: the disk refuses, or there is no room.
        """
        opened = claim.open()
        used = {} if residual is None or not opened.residual else {opened.residual: residual}
        await self._keep(opened.round, claim.digest, {opened.vector: learnt, **used})

    # Afterwards.

    def listed(self, table: int, claim: bytes) -> None:
        """The table of a round has this claim."""
        if (found := self._open.get(claim)) is not None:
            found.table = table
            if found.is_asked:
                self._asked_by = max(self._asked_by, table + _ASKED_AFTER)
        self._changed.set()

    @property
    def asked_by(self) -> int:
        """The round with whose commit audits have had time to ask for all that was handed in; 0: there is nothing that they could want."""
        coming = [one.round + _ASKED_AFTER for one in self._open.values() if one.is_asked and not one.is_old and one.table is None]
        return max([self._asked_by, *coming])

    @property
    def kept_until(self) -> int:
        """The round up to whose commit they may be asked for."""
        return self.asked_by - _ASKED_AFTER + self._manifest.trust.kept_rounds - 1

    def committed(self) -> None:
        """The log has a new round."""
        self._changed.set()

    async def tend(self) -> None:
        """Make ready what may be asked for, and remove what may not, until this is cancelled.

        Raises:
            StorageError: the disk refuses, or there is no room.
        """
        for claim, found in list(self._open.items()):
            if found.is_old:
                await self._ready(claim, found, None)
        while True:
            self._changed.clear()
            newest = self._newest()
            await asyncio.to_thread(self._folder.prune, newest)
            for claim, found in list(self._open.items()):
                await self._tend(claim, found, newest)
            await self._changed.wait()

    async def _tend(self, claim: bytes, found: _Open, newest: int) -> None:
        if found.table is not None and newest > found.table:
            after = self._commit(found.table + 1)
            await self._ready(claim, found, None if after is None else after.commit)
            del self._open[claim]
        elif newest > found.round + MAX_AGE + PATIENCE and not self._is_looked_for(claim):  # it is in no table, and will be in none
            del self._open[claim]
            if not found.is_old:
                await asyncio.to_thread(self._folder.keep_only, claim, ())

    async def _ready(self, claim: bytes, found: _Open, beacon: bytes | None) -> None:
        """Make ready what may be asked for with this beacon, or with any, and keep nothing else."""
        try:
            await asyncio.to_thread(self._make_ready, claim, beacon, found.mean)
        except NoRoom as error:
            raise _no_room(error) from error
        found.ready.set()

    def _make_ready(self, claim: bytes, beacon: bytes | None, mean: bytes) -> None:
        kept = self._kept(claim)
        if kept is None:
            logger.warning("the records of a claim are gone: its vectors stay as they are")
            return
        signed, records = kept
        opened, steps = signed.open(), records.steps
        if beacon is None:
            of_steps = (digest for step in steps for digest in (step.mean, step.vector, *((step.state,) if step.step else ())))
            asked = tuple(dict.fromkeys((*of_steps, opened.vector, *((opened.residual,) if opened.residual else ()))))
        else:
            asked = vectors_asked(self._manifest.trust, beacon, claim, opened, records)
        wanted = [step.step for step in steps if step.step and step.state in asked]
        write_weights(self._folder, claim, opened.round, steps, wanted, self._plan, self._num_weights)
        brought = (*(step.mean for step in steps), *(step.vector for step in opened.steps), mean)
        self._folder.keep_only(claim, tuple(digest for digest in (*asked, *brought) if digest))

    def _kept(self, claim: bytes) -> tuple[SignedClaim, Records] | None:
        page = self._records.find(claim, 0)
        records = None if page is None else self._records.records(page.claim)
        return None if page is None or records is None else (page.claim, records)

    def _left_open(self) -> dict[bytes, int]:
        """Return the rounds of the claims that have the weights at their base still; nothing is left of work without a claim."""
        self._folder.keep_only(WORKING, ())
        found = {}
        for claim, round_ in self._folder.claims.items():
            page = self._records.find(claim, 0)
            if page is not None and page.steps and self._folder.has(claim, page.steps[0].state):
                found[claim] = round_
        return found

    async def _until_ready(self, claim: bytes) -> None:
        """Wait for what may be asked for of a claim; of one that has no beacon yet, not for long.

        Raises:
            Busy: it is not there yet.
        """
        found = self._open.get(claim)
        if found is None or found.ready.is_set():
            return
        await within(found.ready, waits.VECTORS_READY_S)
        if not found.ready.is_set():
            raise Busy("not all vectors of this claim are computed yet")

    async def _keep(self, round_: int, claim: bytes, vectors: Mapping[bytes, Vector]) -> None:
        def keep() -> None:
            for digest, values in vectors.items():
                self._folder.keep(round_, claim, digest, values)

        try:
            await asyncio.to_thread(keep)
        except NoRoom as error:
            raise _no_room(error) from error


def _no_room(error: RemoteFault) -> StorageError:
    return StorageError(f"no room for the vectors of one round's work ({error}): the peer needs more of this disk")
