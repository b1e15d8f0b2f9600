"""A peer's work on a base: weights and teacher to the workers, lots until it is time to hand in; then what was learnt is sealed."""

import asyncio
import logging
from collections.abc import Callable

from manta_swarm.automl.training.schedule import Plan
from manta_swarm.network import waits
from manta_swarm.peer.cohort.company import Company
from manta_swarm.peer.context import open_ms
from manta_swarm.peer.features.private.noise import Noise
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.submit.submitter import Submitter
from manta_swarm.peer.sync.states import States
from manta_swarm.peer.train.seating import Seating
from manta_swarm.peer.train.work import Lap, now_ms
from manta_swarm.peer.train.workbench import Workbench
from manta_swarm.peer.workers.crew import Crew
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.rounds import Phase, RoundMachine, Standing
from manta_swarm.runtime.tasks import unless, within

_LEASE_AGAIN_S = 1.0  # a gateway that only leases, to which nothing came back: until it begins again

logger = logging.getLogger("manta.peer")


class BaseWork:
    """One peer's, base after base."""

    def __init__(
        self,
        manifest: Manifest,
        plan: Plan,
        machine: RoundMachine,
        states: States,
        crew: Crew,
        bench: Workbench,
        company: Company,
        seating: Seating,
        submitter: Submitter,
        pace: Pace,
        noise: Noise | None,
        board: StatusBoard,
        lap: Lap,
        changed: asyncio.Event,
        leaving: asyncio.Event,
        leave: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            manifest: the run's.
            plan: says which round has a teacher.
            machine: says on which base there is something to do.
            states: have its state.
            crew: trains.
            bench: gives it the lots.
            company: says of which cohort they are.
            seating: this peer's place in it.
            submitter: seals what was learnt.
            pace: says how much time is left.
            noise: is added to it; None: none is.
            board: shows it.
            lap: counts the time.
            changed: a commit came, or the person wants to leave.
            leaving: the person wants to.
            leave: is called where no more may be given away.
        """
        self._manifest = manifest
        self._plan = plan
        self._machine = machine
        self._states = states
        self._crew = crew
        self._bench = bench
        self._company = company
        self._seating = seating
        self._submitter = submitter
        self._pace = pace
        self._noise = noise
        self._board = board
        self._lap = lap
        self._changed = changed
        self._leaving = leaving
        self._leave = leave

    def works_ahead(self) -> bool:
        """With an older contribution in this round, work on the newest base may begin if it is not done before the commit anyway."""
        return self.may_work_ahead() and self._pace.lot_ms >= self._pace.left_ms(now_ms())

    def may_work_ahead(self) -> bool:
        """Only where a round has no time for two lots. Whoever is faster waits for the commit, and then has a whole round:
        a lot begun near the deadline would be late again, and so on in every round, one lot in each.
        """
        return self._machine.may_work_ahead and 2 * self._pace.lot_ms > open_ms(self._machine, self._manifest)

    async def work(self) -> None:
        """Train lots until it is time to hand in, or a commit came; then seal what there is."""
        base = self._machine.held
        assert base is not None
        if self._noise is not None and self._noise.is_spent:
            self._board.say(f"nothing more is handed in: {self._noise.line()}, and once more would be beyond --private-epsilon")
            self._leave()
            return
        if not await self._load_weights(base):
            return
        self._bench.begin(base)
        group = self._company.group  # for all of this work, whatever it will be by its end
        seat = asyncio.create_task(self._seating.take_seat(base, group))
        try:
            if self._seating.is_lease_only and not await self._seating.has_something_back(seat):
                await within(self._changed, _LEASE_AGAIN_S)
                return
            done = await self._bench.train(base, self._states.held, group.name, seat, self._may_start_lot)
        finally:
            seat.cancel()
        if done is None and seat.done() and not seat.cancelled():
            seat.result().nothing_learnt()
            if seat.result().may_be_listed:
                self._submitter.wonder(base)
        self._lap.mark("train")
        if self._noise is not None:
            self._board.update(epsilon=self._noise.epsilon)
            self._board.write()
        self._board.add(samples_lost=self._bench.take_dropped())
        if done is None:
            self._board.add(samples_lost=self._machine.discard())
        elif await self._is_through() and self._machine.samples:
            if await self._submitter.seal(*done):
                self._board.update(loss=done[0].pile.loss)
            else:
                self._board.add(samples_lost=self._machine.discard())

    async def _is_through(self) -> bool:
        """Wait for the commit of the contribution before the work that is done ahead of it; False: the person leaves before it comes."""
        while self._machine.samples and self._machine.sealed is not None:
            self._changed.clear()
            if not self._leaving.is_set():
                await self._changed.wait()
                continue
            left_ms = max(0, round(self._pace.left_ms(now_ms())))
            await within(self._changed, waits.news_s(left_ms, grace_ms(self._manifest.exchange.max_open_ms)))
            if not self._changed.is_set():
                self._board.add(samples_lost=self._machine.discard())
                return False
        return True

    def _may_start_lot(self, step: int, lots: int, ends: float | None, worker: int) -> bool:
        """Return whether a worker is to start another lot of a local step; steps that were begun are finished, with a lot each at least."""
        machine, is_leaving = self._machine, self._leaving.is_set()
        if step and not lots:
            return machine.samples > 0 and not (is_leaving and not self._crew.present())
        if is_leaving or self._crew.is_paused or machine.is_overdue or not (machine.phase is Phase.WORKING or self.works_ahead()):
            return False
        if lots and self._seating.is_lease_only:
            return False
        is_awaited = self._submitter.listed_in == machine.newest.round > 0
        return self._pace.may_start_lot(
            now_ms(),
            lots,
            is_awaited=is_awaited,
            step=step,
            steps=self._manifest.exchange.local_steps,
            ends=ends,
            worker=worker,
            workers=self._crew.present(),
        )

    async def _load_weights(self, base: Standing) -> bool:
        """Give the worker the held state, and its teacher where the round has one; False: the teacher could not be had, try again."""
        if self._bench.has(base.state):
            return True
        try:
            teacher = await unless(self._leaving, self._states.teacher())
        except MantaError as error:
            logger.info("no teacher round=%d reason=%s", base.round + 1, error)
            self._board.wait_for(f"somebody who has the teacher, the state of round {self._plan.teacher_round}")
            await within(self._changed, waits.LOG_AGAIN_S[0])
            return False
        if self._leaving.is_set():
            return False
        self._board.update(waiting_for="", teacher=teacher[0].hex() if teacher else "")
        await self._bench.load(base.state, self._states.held, teacher[1] if teacher else None)
        return True
