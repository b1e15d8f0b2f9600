"""Computes microbatches of one base until it is time to hand in, and decides when another one is begun.

The caller decides what is done with what was learnt.
"""

import asyncio
import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.training.microbatches import Microbatch
from manta_swarm.automl.training.update import LocalSteps, State
from manta_swarm.codec.residuals import digest_of_parts, part_digests, vector_digest
from manta_swarm.peer.cohort.cohort import CohortSession
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.feature import Features
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.peer.train.step_runner import StepRunner
from manta_swarm.peer.train.work import GradientAccumulator, Learnt, Vector, Work, claim_of
from manta_swarm.peer.workers.pool import WorkerPool
from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.rounds import CommitRef, PeerStage

logger = logging.getLogger("manta.peer")


class Timing:
    """Decides when the next microbatch begins, by how long earlier ones took."""

    def __init__(self, context: RunContext, progress: Progress, pool: WorkerPool, features: Features) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: says how long the round still has, and how long things take.
            pool: says who computes.
            features: may leave the work to others.
        """
        self._context = context
        self._progress = progress
        self._pool = pool
        self._features = features
        self._machine = progress.machine
        self._pace = progress.pace

    def works_ahead(self) -> bool:
        """Return whether work on the newest base may begin beside an older contribution in this round: it cannot end before the commit."""
        return self.may_work_ahead() and self.spare_s <= 0

    @property
    def spare_s(self) -> float:
        """Seconds until headers of this round are closed, less what a microbatch takes."""
        return (self._pace.left_ms(self._context.clock.now_ms()) - self._pace.microbatch_ms) / 1000

    def may_work_ahead(self) -> bool:
        """Return whether work may begin before the commit: only where a round has no time for two microbatches.

        Whoever is faster waits for the commit, and then has a whole round: a microbatch begun near the deadline would be late again, and so
        on in every round, one microbatch in each.
        """
        return self._machine.may_work_ahead and 2 * self._pace.microbatch_ms > self._progress.open_ms(self._context.manifest)

    def may_start(self, step: int, microbatches: int, ends: float | None, worker: int) -> bool:
        """Return whether a worker is to start another microbatch of a local step; a step that was begun has a microbatch at least.

        Args:
            step: from 0.
            microbatches: of it so far.
            ends: when it ends as its cohort says; None: no cohort does.
            worker: its number.
        """
        machine, is_leaving, workers = self._machine, self._progress.leaving.is_set(), self._pool.present()
        if step and not microbatches:
            return machine.samples > 0 and not (is_leaving and not workers)
        if is_leaving or self._pool.is_paused or machine.is_overdue or not (machine.stage is PeerStage.WORKING or self.works_ahead()):
            return False
        if microbatches and self._features.is_lease_only:
            return False
        is_awaited = self._progress.promises.listed_in == machine.newest.round > 0
        steps = self._context.manifest.exchange.local_steps
        now_ms = self._context.clock.now_ms()
        return self._pace.may_start_microbatch(
            now_ms, microbatches, is_awaited=is_awaited, step=step, steps=steps, ends=ends, worker=worker, workers=workers
        )


@dataclass(frozen=True, slots=True)
class StepMicrobatches:
    """The microbatches of one local step of a work. Implements ``peer.train.step_runner.Microbatches``."""

    context: RunContext
    work: Work
    step: int

    @property
    def most(self) -> int:
        """See ``Microbatches``: the steps to come need one each."""
        manifest = self.context.manifest
        return manifest.exchange.max_claim_samples // manifest.microbatch_samples - (manifest.exchange.local_steps - 1 - self.step)

    def at(self, index: int) -> tuple[Microbatch, int]:
        """See ``Microbatches``."""
        manifest, key, base = self.context.manifest, self.context.key, self.work.base
        architectures = self.work.accumulator.architectures
        place = place_of_microbatch(len(architectures), base.commit, key, index)
        architecture = architectures[place]
        strength = self.context.training_spec.plan.augmentation(base.round + 1, architecture)
        return Microbatch(manifest.seed, base.commit, self.step, key, index, architecture, manifest.microbatch_samples, strength), place


class LocalTrainer:
    """Has one peer's workers compute the microbatches of a base, step after step."""

    def __init__(
        self, context: RunContext, progress: Progress, pool: WorkerPool, features: Features, timing: Timing, sizing: Sizing | None = None
    ) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: is told of each microbatch.
            pool: computes them.
            features: may change what was learnt, and keep vectors that claims name.
            timing: decides whether another microbatch is started.
            sizing: is told how long microbatches took, where a cohort's size depends on it.
        """
        self._context = context
        self._progress = progress
        self._pool = pool
        self._features = features
        self._timing = timing
        self._sizing = sizing
        self._training_spec = context.training_spec
        self._step_runner: StepRunner | None = None  # under way
        self._loaded: bytes | None = None  # digest of the state that the worker pool has
        self._teacher: Tensor | None = None
        self._samples_dropped = 0  # trained, and of no use since
        self._open_ms = 0  # how long the round of the base is open

    def look_again(self) -> None:
        """Decide anew whether microbatches are started."""
        if self._step_runner is not None:
            self._step_runner.look_again()

    def take_dropped(self) -> int:
        """Return how many samples were trained too late to be of use since this was asked last."""
        dropped, self._samples_dropped = self._samples_dropped, 0
        return dropped

    def has(self, state: bytes) -> bool:
        """Return whether the worker pool has the weights of this state."""
        return self._loaded == state

    async def load(self, digest: bytes, state: State, teacher: Tensor | None) -> None:
        """Give the worker pool a state, and the parameters of its teacher where it has one."""
        self._teacher = teacher
        await self._pool.load(state.parameters, teacher)
        self._loaded = digest

    def begin(self, base: CommitRef) -> None:
        """The next work is on this base: to be called before its cohort is looked up, whose size may depend on it."""
        self._progress.pace.base_began()
        self._open_ms = self._progress.open_ms(self._context.manifest)
        if self._sizing is not None:
            self._sizing.opened(base.round + 1, self._open_ms)

    def end(self, base: CommitRef, cohort: str) -> None:
        """The work on this base is over, whatever came of it."""
        if self._sizing is not None and (microbatch_ms := self._progress.pace.on_base_ms):
            architectures = self._training_spec.plan.architectures(base.round + 1, cohort)
            self._sizing.worked(base.round + 1, architectures[0], microbatch_ms, self._open_ms)

    async def train(
        self, base: CommitRef, state: State, cohort: str, cohort_session: "asyncio.Future[CohortSession]"
    ) -> tuple[Learnt, CohortSession] | None:
        """Train on ``state``, that of ``base``; return what was learnt, and the place in the cohort that it was learnt in.

        None: there was no time for a microbatch, or what was trained is of no use by now.

        Args:
            base: the commit.
            state: its state, which the worker pool has.
            cohort: the name that model-parallel's architectures follow from, for all of this work.
            cohort_session: this peer's place in its cohort; it is waited for once the first microbatch is done.
        """
        context, round_ = self._context, base.round + 1
        architectures = self._training_spec.plan.architectures(round_, cohort)
        accumulator = GradientAccumulator(context.num_weights, architectures, is_blind=self._features.is_blind)
        work = Work(base, cohort, accumulator)
        steps = context.manifest.exchange.local_steps
        local = LocalSteps(state, self._training_spec.plan) if steps > 1 else None
        index = 0
        for step in range(steps):
            if local is not None and step:
                self._loaded = None
                await self._pool.load(local.weights, self._teacher)
            asked = StepMicrobatches(context, work, step)
            step_runner = self._step_runner = StepRunner(
                asked, index, accumulator, self._pool, self._progress, cohort_session, self._timing
            )
            try:
                await step_runner.run()
            finally:
                self._step_runner = None
                self._samples_dropped += step_runner.samples_dropped
            index = step_runner.next_index
            if not accumulator.step_microbatches:
                return None
            if local is not None:
                await self._take_step(work, local, step, cohort_session.result())
        vector = accumulator.gradient() if local is None else local.learnt().numpy()
        self._loaded = self._loaded if local is None else None
        vector = await self._features.on_learnt(vector)  # nothing that a blind claim hides has left so far
        if not bool(np.isfinite(vector).all()):
            logger.error("microbatches dropped: what they taught is not finite round=%d", round_)
            return None
        return Learnt(work, vector, self._training_spec.coverage(round_, work.cohort)), cohort_session.result()

    async def _take_step(self, work: Work, local: LocalSteps, step: int, cohort_session: CohortSession) -> None:
        """Average a step's gradient with the cohort, and take the exact update that it leads to."""
        gradient: Vector = work.accumulator.gradient()
        mean, compute, terms = gradient, self._context.compute, self._context.terms
        digests = await compute.run(part_digests, gradient)
        own = of_mean = digest_of_parts(digests)
        if await cohort_session.is_shared():
            claim = await compute.run(claim_of, terms, work, own, cohort_session.founder, self._progress.pace.microbatch_ms)
            mean = await cohort_session.average(step, gradient, claim, digests)
            of_mean = own if mean is gradient else await compute.run(vector_digest, mean)
        work.accumulator.end_step(own, of_mean)
        await self._features.keep(work.base.round + 1, work.base.commit, {own: gradient, of_mean: mean})
        await compute.run(lambda: local.step(torch.from_numpy(mean)))
