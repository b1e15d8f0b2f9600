"""A node of this process that is a cohort peer of honest peers: by the peers' own modules, but what it gives and says is the test's."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.coding import body_groups, encode
from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.blobs import Blob
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.cohort.cohort import Cohort, CohortSession, Gathered
from manta_swarm.peer.cohort.cohort_membership import Choice, FirstCohort
from manta_swarm.protocol.cohorts import meeting_secret
from manta_swarm.protocol.microbatches import work_of
from manta_swarm.protocol.records import Claim, ClaimStep, Header
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.runtime.clock import SYSTEM_CLOCK
from tests.contributions import claim_of, listing
from tests.faults.liar import Liar, Made, liars
from tests.faults.scene import Scene

Vector = NDArray[np.float32]

MICROBATCH_MS = 10  # that its microbatches take, as it says
SAMPLES = 32  # that it trained in a step, as it says


class CohortPeer:
    """One cohort peer, in one round at a time."""

    def __init__(self, liar: Liar, scene: Scene, cohort: str) -> None:
        """Use ``cohort_peers``."""
        self.liar = liar
        self.key: PublicKey = liar.key
        self.base: CommitRef | None = None
        self.cohort_session = CohortSession(liar.key)
        self._scene = scene
        self._name = cohort
        self._neighbours = Neighbours(liar.node, liar.run, secret=meeting_secret(scene.token, liar.run))
        has = {"node": liar.node, "key": liar.key, "manifest": liar.manifest, "training_spec": liar.training_spec, "run": liar.run}
        context: Any = SimpleNamespace(**has, clock=SYSTEM_CLOCK)
        self.cohort = Cohort(context, FirstCohort(Choice.LABEL, cohort, scene.token), self._neighbours)
        self._ends_ms = 0.0  # of the round's headers
        self._steps: list[ClaimStep] = []  # of the base, so far

    async def meet(self, count: int) -> None:
        """Return once so many cohort peers are known."""
        await self.cohort.start()
        await self._neighbours.announce(cohort=self._name, round_=0)
        while len(self.cohort.cohort_peers()) < count:
            await self._neighbours.look()
            await self.cohort.meet()

    async def take_place(self) -> CohortSession:
        """Take a place in a roster with others; return it. Each round that comes is tried."""
        round_ = self._scene.ledger().round
        while True:
            told = await self.liar.log.next_update(self.liar.log.operator, round_, left_ms=1000)
            if told.proven_commit is None:
                continue
            self.base = CommitRef.after(told.proven_commit.proven.round)
            round_ = self.base.round
            self._ends_ms = now_ms() + told.left_ms
            self._steps = []
            self.cohort_session = await self.cohort.convene(self.base, MICROBATCH_MS, 0.75 * told.left_ms)
            # As a founder: they come until its first step is over. Who does not come soon is not waited for.
            until_ms = now_ms() + told.left_ms / 4
            session, known = self.cohort_session, self.cohort.cohort_peers
            while session.is_founder and len(session.members) <= len(known()) and now_ms() < until_ms:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            if not self.cohort_session.is_alone:
                return self.cohort_session

    async def step(self, step: int, vector: Vector) -> Vector:
        """Give a vector for a step, when it is due, with the claim up to there; return what the cohort made of it."""
        self._note(step, vector_digest(vector))
        claim = self._claimed(given=b"")
        return await self.cohort_session.average(step, vector, claim)

    def _note(self, step: int, vector: bytes) -> None:
        first, microbatches = self._steps[step - 1].last + 1 if step else 0, max(1, SAMPLES // self.liar.manifest.microbatch_samples)
        self._steps = [*self._steps[:step], ClaimStep(first, first + microbatches - 1, (), vector)]

    async def steps(self, scale: float = 1e-3) -> None:
        """Give random numbers about so large in all steps."""
        for step in range(self.liar.manifest.exchange.local_steps):
            await self.step(step, self.liar.vector(scale))

    def claim(self, vector: Vector | None = None, **changes: Any) -> Signed[Claim]:
        """Return what it claims of the round, and that it gives this vector, or any."""
        for step in range(len(self._steps), self.liar.manifest.exchange.local_steps):
            self._note(step, sha256(b"not given"))
        given = {} if vector is None else {"given": vector_digest(vector)}
        return self._claimed(**given, **changes)

    def _claimed(self, **changes: Any) -> Signed[Claim]:
        assert self.base is not None
        steps = tuple(self._steps)
        microbatches = work_of(self.liar.num_architectures(self.base.round + 1), self.base.commit, self.key, steps)
        given = {
            "steps": steps,
            "founder": self.cohort_session.founder,
            "cohort": self._name,
            "round": self.base.round + 1,
            "microbatches": microbatches,
            "microbatch_ms": MICROBATCH_MS,
        }
        return claim_of(self._scene.ledger(), self.liar.identity, **{**given, **changes})

    async def gather(self) -> Gathered:
        """As the founder, take what the members hand over."""
        vector = self.liar.vector()
        gathered = await self.cohort_session.gather(self.claim(vector), vector, SAMPLES)
        assert gathered is not None
        return gathered

    async def hand_over(self, claim: Signed[Claim], vector: Vector) -> Any:
        """As a member, give a claim and a vector to the founder; return its word."""
        return await self.cohort_session.hand_over(claim, vector, SAMPLES, self._ends_ms)

    def made(self, claims: Sequence[Signed[Claim]], values: Vector) -> Made:
        """Return a contribution of these claims with a body of these values, signed by this cohort peer as the founder."""
        assert self.base is not None
        codec = self.liar.manifest.exchange.codec
        groups = body_groups(codec, encode(codec, values, self.base.min_exponent), len(values))
        header: Header = listing(claims, self.liar.identity, body=Blob.of(groups).root, left=sha256(self.base.commit))
        return Made(header, groups)


def now_ms() -> float:
    """Return the time by the clock that cohorts use."""
    return time.monotonic_ns() / 1e6


@asynccontextmanager
async def cohort_peers(scene: Scene, cohort: str, identities: Sequence[Identity], others: int) -> AsyncIterator[list[CohortPeer]]:
    """Start cohort peers with these keys, who know each other and so many others."""
    async with liars(scene, identities=identities) as found:
        band = [CohortPeer(liar, scene, cohort) for liar in found]
        try:
            await asyncio.gather(*(cohort_peer.meet(others + len(band) - 1) for cohort_peer in band))
            yield band
        finally:
            for cohort_peer in band:
                await cohort_peer.cohort.close()
