"""A peer in a run: it trains microbatches, signs a contribution, hands it in, learns of the commit, fetches what leads there, and so on.

``protocol.rounds.RoundMachine`` decides what each event means. The session owns the actors that do the rest, and passes on what they
return.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping

from manta_swarm.network.log_client import FeedUpdate, ProvenCommit
from manta_swarm.peer.cohort.cohort import Cohort
from manta_swarm.peer.cohort.cohort_membership import FirstCohort
from manta_swarm.peer.contact.operator_notice import OperatorNotice
from manta_swarm.peer.contact.others import PeerDirectory
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.credit.credit import Credit
from manta_swarm.peer.features.feature import Features
from manta_swarm.peer.limits.limiter import Absences
from manta_swarm.peer.status import YOU, verdict
from manta_swarm.peer.submit.promises import ClaimListed, NewCommit, PromiseEvent
from manta_swarm.peer.submit.submitter import HandInResult, Submitter, show_commit, show_fate, show_lost
from manta_swarm.peer.sync.consistency_checker import ConsistencyChecker
from manta_swarm.peer.sync.split_view_monitor import SplitViewMonitor
from manta_swarm.peer.sync.spot_checker import SpotChecker
from manta_swarm.peer.sync.spread import BlobDistribution
from manta_swarm.peer.sync.states import CatchingUp, States
from manta_swarm.peer.sync.subscriber import CommitSubscriber, RunUpdate
from manta_swarm.peer.train.loop import TrainingLoop
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.peer.train.trainer import LocalTrainer, Timing
from manta_swarm.peer.workers.pool import WorkerPool
from manta_swarm.protocol.reputation import Fault
from manta_swarm.protocol.rounds import PeerStage
from manta_swarm.runtime.tasks import unless_set, wait_within

_BY_YOU = {YOU: "by you"}

logger = logging.getLogger("manta.peer")


class Session:
    """One peer in one run. It alone knows all actors, and passes on what they return."""

    def __init__(
        self,
        context: RunContext,
        progress: Progress,
        pool: WorkerPool,
        first_cohort: FirstCohort,
        features: Features | None = None,
        sizing: Sizing | None = None,
        *,
        trains: bool = True,
    ) -> None:
        """Prepare; ``run`` does the rest, and ends ``pool`` and the context's compute thread.

        Args:
            context: of the run.
            progress: where this peer's work stands.
            pool: computes microbatches.
            first_cohort: what decides which cohort this peer is in.
            features: what it does beside; None: nothing.
            sizing: in model-parallel: how large the architectures may be; None: all of them are for this peer.
            trains: False: it follows the run's commits, and stays beyond the last one until it is told to leave.
        """
        self.context = context
        self.progress = progress
        self.machine = progress.machine
        self.features = features or Features()
        self.trains = trains
        self._pool = pool
        self._others = PeerDirectory(context, progress, first_cohort, sizing)
        neighbours = self._others.neighbours
        self._distribution = BlobDistribution(context, neighbours)
        self.states = States(context, self._distribution)
        self._spot_checker = SpotChecker(context, self._distribution)
        self._catching_up = CatchingUp(context, progress, self.states, self._spot_checker)
        self._timing = Timing(context, progress, pool, self.features)
        self._trainer = LocalTrainer(context, progress, pool, self.features, self._timing, sizing)
        self.submitter = Submitter(context, progress, self.states, self.features)
        self._training = TrainingLoop(context, progress, self._trainer, self.states, self.submitter, self._others, self.features)
        self._credit = Credit(context, progress)
        self._operator_notice = OperatorNotice(context)
        consistency_checker = ConsistencyChecker(context, progress)
        self._split_view_monitor = SplitViewMonitor(context, progress, neighbours, consistency_checker)
        self._subscriber = CommitSubscriber(context, progress, neighbours, consistency_checker, trains=trains)

    # What the log says.

    async def _hear(self) -> None:
        """Take what the log and neighbours say of where the run stands, until this is cancelled."""
        while True:
            update = await self._subscriber.next_update()
            if not isinstance(update, RunUpdate):
                self._operator_notice.show_away(update.is_away)
                continue
            with update:
                self._take(update.told)
                if update.is_far_ahead:
                    self._split_view_monitor.look_soon()

    def _take(self, told: FeedUpdate) -> None:
        """Take note of what the log, or a neighbour, says of where the run stands.

        Raises:
            LedgerError: it contradicts a commit known before.
        """
        promises, commit, events = self.progress.promises, None, list[PromiseEvent]()
        if told.proven_commit is not None:
            commit, events = promises.take(self.machine, told.proven_commit.proven.round, told.counted)
        if told.is_from_log:
            promises.look()
        if (left_ms := self._left_ms(told, commit)) > 0:
            self.progress.pace.opened(self.context.clock.now_ms(), left_ms)
            self._distribution.headers_open(self.machine.round, left_ms)
        for event in events:
            self._found(event)
        if commit is not None and told.proven_commit is not None:
            self._committed(commit, told.proven_commit)

    def _left_ms(self, told: FeedUpdate, commit: NewCommit | None) -> int:
        """Return for how long headers of the round after the newest commit may still come, as that says; 0: it does not say it."""
        entry = None if told.proven_commit is None else told.proven_commit.proven.round
        if entry is not None and entry.round != self.machine.newest.round:
            return 0
        if commit is not None and not told.left_ms and not told.is_from_log:
            return commit.entry.open_ms  # a neighbour told: it came a moment ago
        return told.left_ms

    def _committed(self, commit: NewCommit, proven_commit: ProvenCommit) -> None:
        """A commit is the newest one."""
        self.progress.commits.add(proven_commit)
        self._distribution.committed(commit.entry)
        self.progress.lap.mark("wait")
        logger.info("round over round=%d %s", commit.entry.round, self.progress.lap.line())
        show_commit(self.context.live_status, commit, dict(self.machine.dropped))
        self._spot_checker.committed(commit.entry)
        self.features.on_commit(commit.entry)
        self._look_again()

    def _found(self, event: PromiseEvent) -> None:
        """Something was found out of this peer's contributions."""
        if isinstance(event, ClaimListed):
            self.features.on_listed(event)
            return
        show_fate(self.context.live_status, event)
        if event.is_counted:
            self._credit.counted(event.round, event.signed.header.claims[0], event.found)
        self.features.on_fate(event)

    async def _find(self) -> None:
        """Pass on what asking the log finds out of this peer's contributions, until this is cancelled."""
        while True:
            self._found(await self.progress.promises.next_event())

    def _look_again(self) -> None:
        """Decide anew what this peer does."""
        self.progress.changed.set()
        self._trainer.look_again()

    async def _watch_pool(self) -> None:
        """Pass on what happens at the worker pool, until this is cancelled."""
        while True:
            for line in await self._pool.changes.next():
                self.context.live_status.say(line)
            self._pool_changed()

    def _pool_changed(self) -> None:
        self._trainer.look_again()
        if self.context.live_status.status.workers != (there := len(self._pool.present())):
            self.context.live_status.update(workers=there)
            self.context.live_status.write()

    # The person's side.

    def leave(self) -> None:
        """Hand in what is trained, then end."""
        self.progress.leaving.set()
        self.features.leave()
        self._look_again()

    async def pause(self, why: Mapping[str, str] = _BY_YOU) -> None:
        """Compute nothing until ``resume``; what is done is handed in. Returns once the workers' memory is free. ``why``: in words."""
        self.features.pause()
        if not self._pool.is_paused:
            await self._pool.pause()
        self.context.live_status.pause(why)
        self._look_again()

    async def resume(self) -> None:
        """Go on after ``pause``."""
        await self._pool.resume()
        self.context.live_status.pause({})
        self.features.resume()
        self._look_again()

    def set_duty(self, duty: int) -> None:
        """Forecast with workers that compute ``duty`` hundredths of the time."""
        self.progress.pace.duty = duty / 100

    @property
    def ended(self) -> str:
        """Return how the operators ended this run for good, in words; nothing where they did not."""
        return self._operator_notice.ended

    @property
    def guilty(self) -> Fault | None:
        """What audits found this peer guilty of; None: of nothing."""
        return self._credit.guilty

    @property
    def cohort(self) -> Cohort:
        """This peer's part in its cohort."""
        return self._others.cohort

    def round_time(self) -> tuple[float | None, int]:
        """Return for how many ms headers may still come in this round, None where that is not known, and how long it is open in all."""
        left_ms = self.progress.pace.left_ms(self.context.clock.now_ms())
        return (max(0.0, left_ms) if math.isfinite(left_ms) else None), self.progress.open_ms(self.context.manifest)

    def is_finished(self) -> bool:
        """Return whether the log has the last round."""
        return self.progress.newest_round >= self.context.manifest.num_rounds

    async def run(self) -> None:
        """Take part until the run is finished, or ``leave`` was called and what was trained has an inclusion promise."""
        async with self.features.open(self):
            await self._take_part()

    async def _take_part(self) -> None:
        node = self.context.node
        await self.context.blob_store.serve(node)
        await self._subscriber.start()
        await self._split_view_monitor.start()
        await self._distribution.start()
        await self._others.start()
        await self._operator_notice.hear(node)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            watches = node.watch_daemon(), self._hear(), self._operator_notice.watch(), self._leave_with_operators(), self._watch_pool()
            background = [tasks.create_task(watch) for watch in watches]
            try:
                await self._pool.start()
                self._pool_changed()
                await unless_set(self.progress.leaving, self._split_view_monitor.telling(self._subscriber.first_look))
                if self.progress.leaving.is_set():
                    return
                background.append(meeting := tasks.create_task(self._others.announcer.meet()))
                background += [
                    tasks.create_task(watch)
                    for watch in (
                        self._others.announcer.watch(),
                        self._split_view_monitor.telling(self._subscriber.listen),
                        self._split_view_monitor.telling(self._split_view_monitor.watch),
                        self._watch_absences(),
                        self._find(),
                        self._watch_guilt(),
                    )
                ]
                self._credit.ask()
                await self.submitter.take_up()  # only now: what is too old may have counted long ago
                background.append(tasks.create_task(self.features.run()))
                await self._rounds()
                await self.progress.promises.settle()  # a neighbour may have told of the last commit before the log did
                for event in self.progress.promises.take_events():
                    self._found(event)
                await self._credit.settle()
                self._show_guilt()
                if self.features.stays and self.guilty is None and not self.ended and not self._operator_notice.is_away:
                    meeting.cancel()
                    await self._others.announcer.leave_cohort()
                    await self.features.settle()
                for task in background:
                    task.cancel()
                await self._others.announcer.withdraw()
            finally:
                await self._close(background)

    async def _close(self, background: Iterable[asyncio.Task[None]]) -> None:
        for task in background:
            task.cancel()
        self._catching_up.stop()
        await self.progress.promises.close()
        await self._credit.close()
        await self.features.close()
        await self._others.cohort.close()
        await self._distribution.close()
        await self._subscriber.close()
        await self._pool.close()
        self.context.compute.close()

    async def _watch_guilt(self) -> None:
        """Leave once audits found this peer guilty: what it does counts no more."""
        await self._credit.found_guilty()
        self._show_guilt()
        self.leave()

    async def _leave_with_operators(self) -> None:
        """Leave once the operators ended the run for good."""
        await self._operator_notice.over()
        self.leave()

    def _show_guilt(self) -> None:
        """Say once what audits found this peer guilty of, if they did."""
        live_status = self.context.live_status
        if self.guilty is not None and not live_status.status.verdict:
            line = verdict(self.guilty)
            live_status.update(verdict=line)
            live_status.say(line)

    async def _rounds(self) -> None:
        while True:
            self.progress.changed.clear()
            stage = self.machine.stage
            self.context.live_status.update(stage=stage.value)
            if stage is PeerStage.SIGNED:
                if not await self._hand_in():
                    return
            elif stage is PeerStage.FINISHED:
                await self._held(is_last=True)
                self.context.live_status.update(finished=True)
                if not self.trains:
                    await self.progress.leaving.wait()
                self.features.finish()
                return
            elif self.progress.leaving.is_set():
                return
            elif stage is PeerStage.BEHIND:
                await self._catching_up.catch_up(self._tasks)
            elif self._pool.is_paused or not self.trains:
                await self.progress.changed.wait()
            elif stage is PeerStage.WORKING or self._timing.works_ahead():
                await self._held()
                if reason := self.features.why_no_more():
                    self.context.live_status.say(f"nothing more is handed in: {reason}")
                    self.leave()
                else:
                    await self._training.work()
            elif self._timing.may_work_ahead():
                await wait_within(self.progress.changed, self._timing.spare_s)
            else:
                await self.progress.changed.wait()

    async def _hand_in(self) -> bool:
        """Try to hand in what is signed; False: the log is away, and the person leaves, or the run is over."""
        attempt = await self.submitter.hand_in()
        is_away = attempt.result is HandInResult.AWAY
        if is_away and self.ended:
            return False
        if is_away or attempt.is_answered:
            self._operator_notice.show_away(is_away)
        if is_away and self.progress.leaving.is_set():
            self.context.live_status.say("the log cannot be reached: what is trained is kept, and is handed in at the next start")
            return False
        if attempt.brought is not None:
            self._distribution.own(attempt.brought.contribution, attempt.brought.inclusion_promise, attempt.brought.blob)
            self.context.live_status.add(bytes_handed_in=attempt.brought.blob.size_bytes if attempt.is_answered else 0)
        if attempt.result in (HandInResult.REFUSED, HandInResult.LEFT):
            show_lost(self.context.live_status, attempt, dict(self.machine.dropped))
        if attempt.result is HandInResult.REFUSED:
            self._credit.ask()
        if attempt.result in (HandInResult.AGAIN, HandInResult.AWAY):
            await self.submitter.pause()
        return True

    async def _held(self, *, is_last: bool = False) -> None:
        """Let features see the held state, before this peer trains on it, and at the run's end."""
        held = self.machine.held
        if held is not None and not self.progress.leaving.is_set():
            await self.features.on_held(held.round, self.states.held.parameters, is_last=is_last)

    async def _watch_absences(self) -> None:
        """After each absence of this computer go on anew: rounds went by without it, and it may be on another network now."""
        absences = Absences()
        while True:
            absent_s = await absences.next_return()
            self.context.live_status.say(f"this computer stood still for {absent_s:.0f} s; going on with the newest round")
            self._subscriber.wake()
            self._others.announcer.network_changed()
