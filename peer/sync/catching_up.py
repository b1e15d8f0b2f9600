"""How a peer comes to hold the newest state: it fetches what leads there, and checks it."""

import asyncio
import logging

from manta_swarm.network import waits
from manta_swarm.peer.context import open_ms
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.submit.commits import NewestCommits
from manta_swarm.peer.sync.check import Checker
from manta_swarm.peer.sync.states import States
from manta_swarm.peer.train.work import Lap, now_ms
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.rounds import RoundMachine
from manta_swarm.runtime.tasks import unless, within

logger = logging.getLogger("manta.peer")


class CatchingUp:
    """One peer's way to the newest commits' states."""

    def __init__(
        self,
        manifest: Manifest,
        machine: RoundMachine,
        states: States,
        commits: NewestCommits,
        checker: Checker,
        board: StatusBoard,
        lap: Lap,
        changed: asyncio.Event,
        leaving: asyncio.Event,
    ) -> None:
        """Prepare.

        Args:
            manifest: the run's.
            machine: says what is missing, and is told what is held.
            states: fetches it.
            commits: what the log has.
            checker: computes some of it again.
            board: shows it.
            lap: counts the time.
            changed: a commit came, or the person wants to leave.
            leaving: the person wants to.
        """
        self._manifest = manifest
        self._machine = machine
        self._states = states
        self._commits = commits
        self._checker = checker
        self._board = board
        self._lap = lap
        self._changed = changed
        self._leaving = leaving
        self._checking: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Check nothing any more."""
        for check in self._checking:
            check.cancel()

    async def catch_up(self, tasks: asyncio.TaskGroup) -> None:
        """Fetch what leads to the newest commit, or a step towards it, check it, and make it the state; ``tasks`` has what goes on then."""
        machine = self._machine
        target = self._states.next_stop(machine.path, machine.held, self._commits.floors)
        started_ms = now_ms()
        try:
            mean = await unless(self._leaving, self._states.reach(target, machine.held, self._commits.floors))
        except Unreachable as error:
            logger.info("catching up failed round=%d reason=%s", target.round, error)
            if target is not machine.missing:
                return  # there is the newest one's state as well
            self._board.wait_for(f"somebody who has the state of round {target.round}")
            await within(self._changed, waits.LOG_AGAIN_S[0])
            return
        if self._leaving.is_set():
            return
        self._lap.mark("fetch")
        commitment = self._commits.commitment(target.round)
        if mean is not None and commitment is not None and self._checker.wants(commitment.proven.round):
            self._checking.add(check := tasks.create_task(self._checker.check(commitment.receipt, commitment.proven, mean)))
            check.add_done_callback(self._checking.discard)
        first = machine.held is None
        machine.caught_up(target.state, took_long=2 * (now_ms() - started_ms) > open_ms(machine, self._manifest))
        self._board.update(waiting_for="", phase=machine.phase.value, round=target.round, state=target.state.hex())
        self._board.write()
        if first:
            self._board.update(joined_at_round=target.round)
            self._board.say(f"state fetched and checked round={target.round} state={target.state.hex()[:12]}")
