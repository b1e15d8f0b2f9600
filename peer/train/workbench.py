"""Where a peer's lots are trained: on one committed state, in one local step or several, alone or step by step with its cohort.

How many lots there is time for is decided by the caller; what is done with what was learnt is as well.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.course import RunCourse
from manta_swarm.automl.training.local import LocalSteps
from manta_swarm.automl.training.lots import Lot
from manta_swarm.automl.training.update import State
from manta_swarm.codec.residuals import digest_of_parts, part_digests, vector_digest
from manta_swarm.peer.cohort.cohort import Seat
from manta_swarm.peer.context import open_ms
from manta_swarm.peer.features.audit.evidence import Evidence
from manta_swarm.peer.features.private.noise import Noise
from manta_swarm.peer.train.shift import MayStart, Shift, Task
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.peer.train.work import ComputeThread, Learnt, Pile, Vector, claim_so_far, nobody
from manta_swarm.peer.workers.crew import Crew
from manta_swarm.protocol.lots import place_of_lot
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rounds import RoundMachine, Standing
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey

logger = logging.getLogger("manta.peer")


class Workbench:
    """One peer's crew and its lots."""

    def __init__(
        self,
        manifest: Manifest,
        course: RunCourse,
        run: bytes,
        identity: Identity,
        crew: Crew,
        compute: ComputeThread,
        machine: RoundMachine,
        pace: Pace,
        noise: Noise | None = None,
        sizing: Sizing | None = None,
        evidence: Evidence | None = None,
        shards: int = 0,
        payout: PublicKey | None = None,
        partner: Callable[[], bytes] = nobody,
    ) -> None:
        """Prepare; ``machine`` and ``pace`` are told of each lot, and ``noise`` is added to what was learnt, if there is any.

        ``sizing`` is told how long lots took, where a cohort's size depends on it. ``evidence`` keeps what audits may ask of local steps.
        ``shards`` is what claims say of those that lots are drawn from (``Claim.shards``), ``payout`` the account that they name; None:
        the own key. ``partner`` returns who has the other view of this peer's samples (``Claim.partner``).
        """
        self._run = run
        self._shards = shards
        self._partner = partner
        self._payout = payout or identity.public_key
        self._evidence = evidence
        self._noise = noise
        self._sizing = sizing
        self._manifest = manifest
        self._course = course
        self._identity = identity
        self._crew = crew
        self._compute = compute
        self._machine = machine
        self._pace = pace
        self._shift: Shift | None = None  # under way
        self._loaded: bytes | None = None  # digest of the state that the crew has
        self._teacher: Tensor | None = None
        self._samples_dropped = 0  # trained, and of no use since

    def look_again(self) -> None:
        """What decides whether lots are started has changed."""
        if self._shift is not None:
            self._shift.look_again()

    @property
    def num_weights(self) -> int:
        """N."""
        return self._crew.num_weights

    def take_dropped(self) -> int:
        """Return how many samples were trained too late to be of use since this was asked last."""
        dropped, self._samples_dropped = self._samples_dropped, 0
        return dropped

    def has(self, state: bytes) -> bool:
        """Return whether the crew has the weights of this state."""
        return self._loaded == state

    async def load(self, digest: bytes, state: State, teacher: Tensor | None) -> None:
        """Give the crew a state, and the parameters of its teacher where it has one."""
        self._teacher = teacher
        await self._crew.load(state.parameters, teacher)
        self._loaded = digest

    def begin(self, base: Standing) -> None:
        """The next work is on this base: to be called before its cohort is looked up, whose size may depend on it."""
        self._pace.base_began()
        if self._sizing is not None:
            self._sizing.opened(base.round + 1, open_ms(self._machine, self._manifest))

    async def train(
        self, base: Standing, state: State, cohort: str, seat: "asyncio.Future[Seat]", may_start: MayStart
    ) -> tuple[Learnt, Seat] | None:
        """Train on ``state``, that of ``base``; return what was learnt, and the place in the cohort that it was learnt in.

        None: there was no time for a lot, or what was trained is of no use by now.

        Args:
            base: the commit.
            state: its state, which the crew has.
            cohort: the name that model-parallel's architectures follow from, for all of this work.
            seat: this peer's place in its cohort; it is waited for once the first lot is done.
            may_start: whether another lot is to be started.
        """
        architectures = self._course.plan.architectures(base.round + 1, cohort)
        length_ms = open_ms(self._machine, self._manifest)
        try:
            return await self._learn(base, state, cohort, architectures, seat, may_start)
        finally:
            if self._sizing is not None and self._pace.on_base_ms:
                self._sizing.worked(base.round + 1, architectures[0], self._pace.on_base_ms, length_ms)

    async def _learn(
        self,
        base: Standing,
        state: State,
        cohort: str,
        architectures: Sequence[Architecture],
        seat: "asyncio.Future[Seat]",
        may_start: MayStart,
    ) -> tuple[Learnt, Seat] | None:
        plan, steps = self._course.plan, self._manifest.exchange.local_steps
        pile = Pile(self._crew.num_weights, architectures, is_blind=self._noise is not None)
        local = LocalSteps(state, plan) if steps > 1 else None
        index = 0
        for step in range(steps):
            if local is not None and step:
                self._loaded = None
                await self._crew.load(local.weights, self._teacher)
            index = await self._train_step(base, step, index, architectures, pile, seat, may_start)
            if not pile.step_lots:
                return None
            if local is not None:
                await self._take_step(base, cohort, local, step, pile, seat.result())
        vector = pile.gradient() if local is None else local.learnt().numpy()
        self._loaded = self._loaded if local is None else None
        if self._noise is not None:  # nothing has left so far, and nothing leaves but what is made of the noisy vector
            vector = await self._compute.run(self._noise.add, vector)
        if not bool(np.isfinite(vector).all()):
            logger.error("lots dropped: what they taught is not finite round=%d", base.round + 1)
            return None
        return Learnt(base, cohort, pile, vector, self._course.coverage(base.round + 1, cohort)), seat.result()

    async def _train_step(
        self,
        base: Standing,
        step: int,
        first: int,
        architectures: Sequence[Architecture],
        pile: Pile,
        seat: "asyncio.Future[Seat]",
        may_start: MayStart,
    ) -> int:
        """Train the lots of a local step, the first one of which has the index ``first``; return that of the next step's."""
        manifest, steps, key = self._manifest, self._manifest.exchange.local_steps, self._identity.public_key

        def lot_at(index: int) -> tuple[Lot, int]:
            place = place_of_lot(len(architectures), base.commit, key, index)
            architecture = architectures[place]
            strength = self._course.plan.augmentation(base.round + 1, architecture)
            return Lot(manifest.seed, base.commit, step, key, index, architecture, manifest.lot_samples, strength), place

        most = manifest.exchange.max_claim_samples // manifest.lot_samples - (steps - 1 - step)
        task = Task(step, most, lot_at)
        shift = self._shift = Shift(task, first, pile, self._crew, self._machine, self._pace, seat, may_start)
        try:
            await shift.run()
        finally:
            self._shift = None
            self._samples_dropped += shift.samples_dropped
        return shift.next_index

    async def _take_step(self, base: Standing, cohort: str, local: LocalSteps, step: int, pile: Pile, seat: Seat) -> None:
        """Average a step's gradient with the cohort, and take the exact update that it leads to."""
        gradient: Vector = pile.gradient()
        digests = await self._compute.run(part_digests, gradient)
        own = digest_of_parts(digests)

        async def claimed() -> Signed[Claim]:
            return await self._compute.run(
                claim_so_far,
                base,
                cohort,
                pile,
                own,
                self._identity,
                self._run,
                payout=self._payout,
                founder=seat.founder,
                lot_ms=self._pace.lot_ms,
                shards=self._shards,
                partner=self._partner(),
            )

        mean = await seat.average(step, gradient, claimed, digests)
        of_mean = own if mean is gradient else await self._compute.run(vector_digest, mean)
        pile.end_step(own, of_mean)
        if self._evidence is not None:
            await self._evidence.keep(base.round + 1, base.commit, {own: gradient, of_mean: mean})
        await self._compute.run(lambda: local.step(torch.from_numpy(mean)))
