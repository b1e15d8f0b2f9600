"""A peer's life in a run: train lots, seal a contribution, hand it in, learn of the commit, fetch what leads there, again.

``protocol.rounds.RoundMachine`` decides what each event means; here are the clock, the disk and the network, in ``peer.states`` the
tensors, in ``peer.news`` the commits.
"""

import asyncio
import logging
import math
from collections.abc import Mapping

from automl.training.course import RunCourse
from exact.coding import group_sizes
from exact.vectors import vector_group_sizes
from peer.absence import Absences
from peer.check import Checker
from peer.cohort import Cohort, Seat
from peer.commits import Commits
from peer.company import Choice, Company
from peer.crew import Crew
from peer.delivery import LAST_PART, Delivery, open_ms
from peer.gateway_desk import NOTHING_LENT, GatewayDesk, Lent
from peer.handing import Handing
from peer.heads import Heads
from peer.measuring import Measuring
from peer.news import Ear
from peer.noise import Noise
from peer.presence import Presence
from peer.residuals import Residuals
from peer.sizing import Sizing
from peer.spread import Spread
from peer.states import States
from peer.status import YOU, StatusBoard
from peer.store import PeerStore
from peer.work import ComputeThread, Lap, now_ms
from peer.workbench import Workbench
from protocol.cohorts import AFFINITY, Group, meeting_secret
from protocol.errors import MantaError, Unreachable
from protocol.exchange import codec_named, grace_ms
from protocol.pace import Pace
from protocol.records import Manifest, Round, SignedManifest
from protocol.rounds import Phase, RoundMachine, Standing
from protocol.signing import Identity, PublicKey
from swarm import waits
from swarm.blobs import Shelf
from swarm.distances import Distances, serve_pings
from swarm.farewells import Farewell, hear_farewells
from swarm.host import host_digest
from swarm.lan import LocalNetwork
from swarm.log_client import LogClient
from swarm.neighbours import Neighbours
from swarm.rpc import OwnNode
from swarm.tasks import unless, within
from swarm.wrong_group import Measure

_LEASE_AGAIN_S = 1.0  # a gateway that only leases, to which nothing came back: until it begins again
_BY_YOU = {YOU: "by you"}
_NO_LOG = "the run's log, which cannot be reached; nothing is lost"

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
    ) -> None:
        """Prepare; ``run`` does the rest, and ends ``crew`` and ``compute``.

        ``token`` is what the members of the cohort share; without one this peer is alone. ``choice`` says what decides which cohort
        it is of. ``measuring`` and ``noise`` are for data of its own; who adds noise has to be alone. With a ``gateway`` it founds rosters
        of light contributors, and of nobody else. ``sizing`` is for model-parallel: without one all architectures are for this peer.
        """
        self.manifest: Manifest = signed.open()
        self.course = RunCourse(self.manifest)
        self.plan = self.course.plan
        self.node = node
        self.identity = identity
        self.run_id = signed.run
        self.machine = RoundMachine(self.manifest, self.run_id, identity.public_key, self.course)
        self.log = LogClient(node, self.manifest, self.run_id)
        self._board = board
        self._shelf = shelf
        self._pace = Pace()
        secret = b"" if token is None else meeting_secret(token, self.run_id)
        self._neighbours = Neighbours(node, self.run_id, is_near=lambda key: key in self._cohort.mates(), secret=secret)
        self._compute = compute
        self._crew = crew
        self._measuring = measuring
        self._noise = noise
        count = crew.num_weights
        self._spread = Spread(
            node,
            self.log,
            self.manifest,
            self.run_id,
            shelf,
            self._neighbours,
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
            table=self._spread.table,
            sources=self._spread.sources,
            on_wrong=self._spread.distrust,
        )
        crew.watch(self._crew_changed, board.say)
        self._bench = Workbench(self.manifest, self.course, identity.public_key, crew, compute, self.machine, self._pace, noise, sizing)
        self._residuals = Residuals(store, self.run_id, count, self.course.sorts_after)
        self._handing = Handing(
            self.manifest,
            self.run_id,
            identity,
            self.machine,
            self.log,
            store,
            self._residuals,
            self._compute,
            self._spread,
            self._states.keep_body,
        )
        distances = Distances(node, self._neighbours, self.manifest.operators, host_digest(self.run_id))
        self._company = Company(identity.public_key, choice, cohort, self._neighbours, distances, self.log.operator, sizing)
        proven = AFFINITY if choice is Choice.AFFINITY else cohort
        self._cohort = Cohort(
            node, identity, self.manifest, self.run_id, proven, token, self._neighbours, group=lambda: self._company.group
        )
        self._gateway = gateway
        self._is_lease_only = gateway is not None and gateway.is_lease_only
        self._presence = Presence(
            node,
            self.log.operator,
            self._company,
            self._cohort,
            self._neighbours,
            None if token is None else LocalNetwork(node, self.run_id, secret, proven),
            store,
            board,
            round=lambda: 0 if self.machine.held is None else self.machine.held.round,
        )
        self._checking: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # a commit came, or the person wants to leave
        self._leaving = asyncio.Event()
        self._lap = Lap()
        self._commits = Commits(
            self.manifest, self.log, self.machine, self._pace, self._spread, self._residuals, board, self._lap, on_news=self._on_news
        )
        self._delivery = Delivery(
            self.manifest,
            self.machine,
            self._handing,
            self._residuals,
            self._commits,
            self._pace,
            board,
            self._lap,
            self._changed,
            self._leaving,
            self._show_log,
        )
        self._ear = Ear(
            node,
            self.log,
            self._neighbours,
            Heads(self.log, signed, store, board, known=self._commits.commitment),
            round=lambda: self.machine.newest.round,
            left_ms=lambda: self._pace.left_ms(now_ms()),
            take=self._commits.take,
            show=self._show_log,
        )

    def _on_news(self, entry: Round) -> None:
        self._checker.committed(entry)
        self._look_again()

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
    def near(self) -> Cohort:
        """This peer's part in its cohort."""
        return self._cohort

    def clock(self) -> tuple[float | None, int]:
        """Return for how many ms headers may still come in this round, None where that is not known, and how long it is open in all."""
        left_ms = self._pace.left_ms(now_ms())
        return (max(0.0, left_ms) if math.isfinite(left_ms) else None), self._open_ms

    def mates(self) -> tuple[PublicKey, ...]:
        """Return the members of this peer's cohort who are there, but for itself."""
        return self._cohort.mates()

    async def run(self) -> None:
        """Take part until the run is finished, or ``leave`` was called and what was trained has a ticket."""
        await self._shelf.serve(self.node)
        await self._ear.start()
        await serve_pings(self.node)
        await self._cohort.start()
        await self._spread.start()
        await self._presence.start()
        await hear_farewells(self.node, self.log.operator, self.run_id, self._log_stops)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            background = [tasks.create_task(self.node.watch_daemon())]
            try:
                await self._crew.start()
                self._crew_changed()
                await unless(self._leaving, self._ear.first_look())
                if self._leaving.is_set():
                    return
                background += [
                    tasks.create_task(watch)
                    for watch in (
                        self._presence.meet(),
                        self._presence.watch(),
                        self._ear.listen(),
                        Absences(self._returned).watch(),
                    )
                ]
                self._handing.take_up(self._bench.num_weights)  # only now: what is too old may have counted long ago
                await self._rounds()
                await self._commits.promises.settle()  # a neighbour may have told of the last commit before the log did
                for task in background:
                    task.cancel()
                await self._presence.withdraw()
            finally:
                for task in (*background, *self._checking):
                    task.cancel()
                await self._commits.close()
                if self._gateway is not None:
                    self._gateway.close()
                await self._cohort.close()
                await self._spread.close()
                await self._ear.close()
                await self._crew.close()
                self._compute.close()

    def _log_stops(self, farewell: Farewell) -> None:
        """The log says that it stops: for a while, or for good."""
        reason = f": {farewell.reason}" if farewell.reason else ""
        if farewell.is_over:
            self._board.say(f"the operator ends this run{reason}")
            self.leave()
        else:
            self._board.say(f"the operator stops the run's log for a while{reason}; it is waited for, and nothing is lost")

    def _show_log(self, is_away: bool) -> None:
        """Show whether the log is waited for; what else is waited for stays as it is."""
        if is_away:
            self._board.update(waiting_for=_NO_LOG)
        elif self._board.status.waiting_for == _NO_LOG:
            self._board.update(waiting_for="")

    async def _rounds(self) -> None:
        while True:
            self._changed.clear()
            phase = self.machine.phase
            self._board.update(phase=phase.value)
            if phase is Phase.SEALED:
                if not await self._delivery.hand_in():
                    return
            elif phase is Phase.FINISHED:
                await self._measure(is_last=True)
                self._board.update(finished=True)
                if self._gateway is not None:
                    self._gateway.finish()
                return
            elif self._leaving.is_set():
                return
            elif phase is Phase.BEHIND:
                await self._catch_up()
            elif self._crew.is_paused:
                await self._changed.wait()
            elif phase is Phase.WORKING or self._works_ahead():
                await self._measure()
                await self._work()
            elif self._may_work_ahead():
                await within(self._changed, (self._pace.left_ms(now_ms()) - self._pace.lot_ms) / 1000)
            else:
                await self._changed.wait()

    def _works_ahead(self) -> bool:
        """With an older contribution in this round, work on the newest base may begin if it is not done before the commit anyway."""
        return self._may_work_ahead() and self._pace.lot_ms >= self._pace.left_ms(now_ms())

    def _may_work_ahead(self) -> bool:
        """Only where a round has no time for two lots. Whoever is faster waits for the commit, and then has a whole round:
        a lot begun near the deadline would be late again, and so on in every round, one lot in each.
        """
        return self.machine.may_work_ahead and 2 * self._pace.lot_ms > self._open_ms

    @property
    def _open_ms(self) -> int:
        """How long the round after the newest commit is open."""
        return open_ms(self.machine, self.manifest)

    def _returned(self, absent_s: float) -> None:
        """This computer was away for a while: rounds went by without it, and it may be on another network now."""
        self._board.say(f"this computer stood still for {absent_s:.0f} s; going on with the newest round")
        self._ear.wake()
        self._presence.network_changed()

    # Joining and catching up.

    async def _catch_up(self) -> None:
        """Fetch what leads to the newest commit, or a step towards it, check it, and make it the state."""
        target = self._states.next_stop(self.machine.path, self.machine.held, self._commits.floors)
        started_ms = now_ms()
        try:
            mean = await unless(self._leaving, self._states.reach(target, self.machine.held, self._commits.floors))
        except Unreachable as error:
            logger.info("catching up failed round=%d reason=%s", target.round, error)
            if target is not self.machine.missing:
                return  # there is the newest one's state as well
            self._board.update(waiting_for=f"somebody who has the state of round {target.round}")
            await within(self._changed, waits.LOG_AGAIN_S[0])
            return
        if self._leaving.is_set():
            return
        self._lap.mark("fetch")
        commitment = self._commits.commitment(target.round)
        if mean is not None and commitment is not None and self._checker.wants(commitment.proven.round):
            self._checking.add(check := self._tasks.create_task(self._checker.check(commitment.receipt, commitment.proven, mean)))
            check.add_done_callback(self._checking.discard)
        first = self.machine.held is None
        self.machine.caught_up(target.state, took_long=2 * (now_ms() - started_ms) > self._open_ms)
        self._board.update(waiting_for="", phase=self.machine.phase.value, round=target.round, state=target.state.hex())
        self._board.write()
        if first:
            self._board.update(joined_at_round=target.round)
            self._board.say(f"state fetched and checked round={target.round} state={target.state.hex()[:12]}")

    async def _measure(self, *, is_last: bool = False) -> None:
        """See how good the held state is on images of this peer's own, where it has some, every so often and at the end."""
        held = self.machine.held
        if self._measuring is not None and held is not None and not self._leaving.is_set():
            await self._measuring.measure(held.round, self._states.held.parameters, is_last=is_last)

    # A round.

    async def _work(self) -> None:
        """Train lots until it is time to hand in, or a commit came; then seal what there is."""
        base = self.machine.held
        assert base is not None
        if self._noise is not None and self._noise.is_spent:
            self._board.say(f"nothing more is handed in: {self._noise.line()}, and once more would be beyond --private-epsilon")
            self.leave()
            return
        if not await self._load_weights(base):
            return
        self._bench.begin(base)
        group = self._company.group  # for all of this work, whatever it will be by its end
        seat = asyncio.create_task(self._take_seat(base, group))
        try:
            if self._is_lease_only and not await self._has_something_back(seat):
                await within(self._changed, _LEASE_AGAIN_S)
                return
            done = await self._bench.train(base, self._states.held, group.name, seat, self._may_start_lot)
        finally:
            seat.cancel()
        if done is None and seat.done() and not seat.cancelled():
            seat.result().close("it has nothing to hand in")
        self._lap.mark("train")
        if self._noise is not None:
            self._board.update(epsilon=self._noise.epsilon)
            self._board.write()
        self._board.status.samples_lost += self._bench.take_dropped()
        if done is None:
            self._board.status.samples_lost += self.machine.discard()
        elif await self._is_through() and self.machine.samples:
            await self._delivery.seal(*done)

    async def _take_seat(self, base: Standing, group: Group) -> Seat:
        """Return this peer's place in its cohort for the work on a base; work that is done ahead is done alone."""
        if self.machine.phase is not Phase.WORKING or base.round < self.machine.newest.round:
            return Seat(self.identity.public_key)
        # Of the time that is left members keep a part for handing in alone, and the founder what it needs to hand in for them.
        took_ms = self._handing.took_ms
        kept_ms = self._open_ms / LAST_PART + (self._open_ms / LAST_PART if took_ms is None else took_ms)
        left_ms = self._pace.left_ms(now_ms())
        if self._gateway is not None:
            next_ms = max(left_ms, 0.0) + grace_ms(self._open_ms)
            return await self._gateway.convene(
                base, self._states.held, group.name, await self._lent(), self._compute, left_ms=left_ms - kept_ms, next_ms=next_ms
            )
        return await self._cohort.convene(base, self._pace.lot_ms, left_ms - kept_ms, group)

    async def _has_something_back(self, seat: "asyncio.Task[Seat]") -> bool:
        """See ``GatewayDesk.has_something_back``; False also where something else is to be done first."""
        assert self._gateway is not None
        return bool(await unless(self._changed, self._gateway.has_something_back(seat)))

    async def _lent(self) -> Lent:
        """Return the residual that the log left to this peer's light contributors too; none where that is not known by now."""
        if not codec_named(self.manifest.exchange.codec).is_sparse or not await self._commits.take_residual():
            return NOTHING_LENT
        return Lent(self._residuals.held(self.machine.newest.round), self._residuals.left_by)

    async def _is_through(self) -> bool:
        """Wait for the commit of the contribution before the work that is done ahead of it; False: the person leaves before it comes."""
        while self.machine.samples and self.machine.sealed is not None:
            self._changed.clear()
            if not self._leaving.is_set():
                await self._changed.wait()
                continue
            left_ms = max(0, round(self._pace.left_ms(now_ms())))
            await within(self._changed, waits.news_s(left_ms, grace_ms(self.manifest.exchange.max_open_ms)))
            if not self._changed.is_set():
                self._board.status.samples_lost += self.machine.discard()
                return False
        return True

    def _may_start_lot(self, step: int, lots: int, ends: float | None, worker: int) -> bool:
        """Return whether a worker is to start another lot of a local step; steps that were begun are finished, with a lot each at least."""
        machine, is_leaving = self.machine, self._leaving.is_set()
        if step and not lots:
            return machine.samples > 0 and not (is_leaving and not self._crew.present())
        if is_leaving or self._crew.is_paused or machine.is_overdue or not (machine.phase is Phase.WORKING or self._works_ahead()):
            return False
        if lots and self._is_lease_only:
            return False
        is_awaited = self._commits.listed_in == machine.newest.round > 0
        return self._pace.may_start_lot(
            now_ms(),
            lots,
            is_awaited=is_awaited,
            step=step,
            steps=self.manifest.exchange.local_steps,
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
            self._board.update(waiting_for=f"somebody who has the teacher, the state of round {self.plan.teacher_round}")
            await within(self._changed, waits.LOG_AGAIN_S[0])
            return False
        if self._leaving.is_set():
            return False
        self._board.update(waiting_for="", teacher=teacher[0].hex() if teacher else "")
        await self._bench.load(base.state, self._states.held, teacher[1] if teacher else None)
        return True
