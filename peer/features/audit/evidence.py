"""What audits may ask of this peer's work: kept on the disk while it may be asked for, brought to an operator, and handed to whoever asks.

Kept are the mean of each local step and this peer's own vector of it, the residual that it used, and with one local step the mean of what
was given; a gateway keeps what its light contributors learnt, too. All of a base is kept by the commit that it stands on: a key's work on
one base counts once, whoever hands it in, and whether all of its steps are in what counts. What is not drawn goes with its beacon.

A disk that refuses stops nothing: the person is told, and what is drawn of that work is not paid.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from manta_swarm.network import waits
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.vectors import VectorsFolder, serve_vectors
from manta_swarm.peer.features.audit.bringing import Bringing
from manta_swarm.peer.status import StatusBoard
from manta_swarm.protocol.errors import RemoteFault, StorageError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.footprint import kept_rounds, most_vectors_bytes
from manta_swarm.protocol.leases import MAX_PLACES
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, Contribution
from manta_swarm.protocol.verdicts import LEAST_PENDING, AuditRules
from manta_swarm.runtime.round_folder import NoRoom

Vector = NDArray[np.float32]  # (N,)

logger = logging.getLogger("manta.audits")


class Evidence:
    """One peer's, in one run whose contributions are audited."""

    def __init__(
        self,
        endpoint: Endpoint,
        line: OperatorLine,
        rules: AuditRules,
        folder: VectorsFolder,
        directory: Path,
        board: StatusBoard,
        *,
        newest: Callable[[], int],
        is_looked_for: Callable[[bytes], bool],
    ) -> None:
        """Take up what an earlier life of this peer left.

        Args:
            endpoint: brings it, and hands it to whoever asks.
            line: to the operators.
            rules: of the audits.
            folder: of the vectors of this peer's work.
            directory: of this peer's run.
            board: shows what is brought, and is told where the disk refuses.
            newest: returns the newest committed round.
            is_looked_for: returns whether a round that was not seen yet may have work on a base, by the digest of its commit.

        Raises:
            StorageError: the disk refuses.
        """
        self._endpoint = endpoint
        self._folder = folder
        self._board = board
        self._newest = newest
        self._is_looked_for = is_looked_for
        # A while longer than it may be brought: an auditor asks whoever handed it in before it says that it was withheld.
        kept = rules.kept_rounds + LEAST_PENDING
        self._bringing = Bringing(endpoint, line, folder, directory, round=newest, kept_rounds=kept, is_looked_for=is_looked_for)
        self._turn = asyncio.Lock()  # one at a time brings
        self._has_said = False  # that the disk refuses

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        line: OperatorLine,
        manifest: Manifest,
        num_weights: int,
        directory: Path,
        vectors: Path,
        board: StatusBoard,
        *,
        has_light: bool,
        newest: Callable[[], int],
        is_looked_for: Callable[[bytes], bool],
    ) -> "Evidence | None":
        """Return that of a peer with ``vectors`` of N = ``num_weights`` values in this folder; ``has_light``: light contributors' too.

        None: nothing is audited, so nothing is kept.
        """
        rules = manifest.audit_rules
        if rules is None:
            return None
        most = most_vectors_bytes(manifest.exchange, rules, num_weights) * (1 + MAX_PLACES * has_light)
        folder = VectorsFolder(vectors, kept_rounds=kept_rounds(rules) + LEAST_PENDING, max_bytes=most)
        return cls(endpoint, line, rules, folder, directory, board, newest=newest, is_looked_for=is_looked_for)

    async def serve(self) -> None:
        """Hand vectors to whoever asks, from now on."""
        await serve_vectors(self._endpoint, self._folder)

    # While a base is worked on.

    async def keep(self, round_: int, base: bytes, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors (N,) of work for this round on a base, the digest of its commit, by their own digests; on the disk on return."""

        def keep() -> None:
            for digest, values in vectors.items():
                self._folder.keep(round_, base, digest, values)

        try:
            await asyncio.to_thread(keep)
        except (NoRoom, StorageError) as error:
            logger.error("not kept for audits round=%d reason=%s", round_, error)
            if not self._has_said:
                self._has_said = True
                lost = "what is audited of such work is not paid, and its key has to be found good from the beginning"
                self._board.say(f"no room for what audits may ask of this peer's work ({error}): {lost}; it needs more of this disk")

    async def keep_claim(self, claim: Claim, learnt: Vector, residual: Vector | None) -> None:
        """Keep of a claim, of this peer's or of a light contributor's, the ``residual`` (N,) that was used, None: of zeros; and with one
        local step what was ``learnt`` (N,). Of several steps the own vectors are kept as they are taken.
        """
        used = {claim.residual: residual} if claim.residual and residual is not None else {}
        own = {claim.steps[0].vector: learnt} if len(claim.steps) == 1 else {}
        await self.keep(claim.round, claim.base, {**own, **used})

    async def keep_mean(self, contribution: Contribution, mean: Vector) -> None:
        """Keep the mean (N,) of what was given, where there is one local step: a contribution names no other."""
        if len(contribution.steps) == 1:
            await self.keep(contribution.round, contribution.base, {contribution.steps[0].mean: mean})

    # Afterwards.

    async def handed_in(self, round_: int, contribution: bytes, base: bytes) -> None:
        """By its ticket a round will have this contribution, which has a claim of this peer; known after a restart once this returns."""
        try:
            await self._bringing.listed(round_, contribution, base)
        except StorageError as error:
            logger.error("a contribution is not written down for audits reason=%s", error)

    def listed(self, round_: int, contribution: bytes, base: bytes) -> None:
        """A round has this contribution, which has a claim of this peer."""
        self._bringing.found(round_, contribution, base)

    def committed(self) -> None:
        """The log has a new round."""
        self._bringing.committed()

    async def run(self) -> None:
        """Bring what audits want, and remove what they cannot, until this is cancelled."""
        while True:
            await self._bring()
            await self._bringing.pause()

    async def finish(self, limit_s: float, num_rounds: int) -> bool:
        """Wait until it is known what audits want of all that was handed in, and bring it, for so long at most; return whether it is done.

        The last of the run's ``num_rounds`` is not audited: no commit comes after it.
        """

        def is_known() -> bool:
            return self._newest() >= min(self._bringing.asked_by, num_rounds)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                is_all = is_known() and await self._bring()
                while not is_all:
                    await asyncio.sleep(waits.LOG_AGAIN_S[0])
                    is_all = is_known() and await self._bring()
                return True
        return False

    @property
    def is_waiting(self) -> bool:
        """Whether it is not known yet of something that was handed in whether audits want it."""
        return self._newest() < self._bringing.asked_by

    async def _bring(self) -> bool:
        async with self._turn:
            is_done = await self._bringing.bring_all()
            await self._tidy()
        status, bringing = self._board.status, self._bringing
        if (status.audited, status.brought_bytes) != (bringing.audited, bringing.brought_bytes):
            self._board.update(audited=bringing.audited, brought_bytes=bringing.brought_bytes)
            self._board.write()
        return is_done

    async def _tidy(self) -> None:
        """Remove what no round has and none can have any more, and what is too old."""
        newest, bases = self._newest(), self._bringing.bases
        try:
            await asyncio.to_thread(self._folder.prune, newest)
            for base, round_ in self._folder.rounds.items():
                if base not in bases and newest > round_ + MAX_AGE and not self._is_looked_for(base):
                    await asyncio.to_thread(self._folder.keep_only, base, ())
        except (StorageError, RemoteFault) as error:
            logger.error("what audits cannot ask for is not removed reason=%s", error)
