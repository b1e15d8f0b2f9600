"""Where a peer's lots are trained: on one committed state, in one local step or several, alone or step by step with its cohort.

How many lots there is time for is decided by the caller; what is done with what was learnt is as well.
"""

import asyncio
import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.local import LocalSteps
from manta_swarm.automl.training.lots import Lot
from manta_swarm.automl.training.update import State
from manta_swarm.codec.residuals import digest_of_parts, part_digests, vector_digest
from manta_swarm.peer.cohort.cohort import Seat
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.feature import Features
from manta_swarm.peer.train.shift import MayStart, Shift, Task
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.peer.train.work import Learnt, Pile, Vector, claim_so_far
from manta_swarm.peer.workers.crew import Crew
from manta_swarm.protocol.lots import place_of_lot
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rounds import Standing
from manta_swarm.protocol.signed import Signed

logger = logging.getLogger("manta.peer")


class LocalTrainer:
    """One peer's workers and what they compute."""

    def __init__(self, context: RunContext, progress: Progress, crew: Crew, features: Features, sizing: Sizing | None = None) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: is told of each microbatch.
            crew: computes them.
            features: may change what was learnt, and keep vectors that claims name.
            sizing: is told how long microbatches took, where a cohort's size depends on it.
        """
        self._context = context
        self._progress = progress
        self._crew = crew
        self._features = features
        self._sizing = sizing
        self._course = context.course
        self._shift: Shift | None = None  # under way
        self._loaded: bytes | None = None  # digest of the state that the crew has
        self._teacher: Tensor | None = None
        self._samples_dropped = 0  # trained, and of no use since

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be computed."""
        return self._crew.is_paused

    @property
    def workers(self) -> Sequence[int]:
        """The workers that are there."""
        return self._crew.present()

    def look_again(self) -> None:
        """What decides whether lots are started has changed."""
        if self._shift is not None:
            self._shift.look_again()

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
        self._progress.pace.base_began()
        if self._sizing is not None:
            self._sizing.opened(base.round + 1, self._progress.open_ms(self._context.manifest))

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
        length_ms = self._progress.open_ms(self._context.manifest)
        try:
            return await self._learn(base, state, cohort, architectures, seat, may_start)
        finally:
            if self._sizing is not None and self._progress.pace.on_base_ms:
                self._sizing.worked(base.round + 1, architectures[0], self._progress.pace.on_base_ms, length_ms)

    async def _learn(
        self,
        base: Standing,
        state: State,
        cohort: str,
        architectures: Sequence[Architecture],
        seat: "asyncio.Future[Seat]",
        may_start: MayStart,
    ) -> tuple[Learnt, Seat] | None:
        plan, steps = self._course.plan, self._context.manifest.exchange.local_steps
        pile = Pile(self._context.num_weights, architectures, is_blind=self._features.is_blind)
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
        vector = await self._features.on_learnt(vector)  # nothing that a blind claim hides has left so far
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
        manifest, key = self._context.manifest, self._context.key
        steps = manifest.exchange.local_steps

        def lot_at(index: int) -> tuple[Lot, int]:
            place = place_of_lot(len(architectures), base.commit, key, index)
            architecture = architectures[place]
            strength = self._course.plan.augmentation(base.round + 1, architecture)
            return Lot(manifest.seed, base.commit, step, key, index, architecture, manifest.lot_samples, strength), place

        most = manifest.exchange.max_claim_samples // manifest.lot_samples - (steps - 1 - step)
        task = Task(step, most, lot_at)
        shift = self._shift = Shift(task, first, pile, self._crew, self._progress, seat, may_start)
        try:
            await shift.run()
        finally:
            self._shift = None
            self._samples_dropped += shift.samples_dropped
        return shift.next_index

    async def _take_step(self, base: Standing, cohort: str, local: LocalSteps, step: int, pile: Pile, seat: Seat) -> None:
        """Average a step's gradient with the cohort, and take the exact update that it leads to."""
        gradient: Vector = pile.gradient()
        context = self._context
        digests = await context.compute.run(part_digests, gradient)
        own = digest_of_parts(digests)

        async def claimed() -> Signed[Claim]:
            return await context.compute.run(
                claim_so_far,
                base,
                cohort,
                pile,
                own,
                context.identity,
                context.run,
                payout=context.terms.payout,
                founder=seat.founder,
                lot_ms=self._progress.pace.lot_ms,
                shards=context.terms.shards,
                partner=context.terms.partner(),
            )

        mean = await seat.average(step, gradient, claimed, digests)
        of_mean = own if mean is gradient else await context.compute.run(vector_digest, mean)
        pile.end_step(own, of_mean)
        await self._features.keep(base.round + 1, base.commit, {own: gradient, of_mean: mean})
        await context.compute.run(lambda: local.step(torch.from_numpy(mean)))
