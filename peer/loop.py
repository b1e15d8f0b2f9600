"""A peer's life in a run: train lots, seal a contribution, hand it in, learn of the commit, fetch what leads there, again.

``protocol.rounds.RoundMachine`` decides what each event means; here are the clock, the disk and the network, in ``peer.states`` the
tensors, in ``peer.news`` the commits.
"""

import asyncio
import logging
import time

from automl.course import RunCourse
from automl.schedule import place_of_lot
from automl.training import Lot, Worker
from exact.coding import body_groups, parse
from peer.news import Ear
from peer.promises import Promises
from peer.states import States
from peer.status import StatusBoard
from peer.store import PeerStore
from peer.work import ComputeThread, Lap, Pile, made_of
from protocol.errors import MantaError, Unreachable
from protocol.exchange import grace_ms
from protocol.pace import Pace
from protocol.records import Manifest, Round, SignedManifest
from protocol.rounds import Phase, RoundMachine, Sealed, Standing
from protocol.signing import Identity, PublicKey
from swarm import waits
from swarm.blobs import Blob, Shelf
from swarm.log_client import HandedIn, LogClient, Told
from swarm.messages import HandIn
from swarm.neighbours import Neighbours
from swarm.rpc import OwnNode, Refused
from swarm.tasks import unless, within

_REFUSED_BEFORE_DROPPED = 2  # times that the log says no to a contribution
_KEPT_FLOORS = 8
_NO_LOG = "the run's log, which cannot be reached; nothing is lost"

logger = logging.getLogger("manta.peer")


def _now_ms() -> float:
    return time.monotonic_ns() / 1e6


class PeerLoop:
    """One peer in one run."""

    def __init__(
        self,
        node: OwnNode,
        identity: Identity,
        signed: SignedManifest,
        worker: Worker,
        cohort: str,
        store: PeerStore,
        board: StatusBoard,
        shelf: Shelf,
    ) -> None:
        """Prepare; ``run`` does the rest."""
        self.manifest: Manifest = signed.open()
        self.course = RunCourse(self.manifest)
        self.plan = self.course.plan
        self.node = node
        self.identity = identity
        self.run_id = signed.run
        self.cohort = cohort
        self.machine = RoundMachine(self.manifest, self.run_id, identity.public_key, self.course)
        self.log = LogClient(node, self.manifest, self.run_id)
        self._worker = worker
        self._store = store
        self._board = board
        self._shelf = shelf
        self._pace = Pace()
        self._neighbours = Neighbours(node, self.run_id)
        self._ear = Ear(
            node,
            self.log,
            self._neighbours,
            round=lambda: self.machine.newest.round,
            left_ms=lambda: self._pace.left_ms(_now_ms()),
            take=self._take,
            show=self._show_log,
        )
        self._compute = ComputeThread()
        self._states = States(node, self.log, shelf, self.manifest, self.plan, worker.num_weights, self._compute)
        self._body: Blob | None = None  # of the sealed contribution
        self._floors: dict[int, int] = {0: self.manifest.exchange.first_floor}  # by round, of the newest commits
        self._sealing_ms: float | None = None  # when that began, until it has a ticket
        self._promises = Promises(self.log.row, self._kept, self._broken)
        self._listed_in = 0  # the newest round whose table is known to have this peer
        self._loaded: bytes | None = None  # digest of the state that the worker has
        self._changed = asyncio.Event()  # a commit came, or the person wants to leave
        self._leaving = asyncio.Event()
        self._lap = Lap()

    # The person's side.

    def leave(self) -> None:
        """Hand in what is trained, then end."""
        self._leaving.set()
        self._changed.set()

    async def run(self) -> None:
        """Take part until the run is finished, or ``leave`` was called and what was trained has a ticket."""
        await self._shelf.serve(self.node)
        await self._ear.start()
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self.node.watch_daemon())]
            try:
                await unless(self._leaving, self._ear.first_look())
                if self._leaving.is_set():
                    return
                background += [tasks.create_task(watch) for watch in (self._meet(), self._ear.listen())]
                self._take_up_sealed()  # only now: what is too old by now may have counted long ago, and is nobody's loss
                await self._rounds()
                await self._promises.settle()  # a neighbour may have told of the last commit before the log did
            finally:
                for task in background:
                    task.cancel()
                await self._promises.close()
                await self._ear.close()
                self._compute.close()

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
                if not await self._hand_in():
                    return
            elif phase is Phase.FINISHED:
                self._board.update(finished=True)
                return
            elif self._leaving.is_set():
                return
            elif phase is Phase.BEHIND:
                await self._catch_up()
            elif phase is Phase.WORKING or self._works_ahead():
                await self._work()
            elif self._may_work_ahead():
                await within(self._changed, (self._pace.left_ms(_now_ms()) - self._pace.lot_ms) / 1000)
            else:
                await self._changed.wait()

    def _works_ahead(self) -> bool:
        """With an older contribution in this round, work on the newest base may begin if it is not done before the commit anyway."""
        return self._may_work_ahead() and self._pace.lot_ms >= self._pace.left_ms(_now_ms())

    def _may_work_ahead(self) -> bool:
        """Only where a round has no time for two lots. Whoever is faster waits for the commit, and then has a whole round:
        a lot begun near the deadline would be late again, and so on in every round, one lot in each.
        """
        newest = self.machine.newest.entry
        open_ms = newest.open_ms if newest is not None else self.manifest.exchange.first_open_ms
        return self.machine.may_work_ahead and 2 * self._pace.lot_ms > open_ms

    # Joining and catching up.

    def _take_up_sealed(self) -> None:
        """Take up the contribution of an earlier life, if it is this run's and this key's."""
        kept = self._store.load_sealed(self.run_id)
        if kept is None or self.identity.public_key not in [signed.open().key for signed in kept.header.claims]:
            return  # the person may have a new identity
        codec, num_weights = self.manifest.exchange.codec, self._worker.num_weights
        blob = Blob.of(body_groups(codec, kept.body, num_weights))
        if blob.root == kept.header.contribution.open().body:
            self.machine.restore(kept.header)
            self._body = blob
            self._states.keep_body(blob, parse(codec, kept.body, num_weights))

    async def _meet(self) -> None:
        """Announce this peer, and look for others, again and again. The DHT may be away: a round needs none of it."""
        while True:
            held = self.machine.held
            try:
                await self._neighbours.announce(cohort=self.cohort, round_=held.round if held else 0)
                await self._neighbours.look()
            except MantaError as error:
                logger.info("no neighbours reason=%s", error)
            self._board.update(members=len(self._neighbours.members()) + 1)
            await asyncio.sleep(self._neighbours.period_s)

    async def _catch_up(self) -> None:
        """Fetch what leads to the newest commit, check it, and make it the state."""
        target = self.machine.missing
        assert target is not None
        try:
            await unless(self._leaving, self._states.reach(target, self.machine.held, self._floors, self._sources()))
        except Unreachable as error:
            logger.info("catching up failed round=%d reason=%s", target.round, error)
            self._board.update(waiting_for=f"somebody who has the state of round {target.round}")
            await within(self._changed, waits.LOG_AGAIN_S[0])
            return
        if self._leaving.is_set():
            return
        self._lap.mark("fetch")
        first = self.machine.held is None
        self.machine.caught_up(target.state)
        self._board.update(waiting_for="", phase=self.machine.phase.value, round=target.round, state=target.state.hex())
        self._board.write()
        if first:
            self._board.update(joined_at_round=target.round)
            self._board.say(f"state fetched and checked round={target.round} state={target.state.hex()[:12]}")

    def _sources(self) -> list[PublicKey]:
        """Return who may have the newest committed state, and the teacher: the log first, then some others."""
        return [self.log.operator, *self._neighbours.some(8)]

    # A round.

    async def _work(self) -> None:
        """Train lots until it is time to hand in, or a commit came; then seal what there is."""
        machine, manifest = self.machine, self.manifest
        base = machine.held
        assert base is not None
        if not await self._load_weights(base):
            return
        architectures = self.plan.architectures(base.round + 1, self.cohort)
        pile, index = Pile(self._worker.num_weights, architectures), 0
        most = manifest.exchange.max_claim_samples // manifest.lot_samples
        while self._may_start_lot(len(pile)) and len(pile) < most:
            machine.lot_started()
            place = place_of_lot(len(architectures), base.commit, self.identity.public_key, index)
            lot = Lot(manifest.seed, base.commit, 0, self.identity.public_key, index, architectures[place], manifest.lot_samples)
            index += 1
            started_ms = _now_ms()
            result = await self._compute.run(self._worker.train, lot)
            self._pace.lot_took(_now_ms() - started_ms)
            if not bool(result.gradient.isfinite().all()):
                logger.error("lot dropped: its gradient is not finite round=%d index=%d", base.round + 1, lot.index)
                machine.lot_trained(0)
            elif machine.lot_trained(result.samples):
                pile.add(lot, place, result)
            else:
                self._board.status.samples_lost += result.samples
        self._lap.mark("train")
        if await self._is_through() and machine.samples:
            await self._seal(base, pile)

    async def _is_through(self) -> bool:
        """Wait for the commit of the contribution before the work that is done ahead of it; False: the person leaves before it comes."""
        while self.machine.samples and self.machine.sealed is not None:
            self._changed.clear()
            if not self._leaving.is_set():
                await self._changed.wait()
                continue
            left_ms = max(0, round(self._pace.left_ms(_now_ms())))
            await within(self._changed, waits.news_s(left_ms, grace_ms(self.manifest.exchange.max_open_ms)))
            if not self._changed.is_set():
                self._board.status.samples_lost += self.machine.discard()
                return False
        return True

    def _may_start_lot(self, lots: int) -> bool:
        machine = self.machine
        if self._leaving.is_set() or machine.is_overdue or not (machine.phase is Phase.WORKING or self._works_ahead()):
            return False
        return self._pace.may_start_lot(_now_ms(), lots, is_awaited=self._listed_in == machine.newest.round > 0)

    async def _load_weights(self, base: Standing) -> bool:
        """Give the worker the held state, and its teacher where the round has one; False: the teacher could not be had, try again."""
        if self._loaded == base.state:
            return True
        try:
            teacher = await unless(self._leaving, self._states.teacher(self._sources()))
        except MantaError as error:
            logger.info("no teacher round=%d reason=%s", base.round + 1, error)
            self._board.update(waiting_for=f"somebody who has the teacher, the state of round {self.plan.teacher_round}")
            await within(self._changed, waits.LOG_AGAIN_S[0])
            return False
        if self._leaving.is_set():
            return False
        self._board.update(waiting_for="", teacher=teacher[0].hex() if teacher else "")
        await self._compute.run(self._worker.teach, teacher[1] if teacher else None)
        await self._compute.run(self._worker.load, self._states.held.parameters)
        self._loaded = base.state
        return True

    async def _seal(self, base: Standing, pile: Pile) -> None:
        """Make a contribution of the lots trained; durable when this returns, for nobody may see its header before that."""
        self._sealing_ms = _now_ms()
        made = await self._compute.run(
            made_of, pile, base, self.identity, self.run_id, self.cohort, codec=self.manifest.exchange.codec, lot_ms=self._pace.lot_ms
        )
        if made is None:
            logger.error("lots dropped: their sum is not finite round=%d", base.round + 1)
            self._board.status.samples_lost += self.machine.discard()
        elif self.machine.seal(made.header):
            self._body = made.blob
            self._states.keep_body(made.blob, made.body)
            self._board.status.loss = pile.loss
            await asyncio.to_thread(lambda: self._store.save_sealed(self.run_id, made.header, made.blob.join()))

    async def _hand_in(self) -> bool:
        """Hand the sealed contribution in until it has a ticket, is in a table, or can never be; False: the person leaves without it."""
        pause_s, refused = waits.HAND_IN_AGAIN_S[0], 0
        while (sealed := self.machine.sealed) is not None and self.machine.phase is Phase.SEALED:
            assert self._body is not None
            self._changed.clear()
            try:
                answer = await self.log.hand_in(sealed.header, self._body.pieces, self._header_in)
            except Refused as error:
                logger.info("header refused round=%d reason=%s", sealed.opened.round, error)
                refused += 1
                if refused >= _REFUSED_BEFORE_DROPPED:
                    self._drop(str(error))
                    return True
            except MantaError as error:  # it is away, or says what no log says
                logger.info("not handed in round=%d reason=%s", sealed.opened.round, error)
                self._show_log(is_away=True)
                if self._leaving.is_set():
                    self._board.say("the log cannot be reached: what is trained is kept, and is handed in at the next start")
                    return False
            else:
                self._show_log(is_away=False)
                if answer.status is not HandIn.LATER:
                    self._handed_in(sealed, answer)
                    return True
            await within(self._changed, pause_s)
            pause_s = min(2 * pause_s, waits.HAND_IN_AGAIN_S[1])
        return True

    def _handed_in(self, sealed: Sealed, answer: HandedIn) -> None:
        """The log has the contribution: on its disk, or in a table already."""
        if answer.status is HandIn.LISTED:
            self.machine.is_listed()
            self._promises.expect(answer.round, sealed)
            self._promises.look()
            return
        ticket = answer.ticket
        assert ticket is not None
        if self._sealing_ms is not None and ticket.round == sealed.opened.round:  # else it waited for a round, or for the log
            self._pace.ticket_took(_now_ms() - self._sealing_ms)
        self._sealing_ms = None
        self.machine.ticketed(ticket)
        self._lap.mark("hand_in")

    def _header_in(self) -> None:
        """The log has the header of what is being handed in."""
        sealed = self.machine.sealed
        if self._sealing_ms is not None and sealed is not None and sealed.opened.round == self.machine.round:
            self._pace.header_took(_now_ms() - self._sealing_ms)

    def _drop(self, reason: str) -> None:
        lost = self.machine.refused("refused by the log")
        self._board.status.samples_lost += lost
        self._board.update(dropped=dict(self.machine.dropped))
        self._board.say(f"{lost} samples do not count: the log refuses them ({reason})")

    # Commits.

    def _take(self, told: Told) -> None:
        """Take note of what the log, or a neighbour, says of where the run stands."""
        if told.commitment is not None:
            self._take_commit(told, told.commitment.proven.round)
        elif told.left_ms:
            self._pace.opened(_now_ms(), told.left_ms)
        if told.is_from_log:
            self._promises.look()

    def _take_commit(self, told: Told, entry: Round) -> None:
        commit = self.machine.committed(entry)
        if told.left_ms and entry.round == self.machine.newest.round:
            self._pace.opened(_now_ms(), told.left_ms)
        if commit.promised is not None:
            assert commit.ticket is not None
            self._promises.expect(commit.ticket.round, commit.promised)
        if told.row is not None:
            self._promises.see(entry.round, told.row)
        if not commit.is_news:
            return
        if not told.left_ms:
            self._pace.opened(_now_ms(), entry.open_ms)  # a neighbour told: it came a moment ago
        self._floors[entry.round] = entry.floor
        self._floors = {round_: floor for round_, floor in self._floors.items() if round_ > entry.round - _KEPT_FLOORS}
        self._board.status.samples_lost += commit.samples_lost
        self._lap.mark("wait")
        logger.info("round over round=%d %s", entry.round, self._lap.line())
        self._board.committed(
            round_=entry.round, state=entry.state, peers=entry.rows, counted=commit.promised is not None, lost=commit.samples_lost
        )
        self._board.update(dropped=dict(self.machine.dropped), waiting_for="")
        self._changed.set()

    def _kept(self, round_: int, sealed: Sealed) -> None:
        self._listed_in = max(self._listed_in, round_)
        self._board.status.samples_counted += sealed.samples
        self._board.status.rounds_counted += 1

    def _broken(self, round_: int, sealed: Sealed) -> None:
        self._board.status.promises_broken += 1
        self._board.say(f"the log gave a ticket for round {round_} and did not keep it: {sealed.samples} samples are not in its table")
