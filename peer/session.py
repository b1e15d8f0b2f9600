"""A peer's life in a run: train lots, seal a contribution, hand it in, learn of the commit, fetch what leads there, again.

``protocol.rounds.RoundMachine`` decides what each event means; here are the clock, the disk and the network, in ``peer.sync.states`` the
tensors, in ``peer.sync.news`` the commits.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from manta_swarm.automl.training.course import RunCourse
from manta_swarm.codec.coding import group_sizes
from manta_swarm.codec.vectors import vector_group_sizes
from manta_swarm.network import waits
from manta_swarm.network.blobs import Shelf
from manta_swarm.network.log_client import Commitment, LogClient, Told
from manta_swarm.network.rpc import OwnNode
from manta_swarm.network.wrong_group import Measure
from manta_swarm.peer.cohort.cohort import Cohort
from manta_swarm.peer.cohort.company import Choice
from manta_swarm.peer.contact.operators_word import OperatorsWord
from manta_swarm.peer.contact.others import Others
from manta_swarm.peer.context import ClaimTerms, Progress, RunContext
from manta_swarm.peer.credit.credit import Credit
from manta_swarm.peer.faults import verdict
from manta_swarm.peer.features.audit.auditor import Known
from manta_swarm.peer.features.audit.evidence import Evidence
from manta_swarm.peer.features.gateway.desk import GatewayDesk
from manta_swarm.peer.features.gateway.payroll import Payroll
from manta_swarm.peer.features.private.measuring import Measuring
from manta_swarm.peer.features.private.noise import Noise
from manta_swarm.peer.limits.absence import Absences
from manta_swarm.peer.status import YOU, StatusBoard
from manta_swarm.peer.store import VECTORS, PeerStore
from manta_swarm.peer.submit.attempts import Result
from manta_swarm.peer.submit.commits import NewestCommits
from manta_swarm.peer.submit.promises import Finding, Listed, NewCommit, Promises
from manta_swarm.peer.submit.shown import show_commit, show_lost, show_outcome
from manta_swarm.peer.submit.submitter import Submitter
from manta_swarm.peer.sync.catching_up import CatchingUp
from manta_swarm.peer.sync.check import Checker
from manta_swarm.peer.sync.heads import Heads
from manta_swarm.peer.sync.news import Ear
from manta_swarm.peer.sync.one_history import OneHistory
from manta_swarm.peer.sync.spread import Spread
from manta_swarm.peer.sync.states import States
from manta_swarm.peer.train.base_work import BaseWork
from manta_swarm.peer.train.seating import Seating
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.peer.train.work import ComputeThread, nobody, now_ms
from manta_swarm.peer.train.workbench import Workbench
from manta_swarm.peer.workers.crew import Crew
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.reputation import Fault
from manta_swarm.protocol.rounds import Phase, RoundMachine
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.tasks import unless, within

_ASKED_ROUNDS = 3  # until a peer that leaves knows what audits want: what is left of the present one, the next one, and their closing
_BY_YOU = {YOU: "by you"}

logger = logging.getLogger("manta.peer")


class PeerLoop:
    """One peer in one run."""

    def __init__(
        self,
        node: OwnNode,
        identity: Identity,
        signed: SignedManifest,
        crew: Crew,
        cohort: str,
        store: PeerStore,
        board: StatusBoard,
        shelf: Shelf,
        compute: ComputeThread,
        token: bytes | None = None,
        measuring: Measuring | None = None,
        choice: Choice = Choice.LABEL,
        noise: Noise | None = None,
        gateway: GatewayDesk | None = None,
        sizing: Sizing | None = None,
        shards: int = 0,
        payout: PublicKey | None = None,
        *,
        partner: Callable[[], bytes] = nobody,
        trains: bool = True,
    ) -> None:
        """Prepare; ``run`` does the rest, and ends ``crew`` and ``compute``.

        ``token`` is what the members of the cohort share; without one this peer is alone. ``choice`` says what decides which cohort
        it is of. ``measuring`` and ``noise`` are for data of its own; who adds noise has to be alone. With a ``gateway`` it founds rosters
        of light contributors, and of nobody else. ``sizing`` is for model-parallel: without one all architectures are for this peer.
        ``shards`` is what its claims say (``Claim.shards``), and what ``partner`` returns (``Claim.partner``). Their credit adds up
        to ``payout``; None: to its own key.
        One that does not train follows the run's commits, and stays beyond the last one until it is told to leave.
        """
        self.manifest: Manifest = signed.open()
        self.course = RunCourse(self.manifest)
        self.node = node
        self.identity = identity
        self.run_id = signed.run
        self.log = LogClient(node, self.manifest, self.run_id)
        terms = ClaimTerms(payout or identity.public_key, shards, partner)
        self.context = RunContext(
            node, identity, signed, self.manifest, self.course, crew.num_weights, self.log, store, board, shelf, compute, terms
        )
        self.progress = Progress(RoundMachine(self.manifest, self.run_id, identity.public_key, self.course))
        self.machine = self.progress.machine
        self._board = board
        self._shelf = shelf
        self._pace = self.progress.pace
        self._others = Others(
            node,
            self.log.line,
            identity,
            self.manifest,
            self.course,
            self.run_id,
            choice,
            cohort,
            token,
            sizing,
            store,
            board,
            round=self.held_round,
        )
        self._compute = compute
        self._crew = crew
        count = crew.num_weights
        self._spread = Spread(
            node,
            self.log,
            self.manifest,
            self.run_id,
            shelf,
            self._others.neighbours,
            group_sizes(self.manifest.exchange.codec, count),
            sum(vector_group_sizes(count)),
        )
        self._states = States(shelf, self._spread, self.manifest, self.course, count, self._compute)
        self._checker = Checker(
            node,
            signed,
            Measure(count, self.course.coverage),
            shelf,
            store.directory / "proofs",
            weighed=self._spread.weighed,
            sources=self._spread.sources,
            on_wrong=self._spread.distrust,
        )
        crew.watch(self._crew_changed, board.say)
        if gateway is not None:
            gateway.payroll = Payroll(self.log, gateway.has_claim_of, is_audited=self.manifest.is_audited)
        promises = Promises(self.log)
        self._evidence = Evidence.of(
            node,
            self.log.line,
            self.manifest,
            count,
            store.run_path(self.run_id),
            store.run_path(self.run_id) / VECTORS,
            board,
            has_light=gateway is not None,
            newest=lambda: self.machine.newest.round,
            is_looked_for=promises.is_looking_for,
        )
        if gateway is not None:
            gateway.evidence = self._evidence
        self._bench = Workbench(
            self.manifest,
            self.course,
            self.run_id,
            identity,
            crew,
            compute,
            self.machine,
            self._pace,
            noise,
            sizing,
            self._evidence,
            shards,
            payout,
            partner,
        )
        self._submitter = Submitter(self.context, self.progress, promises, self._states, self._evidence)
        self._gateway = gateway
        self.trains = trains
        self._changed, self._leaving = self.progress.changed, self.progress.leaving
        self._word = OperatorsWord(self.log, board, self._run_is_over)
        self.on_commit: Callable[[], None] = lambda: None  # is called at each that becomes the newest
        self.guilty: Fault | None = None  # audits found it so
        lap = self.progress.lap
        self._newest = NewestCommits(self.manifest)
        self._credit = Credit(
            signed,
            self.course,
            identity.public_key,
            self.log,
            store,
            board,
            mean_bytes=sum(vector_group_sizes(count)),
            commitment=self._newest.commitment,
            on_guilty=self._found_guilty,
        )
        self._catching_up = CatchingUp(
            self.manifest, self.machine, self._states, self._newest, self._checker, measuring, board, lap, self._changed, self._leaving
        )
        seating = Seating(self.context, self.progress, self._states, self._submitter, self._others.cohort, gateway)
        self._work = BaseWork(
            self.manifest,
            self.course.plan,
            self.machine,
            self._states,
            crew,
            self._bench,
            self._others.company,
            seating,
            self._submitter,
            self._pace,
            noise,
            board,
            lap,
            self._changed,
            self._leaving,
            self.leave,
        )
        heads = Heads(self.log, signed, store, board, known=self._newest.commitment)
        self._one_history = OneHistory(node, self.run_id, self.log, self._others.neighbours, heads, store, self._newest.commitment)
        self._ear = Ear(
            node,
            self.log,
            self._others.neighbours,
            heads,
            round=lambda: self.machine.newest.round,
            left_ms=lambda: self._pace.left_ms(now_ms()),
            take=self._take,
            show=self._word.show_away,
            far_ahead=self._one_history.look_soon,
            trains=trains,
        )

    # What the log says.

    def _take(self, told: Told) -> None:
        """Take note of what the log, or a neighbour, says of where the run stands.

        Raises:
            LedgerError: it contradicts a commit known before.
        """
        commit, findings = self._submitter.take(told)
        if (left_ms := self._left_ms(told, commit)) > 0:
            self._pace.opened(now_ms(), left_ms)
            self._spread.headers_open(self.machine.round, left_ms)
        for finding in findings:
            self._found(finding)
        if commit is not None and told.commitment is not None:
            self._committed(commit, told.commitment)

    def _left_ms(self, told: Told, commit: NewCommit | None) -> int:
        """Return for how long headers of the round after the newest commit may still come, as that says; 0: it does not say it."""
        entry = None if told.commitment is None else told.commitment.proven.round
        if entry is not None and entry.round != self.machine.newest.round:
            return 0
        if commit is not None and not told.left_ms and not told.is_from_log:
            return commit.entry.open_ms  # a neighbour told: it came a moment ago
        return told.left_ms

    def _committed(self, commit: NewCommit, commitment: Commitment) -> None:
        """A commit is the newest one."""
        self._newest.add(commitment)
        self._spread.committed(commit.entry)
        self.progress.lap.mark("wait")
        logger.info("round over round=%d %s", commit.entry.round, self.progress.lap.line())
        show_commit(self._board, commit, dict(self.machine.dropped))
        self._checker.committed(commit.entry)
        if self._evidence is not None:
            self._evidence.committed()
        self.on_commit()
        self._look_again()

    def _found(self, finding: Finding) -> None:
        """Something was found out of this peer's contributions."""
        if isinstance(finding, Listed):
            if self._evidence is not None:
                self._evidence.listed(finding.round, finding.contribution, finding.base)
            return
        show_outcome(self._board, finding)
        if finding.is_counted:
            self._credit.counted(finding.round, finding.sealed.header.claims[0], finding.found)
            if self._gateway is not None and self._gateway.payroll is not None:
                self._gateway.payroll.counted(finding.round, finding.found)

    async def _find(self) -> None:
        """Pass on what asking the log finds out of this peer's contributions, until this is cancelled."""
        while True:
            self._found(await self._submitter.next_finding())

    def _look_again(self) -> None:
        """What decides what this peer does has changed."""
        self._changed.set()
        self._bench.look_again()

    def _crew_changed(self) -> None:
        self._bench.look_again()
        if self._board.status.workers != (there := len(self._crew.present())):
            self._board.update(workers=there)
            self._board.write()

    # The person's side.

    def leave(self) -> None:
        """Hand in what is trained, then end."""
        self._leaving.set()
        if self._gateway is not None:
            self._gateway.leave()
        self._look_again()

    async def pause(self, why: Mapping[str, str] = _BY_YOU) -> None:
        """Compute nothing until ``resume``; what is done is handed in. Returns once the workers' memory is free. ``why``: in words."""
        if not self._crew.is_paused:
            await self._crew.pause()
        self._board.pause(why)
        self._look_again()

    async def resume(self) -> None:
        """Go on after ``pause``."""
        await self._crew.resume()
        self._board.pause({})
        self._look_again()

    def rest(self, duty: int) -> None:
        """Reckon with workers that compute so many hundredths of the time."""
        self._pace.duty = duty / 100

    @property
    def ended(self) -> str:
        """Return how the operators ended this run for good, in words; nothing where they did not."""
        return self._word.ended

    @property
    def near(self) -> Cohort:
        """This peer's part in its cohort."""
        return self._others.cohort

    def held_round(self) -> int:
        """Return the round whose state is held; 0 before there is one."""
        return 0 if self.machine.held is None else self.machine.held.round

    def clock(self) -> tuple[float | None, int]:
        """Return for how many ms headers may still come in this round, None where that is not known, and how long it is open in all."""
        left_ms = self._pace.left_ms(now_ms())
        return (max(0.0, left_ms) if math.isfinite(left_ms) else None), self._open_ms

    @property
    def known(self) -> Known:
        """What audits of others need of what this peer knows."""
        return Known(lambda: self.machine.newest.round, self.is_finished, self._states.parameters, self._states.body)

    def is_finished(self) -> bool:
        """Return whether the log has the last round."""
        return self.machine.newest.round >= self.manifest.num_rounds

    @property
    def num_weights(self) -> int:
        """N, of the supernet."""
        return self._crew.num_weights

    async def run(self) -> None:
        """Take part until the run is finished, or ``leave`` was called and what was trained has a ticket."""
        await self._shelf.serve(self.node)
        await self._ear.start()
        await self._one_history.start()
        if self._evidence is not None:
            await self._evidence.serve()
        await self._spread.start()
        await self._others.start()
        await self._word.hear(self.node)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            background = [tasks.create_task(self.node.watch_daemon())]
            try:
                await self._crew.start()
                self._crew_changed()
                await unless(self._leaving, self._one_history.telling(self._ear.first_look))
                if self._leaving.is_set():
                    return
                background.append(meeting := tasks.create_task(self._others.presence.meet()))
                background += [
                    tasks.create_task(watch)
                    for watch in (
                        self._others.presence.watch(),
                        self._one_history.telling(self._ear.listen),
                        self._one_history.telling(self._one_history.watch),
                        Absences(self._returned).watch(),
                        self._find(),
                    )
                ]
                self._credit.ask()
                await self._submitter.take_up()  # only now: what is too old may have counted long ago
                if self._evidence is not None:
                    background.append(tasks.create_task(self._evidence.run()))
                await self._rounds()
                for finding in await self._submitter.settle():  # a neighbour may have told of the last commit before the log did
                    self._found(finding)
                await self._credit.settle()
                await self._bring_last(meeting)
                for task in background:
                    task.cancel()
                await self._others.presence.withdraw()
            finally:
                for task in background:
                    task.cancel()
                self._catching_up.stop()
                await self._submitter.close()
                await self._credit.close()
                if self._gateway is not None and self._gateway.payroll is not None:
                    await self._gateway.payroll.close()
                if self._gateway is not None:
                    self._gateway.close()
                await self._others.cohort.close()
                await self._spread.close()
                await self._ear.close()
                await self._crew.close()
                self._compute.close()

    async def _bring_last(self, meeting: "asyncio.Task[None]") -> None:
        """Stay until audits could ask for what was handed in, and bring it; a second Ctrl-C ends that, as anything."""
        if self._evidence is None or self.guilty is not None or self.ended or self._word.is_away:
            return
        meeting.cancel()
        await self._others.presence.leave_cohort()
        least_s, most_s = waits.BROUGHT_S
        limit_s, num_rounds = min(most_s, least_s + _ASKED_ROUNDS * self._open_ms / 1000), self.manifest.num_rounds
        if self._leaving.is_set() and self._evidence.is_waiting:
            words = "it stays until audits could ask for what that rests on"
            self._board.say(f"handed in; {words}, {limit_s:.0f} s at most (Ctrl-C: leave now)")
        if not await self._evidence.finish(limit_s, num_rounds):
            self._board.say(
                "audits may still ask for what it handed in last: if they do, that is paid only if this peer is here again soon"
            )

    def _run_is_over(self) -> None:
        self.leave()

    def _found_guilty(self, fault: Fault) -> None:
        """Audits found this peer guilty: what it does counts no more, so it leaves."""
        if self.guilty is None:
            self.guilty = fault
            line = verdict(fault)
            self._board.update(verdict=line)
            self._board.say(line)
            self.leave()

    async def _rounds(self) -> None:
        while True:
            self._changed.clear()
            phase = self.machine.phase
            self._board.update(phase=phase.value)
            if phase is Phase.SEALED:
                if not await self._hand_in():
                    return
            elif phase is Phase.FINISHED:
                await self._catching_up.measure(is_last=True)
                self._board.update(finished=True)
                if not self.trains:
                    await self._leaving.wait()
                if self._gateway is not None:
                    self._gateway.finish()
                return
            elif self._leaving.is_set():
                return
            elif phase is Phase.BEHIND:
                await self._catching_up.catch_up(self._tasks)
            elif self._crew.is_paused or not self.trains:
                await self._changed.wait()
            elif phase is Phase.WORKING or self._work.works_ahead():
                await self._catching_up.measure()
                await self._work.work()
            elif self._work.may_work_ahead():
                await within(self._changed, (self._pace.left_ms(now_ms()) - self._pace.lot_ms) / 1000)
            else:
                await self._changed.wait()

    async def _hand_in(self) -> bool:
        """Try to hand in what is sealed; False: the log is away, and the person leaves, or the run is over."""
        attempt = await self._submitter.hand_in()
        is_away = attempt.result is Result.AWAY
        if is_away and self.ended:
            return False
        if is_away or attempt.is_answered:
            self._word.show_away(is_away)
        if is_away and self._leaving.is_set():
            self._board.say("the log cannot be reached: what is trained is kept, and is handed in at the next start")
            return False
        if attempt.brought is not None:
            self._spread.own(attempt.brought.contribution, attempt.brought.ticket, attempt.brought.blob)
            self._board.add(bytes_handed_in=attempt.brought.bytes_sent)
        if attempt.result in (Result.REFUSED, Result.LEFT):
            show_lost(self._board, attempt, dict(self.machine.dropped))
        if attempt.result is Result.REFUSED:
            self._credit.ask()
        if attempt.result in (Result.AGAIN, Result.AWAY):
            await self._submitter.pause()
        return True

    @property
    def _open_ms(self) -> int:
        """How long the round after the newest commit is open."""
        return self.progress.open_ms(self.manifest)

    def _returned(self, absent_s: float) -> None:
        """This computer was away for a while: rounds went by without it, and it may be on another network now."""
        self._board.say(f"this computer stood still for {absent_s:.0f} s; going on with the newest round")
        self._ear.wake()
        self._others.presence.network_changed()
