"""The vectors that audits may ask for of this peer's work: kept on the disk meanwhile, brought to an operator, and handed to whoever asks.

Kept are the mean of each local step and this peer's own vector of it, the residual that it used, and with one local step the mean of what
was given; a gateway keeps what its light contributors learnt, too. The vectors are kept under the commit that the work stands on, for a
key's work on one base counts once, whoever hands it in, and whether all of its steps are in that or not. Those that turn out not to be
drawn are removed once the beacon is known.

A disk that refuses stops nothing: the person is told, and what is drawn of that work is not paid.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from manta_swarm.network import timeouts
from manta_swarm.network.vectors import VectorsFolder, serve_vectors
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.audit.bringing import Bringing
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.store import VECTORS
from manta_swarm.peer.submit.promises import ClaimListed
from manta_swarm.protocol.errors import RemoteFault, StorageError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.footprint import most_vectors_bytes, vectors_rounds
from manta_swarm.protocol.leases import MAX_PLACES
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.verdicts import LEAST_PENDING, AuditRules
from manta_swarm.runtime.round_folder import NoRoom

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session

_ASKED_ROUNDS = 3  # until a peer that leaves knows what audits want: what is left of the present one, the next one, and their closing
Vector = NDArray[np.float32]  # (N,)

logger = logging.getLogger("manta.audits")


class Evidence(Feature):
    """Keeps what audits may ask of this peer's contributions, in a run whose contributions are audited."""

    stays = True

    def __init__(self, context: RunContext, progress: Progress, rules: AuditRules, *, has_light: bool = False) -> None:
        """Take up what an earlier life of this peer left.

        Args:
            context: of the run.
            progress: says what the newest round is, and what contributions are still looked for.
            rules: of the audits.
            has_light: light contributors work with this peer: what they learnt is kept, too.

        Raises:
            StorageError: the disk refuses.
        """
        manifest, directory = context.manifest, context.store.run_path(context.run)
        most = most_vectors_bytes(manifest.exchange, rules, context.num_weights) * (1 + MAX_PLACES * has_light)
        self._folder = VectorsFolder(directory / VECTORS, kept_rounds=vectors_rounds(rules) + LEAST_PENDING, max_bytes=most)
        self._context = context
        self._progress = progress
        self._live_status = context.live_status
        # A while longer than it may be brought: an auditor asks whoever handed it in before it says that it was withheld.
        kept = rules.kept_rounds + LEAST_PENDING
        self._bringing = Bringing(
            context.node,
            context.log.line,
            self._folder,
            directory,
            progress,
            kept_rounds=kept,
        )
        self._turn = asyncio.Lock()  # one at a time brings
        self._has_said = False  # that the disk refuses

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Hand vectors to whoever asks, from now on."""
        await serve_vectors(self._context.node, self._folder)
        yield

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
                self._live_status.say(f"no room for what audits may ask of this peer's work ({error}): {lost}; it needs more of this disk")

    # Afterwards.

    async def on_handed_in(self, round_: int, contribution: bytes, base: bytes) -> None:
        """Write down that by its inclusion promise a round will have this contribution, with a claim of this peer; durable on return."""
        try:
            await self._bringing.listed(round_, contribution, base)
        except StorageError as error:
            logger.error("a contribution is not written down for audits reason=%s", error)

    def on_listed(self, listed: ClaimListed) -> None:
        """A round has a contribution with a claim of this peer."""
        self._bringing.found(listed.round, listed.contribution, listed.base)

    def on_commit(self, entry: Round) -> None:
        """The log has a new round."""
        self._bringing.committed()

    async def run(self) -> None:
        """Bring what audits want, and remove what they cannot, until this is cancelled."""
        while True:
            await self._bring()
            await self._bringing.pause()

    async def settle(self) -> None:
        """Stay until audits could ask for what was handed in, and bring it, within a bounded time."""
        least_s, most_s = timeouts.BROUGHT_S
        limit_s = min(most_s, least_s + _ASKED_ROUNDS * self._progress.open_ms(self._context.manifest) / 1000)
        if self._progress.leaving.is_set() and self._is_waiting:
            words = "it stays until audits could ask for what that rests on"
            self._live_status.say(f"handed in; {words}, {limit_s:.0f} s at most (Ctrl-C: leave now)")
        if not await self._bring_last(limit_s):
            self._live_status.say(
                "audits may still ask for what it handed in last: if they do, that is paid only if this peer is here again soon"
            )

    async def _bring_last(self, limit_s: float) -> bool:
        """Wait until it is known what audits want of all that was handed in, and bring it, for so long at most; return whether it is done.

        The run's last round is not audited: no commit comes after it.
        """

        def is_known() -> bool:
            return self._progress.newest_round >= min(self._bringing.asked_by, self._context.manifest.num_rounds)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                is_all = is_known() and await self._bring()
                while not is_all:
                    await asyncio.sleep(timeouts.LOG_AGAIN_S[0])
                    is_all = is_known() and await self._bring()
                return True
        return False

    @property
    def _is_waiting(self) -> bool:
        """Whether it is not known yet of something that was handed in whether audits want it."""
        return self._progress.newest_round < self._bringing.asked_by

    async def _bring(self) -> bool:
        async with self._turn:
            is_done = await self._bringing.bring_all()
            await self._tidy()
        status, bringing = self._live_status.status, self._bringing
        if (status.audited, status.brought_bytes) != (bringing.audited, bringing.brought_bytes):
            self._live_status.update(audited=bringing.audited, brought_bytes=bringing.brought_bytes)
            self._live_status.write()
        return is_done

    async def _tidy(self) -> None:
        """Remove what no round has and none can have any more, and what is too old."""
        newest, bases = self._progress.newest_round, self._bringing.bases
        try:
            await asyncio.to_thread(self._folder.prune, newest)
            for base, round_ in self._folder.rounds.items():
                if base not in bases and newest > round_ + MAX_AGE and not self._progress.is_looking_for(base):
                    await asyncio.to_thread(self._folder.keep_only, base, ())
        except (StorageError, RemoteFault) as error:
            logger.error("what audits cannot ask for is not removed reason=%s", error)
