"""A peer's work on one committed state after another: weights and teacher to the workers, microbatches until it is time to hand in, and
then what was learnt is signed.
"""

import asyncio
import logging

from manta_swarm.network import timeouts
from manta_swarm.peer.cohort.cohort import CohortSession
from manta_swarm.peer.contact.others import PeerDirectory
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.feature import Features
from manta_swarm.peer.submit.submitter import LAST_PART, Submitter
from manta_swarm.peer.sync.states import States
from manta_swarm.peer.train.trainer import LocalTrainer
from manta_swarm.protocol.cohorts import OwnCohort
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.rounds import CommitRef, PeerStage
from manta_swarm.runtime.tasks import unless_set, wait_within

_LEASE_AGAIN_S = 1.0  # a gateway that only leases, to which nothing came back: until it begins again

logger = logging.getLogger("manta.peer")


class TrainingLoop:
    """Trains on one committed state after another."""

    def __init__(
        self,
        context: RunContext,
        progress: Progress,
        trainer: LocalTrainer,
        states: States,
        submitter: Submitter,
        others: PeerDirectory,
        features: Features,
    ) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: says on which base there is something to do, and for how long.
            trainer: computes.
            states: have the base's state, and its teacher.
            submitter: signs what was learnt.
            others: have this peer's cohort, and its place in it.
            features: may have a place for it of their own.
        """
        self._context = context
        self._progress = progress
        self._trainer = trainer
        self._states = states
        self._submitter = submitter
        self._others = others
        self._features = features
        self._machine = progress.machine
        self._pace = progress.pace

    async def work(self) -> None:
        """Train microbatches until it is time to hand in, or a commit came; then sign what there is."""
        base = self._machine.held
        assert base is not None
        if not await self._load_weights(base):
            return
        self._trainer.begin(base)
        own_cohort = self._others.cohort_membership.own_cohort  # for all of this work, whatever it will be by its end
        cohort_session = asyncio.create_task(self._take_place(base, own_cohort))
        try:
            if self._features.is_lease_only and not await unless_set(
                self._progress.changed, self._features.has_something_back(cohort_session)
            ):
                await wait_within(self._progress.changed, _LEASE_AGAIN_S)
                return
            done = await self._trainer.train(base, self._states.held, own_cohort.name, cohort_session)
        finally:
            cohort_session.cancel()
            self._trainer.end(base, own_cohort.name)
        if done is None and cohort_session.done() and not cohort_session.cancelled():
            cohort_session.result().nothing_learnt()
            if cohort_session.result().may_be_listed:
                self._progress.promises.wonder(base.round + 1, base.commit, self._progress.newest_round)
        self._progress.lap.mark("train")
        self._context.live_status.add(samples_lost=self._trainer.take_dropped())
        if done is None:
            self._context.live_status.add(samples_lost=self._machine.discard())
        elif await self._is_through() and self._machine.samples:
            if await self._submitter.sign(*done):
                self._context.live_status.update(loss=done[0].work.accumulator.loss)
            else:
                self._context.live_status.add(samples_lost=self._machine.discard())

    async def _take_place(self, base: CommitRef, own_cohort: OwnCohort) -> CohortSession:
        """Return this peer's place in its cohort for the work on a base; work that is done ahead is done alone."""
        context, progress = self._context, self._progress
        if progress.machine.stage is not PeerStage.WORKING or base.round < progress.newest_round:
            return CohortSession(context.key)
        # Of the time that is left members keep a part for handing in alone, and the founder what it needs to hand in for them.
        whole_ms, took_ms = progress.open_ms(context.manifest), self._submitter.took_ms
        kept_ms = whole_ms / LAST_PART + (whole_ms / LAST_PART if took_ms is None else took_ms)
        if (cohort_session := await self._features.take_place(base, own_cohort, kept_ms)) is not None:
            return cohort_session
        left_ms = self._pace.left_ms(context.clock.now_ms()) - kept_ms
        return await self._others.cohort.convene(base, self._pace.microbatch_ms, left_ms, own_cohort)

    async def _is_through(self) -> bool:
        """Wait for the commit of the contribution before the work that is done ahead of it; False: the person leaves before it comes."""
        while self._machine.samples and self._machine.signed is not None:
            self._progress.changed.clear()
            if not self._progress.leaving.is_set():
                await self._progress.changed.wait()
                continue
            left_ms = max(0, round(self._pace.left_ms(self._context.clock.now_ms())))
            await wait_within(self._progress.changed, timeouts.feed_s(left_ms, grace_ms(self._context.manifest.exchange.max_open_ms)))
            if not self._progress.changed.is_set():
                self._context.live_status.add(samples_lost=self._machine.discard())
                return False
        return True

    async def _load_weights(self, base: CommitRef) -> bool:
        """Give the worker the held state, and its teacher where the round has one; False: the teacher could not be had, try again."""
        if self._trainer.has(base.state):
            return True
        try:
            teacher = await unless_set(self._progress.leaving, self._states.teacher())
        except MantaError as error:
            logger.info("no teacher round=%d reason=%s", base.round + 1, error)
            self._context.live_status.wait_for(
                f"somebody who has the teacher, the state of round {self._context.training_spec.plan.teacher_round}"
            )
            await wait_within(self._progress.changed, timeouts.LOG_AGAIN_S[0])
            return False
        if self._progress.leaving.is_set():
            return False
        self._context.live_status.update(waiting_for="", teacher=teacher[0].hex() if teacher else "")
        await self._trainer.load(base.state, self._states.held, teacher[1] if teacher else None)
        return True
