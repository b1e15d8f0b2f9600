"""A peer's life in a run: train lots, freeze a claim, attempt the round with the others, apply what the log commits, again.

``protocol.rounds.RoundMachine`` decides what each event means; here are the clock, the disk and the network, in ``peer.states`` the
tensors, in ``peer.mates`` the other members, and in ``peer.log_watch`` the log.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from automl.claims import check_work
from automl.schedule import Plan, architecture_of_lot
from automl.training import Lot, Worker
from automl.update import State
from peer.log_watch import LOG_POLL_S, LOG_RETRY_S, LogWatch
from peer.mates import Mates
from peer.states import States
from peer.status import StatusBoard
from peer.store import PeerStore
from peer.work import ComputeThread, Lap, Pile
from protocol.errors import AttemptFailed, MantaError, RemoteFault, Unreachable
from protocol.records import Manifest, Proposal, SignedClaim, SignedManifest
from protocol.rounds import CommitKind, Phase, RoundMachine
from protocol.signing import Identity, PublicKey
from swarm.averager import Averager, Expectation
from swarm.codec import MAX_ABS
from swarm.log_client import Commitment, LogClient
from swarm.matchmaking import Matchmaker
from swarm.mean import Mean
from swarm.node import Node
from swarm.tasks import within
from swarm.transfer import Shelf

_POLL_S = 0.2  # between looks at the clock while a round may close
_ALL_TOGETHER_S = 4.0  # how long a round's first attempt waits for every member
_WHOEVER_COMES_S = 10.0  # and the later ones, for at least one other
_RETRY_S = 1.0  # between looks for somebody who has a state
_NEXT_PROPOSER_S = 1.5  # how long the second member of a table waits for the first one's commit
_NO_LOG = "the run's log, which cannot be reached; nothing is lost"

logger = logging.getLogger("manta.peer")
Result = TypeVar("Result")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PeerLoop:
    """One peer in one run."""

    def __init__(
        self,
        node: Node,
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
        self.plan = Plan.of(self.manifest)
        self.node = node
        self.identity = identity
        self.run_id = signed.run
        self.cohort = cohort
        self.machine = RoundMachine(self.manifest, self.run_id, identity.public_key)
        self.log = LogClient(node, self.manifest, self.run_id)
        self._log_watch = LogWatch(node, self.log, self._take)
        self._worker = worker
        self._store = store
        self._board = board
        self._shelf = shelf
        self._mates = Mates(node, self.run_id, self.manifest, self.machine, cohort)
        check_claim = partial(check_work, self.plan, self.manifest.lot_samples)
        self._matchmaker = Matchmaker(node, self.run_id, check_claim)
        self.averager = Averager(node, identity, self.manifest, self.machine, self._matchmaker, check_claim)
        self._compute = ComputeThread()
        self._states = States(node, shelf, self.manifest, self.plan, worker.num_weights, self._compute)
        self._gradient: Tensor | None = None  # of the frozen claim
        self._opened_ms = _now_ms()
        self._commit_seen = asyncio.Event()
        self._leaving = asyncio.Event()
        self._commitment: Commitment | None = None
        self._lap = Lap()

    # The person's side.

    def leave(self) -> None:
        """Finish the round's duties, then end."""
        self._leaving.set()
        self._mates.progress.set()

    async def run(self) -> None:
        """Take part until the run is finished or ``leave`` was called and the round's duties are done."""
        await self._shelf.serve(self.node)
        await self.node.serve("commit", self._on_commit_pushed)
        await self._mates.start()
        await self.averager.start()
        await self._matchmaker.start()
        await self._first_look()
        async with asyncio.TaskGroup() as tasks:
            members = self._mates.watch(lambda count: self._board.update(members=count))
            background = [tasks.create_task(watch) for watch in (members, self._log_watch.watch(), self.node.watch_daemon())]
            try:
                await self._rounds()
            finally:
                for task in background:
                    task.cancel()
                self._compute.close()

    async def _rounds(self) -> None:
        while True:
            phase = self.machine.phase
            self._board.update(phase=phase.value)
            if phase is not Phase.CLOSED:
                await self.averager.finish()
            if phase is Phase.FINISHED:
                self._board.update(finished=True)
                return
            if phase is Phase.BEHIND:
                if self._leaving.is_set():
                    return
                await self._catch_up()
            elif phase is Phase.TRAINING:
                if self._leaving.is_set():
                    self._board.status.samples_lost += self.machine.samples
                    await self._mates.withdraw()
                    return
                await self._train()
            elif self.machine.can_join:
                await self._attempt()
            elif self._leaving.is_set():
                return
            else:
                await self._sit_out()

    # Joining and catching up.

    async def _first_look(self) -> None:
        """Learn where the run stands, and take up frozen work of an earlier life."""
        frozen = self._store.load_frozen(self.run_id)
        if frozen is not None and frozen.claim.open().key == self.identity.public_key:  # the person may have a new identity
            fits = frozen.gradient.shape == (self._worker.num_weights,)
            self.machine.restore(frozen.claim, lots_kept=fits)
            self._gradient = frozen.gradient
        await self._log_watch.first_look(self._leaving.is_set, lambda waits: self._board.update(waiting_for=_NO_LOG if waits else ""))
        self._commit_seen.clear()

    async def _catch_up(self) -> None:
        """Fetch what leads to the newest commit, check it, and make it the state."""
        target = self.machine.missing[-1]
        try:
            state = await self._states.reach(target, self.machine.held, self._providers())
        except MantaError as error:
            logger.info("catching up failed round=%d reason=%s", target.round, error)
            self._board.update(waiting_for=f"somebody who has the state of round {target.round}")
            await asyncio.sleep(_RETRY_S)
            return
        if target not in self.machine.missing:
            return  # a newer commit came meanwhile
        first = self.machine.held is None
        self.machine.caught_up(target.state)
        self._show_state(self._states.adopt(state), target.state)
        self._board.update(waiting_for="")
        if first:
            self._board.update(joined_at_round=target.round)
            self._board.say(f"state fetched and checked round={target.round} state={target.state.hex()[:12]}")

    def _providers(self) -> list[PublicKey]:
        """Return who should have the newest committed state, and the teacher."""
        voters = [PublicKey(vote.key) for vote in self._commitment.proven.round.votes] if self._commitment else []
        return list(dict.fromkeys([*voters, *self._mates.standing_with_us(), PublicKey(self.manifest.operators[0])]))

    # A round.

    async def _train(self) -> None:
        """Train lots until the round closes, then freeze the claim."""
        machine, manifest, round_ = self.machine, self.manifest, self.machine.round
        if not await self._load_weights():
            return
        architectures = self.plan.architectures(round_, self.cohort)
        pile, index = Pile(self._worker.num_weights), 0
        while machine.phase is Phase.TRAINING and machine.round == round_ and not self._leaving.is_set():
            architecture = architecture_of_lot(architectures, self.identity.public_key, index)
            lot = Lot(manifest.seed, round_, self.cohort, self.identity.public_key, index, architecture, manifest.lot_samples)
            index += 1
            result = await self._compute.run(self._worker.train, lot)
            if not bool((result.gradient.abs() <= MAX_ABS).all()):
                # One such value would cost every group of this peer its attempts.
                logger.error("lot dropped: its gradient is not finite round=%d index=%d", round_, lot.index)
            elif machine.lot_trained(round_, result.samples):
                pile.add(lot, result)
                if len(pile) % len(architectures) == 0:
                    self._mates.progress.set()
            if machine.samples >= manifest.max_claim_samples:
                await self._wait_for_others(round_)
            if not self._leaving.is_set() and machine.should_close(self._mates.swarm_samples(), _now_ms(), self._opened_ms):
                await self._freeze(pile, round_)

    async def _load_weights(self) -> bool:
        """Give the worker the held state, and its teacher where the round has one; False: the teacher could not be had, try again."""
        try:
            teacher = await self._states.teacher(self._providers())
        except MantaError as error:
            logger.info("no teacher round=%d reason=%s", self.machine.round, error)
            self._board.update(waiting_for=f"somebody who has the teacher, the state of round {self.plan.teacher_round}")
            await asyncio.sleep(_RETRY_S)
            return False
        self._board.update(waiting_for="", teacher=teacher[0].hex() if teacher else "")
        await self._compute.run(self._worker.teach, teacher[1] if teacher else None)
        await self._compute.run(self._worker.load, self._states.held.parameters)
        return True

    async def _wait_for_others(self, round_: int) -> None:
        """With as many samples as its claim may weigh, wait for the round to close instead of training more."""
        machine = self.machine
        while machine.phase is Phase.TRAINING and machine.round == round_ and not self._leaving.is_set():
            if machine.should_close(self._mates.swarm_samples(), _now_ms(), self._opened_ms):
                return
            await self._mates.change(_POLL_S)

    async def _freeze(self, pile: Pile, round_: int) -> None:
        claim = pile.claim(
            run=self.run_id,
            round_=round_,
            last_commit=self.machine.last_commit,
            key=self.identity.public_key,
            cohort=self.cohort,
        )
        signed = SignedClaim.sign(claim, self.identity)
        gradient = pile.gradient()
        await self._compute.run(self._store.save_frozen, self.run_id, signed, gradient)
        self._lap.mark("train")
        if self.machine.freeze(signed):
            self._gradient = gradient
            self._board.status.loss = pile.loss
        await self._mates.announce()

    async def _attempt(self) -> None:
        """Make attempts with the frozen claim until the round is over."""
        tries = 0
        while self.machine.can_join:
            assert self._gradient is not None
            self._commit_seen.clear()
            group_size = len(self._mates.expected()) + 1
            if tries == 0:  # everybody, within a short while: a fast peer must not leave the others out round after round
                expectation = Expectation(group_size, group_size, self._opened_ms, _ALL_TOGETHER_S)
            else:
                expectation = Expectation(group_size, 2, self._opened_ms, _WHOEVER_COMES_S)
            try:
                made = await self._unless_committed(self.averager.attempt(self._gradient, self._prepare, expectation))
            except AttemptFailed as error:
                tries += 1
                self._mates.suspect(error.suspects or self._mates.not_ready())
                await self._attempt_failed(str(error))
                continue
            if made is None:
                return
            proposal, _ = made
            self._lap.mark("vote")
            await self._await_commit(proposal)

    async def _attempt_failed(self, reason: str) -> None:
        logger.info("attempt dropped round=%d reason=%s", self.machine.round, reason)
        self._board.update(attempts_dropped=dict(self.machine.attempts_dropped))
        await self._log_watch.look()
        await self._mates.look()
        await asyncio.sleep(_POLL_S)

    async def _unless_committed(self, attempt: Coroutine[Any, Any, Result]) -> Result | None:
        """Return what the attempt makes; None when a commit ends its round first."""
        task = asyncio.create_task(attempt)
        seen = asyncio.create_task(self._commit_seen.wait())
        try:
            await asyncio.wait((task, seen), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            seen.cancel()
            task.cancel()
            await asyncio.wait((task, seen))

    async def _prepare(self, mean: Mean) -> bytes:
        """Compute the next state on a copy; remember it, and return its digest."""
        self._lap.mark("match_and_reduce")
        digest = await self._states.prepare(mean)
        self._lap.mark("update")
        return digest

    async def _await_commit(self, proposal: Proposal) -> None:
        """Hand the proposal in, in turn with the group mates, until the round is committed or the log refuses it."""
        members = self.averager.members()
        turn = members.index(self.identity.public_key) if self.identity.public_key in members else 0
        pause_s = turn * _NEXT_PROPOSER_S
        retry_s = LOG_RETRY_S[0]
        self._board.update(phase=self.machine.phase.value)
        while self.machine.phase is Phase.PROPOSED:
            if await self._commits_within(pause_s):
                return
            try:
                commitment = await self.log.propose(proposal)
            except Unreachable:
                if self._leaving.is_set():
                    self._board.say("the log cannot be reached: the claim and its lots are kept, and go on at the next start")
                    return
                self._board.update(waiting_for=_NO_LOG)
                pause_s, retry_s = retry_s, min(2 * retry_s, LOG_RETRY_S[1])
                continue
            except RemoteFault as error:
                await self._log_watch.look()
                if self.machine.phase is Phase.PROPOSED:
                    logger.warning("proposal refused round=%d reason=%s", self.machine.round, error)
                    await self.averager.drop("the log refused the proposal")
                    await self._attempt_failed(str(error))
                return
            self._take(commitment)
            self._mates.push(commitment.receipt, members)

    async def _commits_within(self, timeout_s: float) -> bool:
        if timeout_s > 0:
            await within(self._commit_seen, timeout_s)
        return self.machine.phase is not Phase.PROPOSED

    async def _sit_out(self) -> None:
        """Wait for the end of a round for which this key has made a claim whose lots are gone."""
        round_ = self.machine.round
        self._board.update(waiting_for=f"the end of round {round_}, whose lots were lost in a crash")
        while self.machine.round == round_ and not self._leaving.is_set():
            await asyncio.sleep(LOG_POLL_S)
            await self._log_watch.look()
        self._board.update(waiting_for="")

    # Commits.

    def _take(self, commitment: Commitment) -> None:
        """Take note of a proven commit: assign the prepared copy if it is the committed state, else fall behind."""
        round_ = commitment.proven.round
        samples = self.machine.samples
        commit = self.machine.committed(round_)
        if commit.kind is CommitKind.STALE:
            return
        self._commitment = commitment
        self._opened_ms = _now_ms()
        status = self._board.status
        status.samples_lost += commit.samples_lost
        if commit.counted:
            status.samples_counted += samples
            status.rounds_counted += 1
        status.attempts_dropped = dict(self.machine.attempts_dropped)
        logger.info("round over round=%d kind=%s %s", commit.standing.round, commit.kind.value, self._lap.line())
        if commit.kind is CommitKind.APPLY:
            self._show_state(self._states.adopt_prepared(round_.statement.state), round_.statement.state)
        self._board.update(waiting_for="")
        self._board.committed(
            round_=commit.standing.round,
            state=commit.standing.state,
            peers=len(round_.claims),
            counted=commit.counted,
            lost=commit.samples_lost,
        )
        self._commit_seen.set()
        self._mates.progress.set()

    def _show_state(self, state: State, digest: bytes) -> None:
        if not self.machine.can_join:
            self._gradient = None
        self._board.update(round=state.round, state=digest.hex())
        self._board.write()

    async def _on_commit_pushed(self, _sender: PublicKey, data: bytes) -> bytes:
        self._take(self.log.open(data))
        return b""
