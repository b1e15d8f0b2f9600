"""How a peer comes to hold the newest state: it fetches what leads there, and checks it."""

import asyncio
import logging

from manta_swarm.network import timeouts
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.sync.check import Checker
from manta_swarm.peer.sync.states import States
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.runtime.tasks import unless_set, wait_within

logger = logging.getLogger("manta.peer")


class CatchingUp:
    """One peer's way to the newest commits' states."""

    def __init__(self, context: RunContext, progress: Progress, states: States, checker: Checker) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: says what is missing, and is told what is held.
            states: fetches it.
            checker: computes some of it again.
        """
        self._context = context
        self._progress = progress
        self._states = states
        self._checker = checker
        self._checking: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Check nothing any more."""
        for check in self._checking:
            check.cancel()

    async def catch_up(self, tasks: asyncio.TaskGroup) -> None:
        """Fetch what leads to the newest commit, or a step towards it, check it, and make it the state; ``tasks`` has what goes on then."""
        machine, commits, live_status = self._progress.machine, self._progress.commits, self._context.live_status
        now_ms = self._context.clock.now_ms
        target = self._states.next_stop(machine.path, machine.held, commits.min_exponents)
        started_ms = now_ms()
        try:
            mean = await unless_set(self._progress.leaving, self._states.reach(target, machine.held, commits.min_exponents))
        except Unreachable as error:
            logger.info("catching up failed round=%d reason=%s", target.round, error)
            if target is not machine.missing:
                return  # there is the newest one's state as well
            live_status.wait_for(f"somebody who has the state of round {target.round}")
            await wait_within(self._progress.changed, timeouts.LOG_AGAIN_S[0])
            return
        if self._progress.leaving.is_set():
            return
        self._progress.lap.mark("fetch")
        commitment = commits.commitment(target.round)
        if mean is not None and commitment is not None and self._checker.wants(commitment.proven.round):
            self._checking.add(check := tasks.create_task(self._checker.check(commitment.receipt, commitment.proven, mean)))
            check.add_done_callback(self._checking.discard)
        first = machine.held is None
        machine.caught_up(target.state, took_long=2 * (now_ms() - started_ms) > self._progress.open_ms(self._context.manifest))
        live_status.update(waiting_for="", phase=machine.phase.value, round=target.round, state=target.state.hex())
        live_status.write()
        if first:
            live_status.update(joined_at_round=target.round)
            live_status.say(f"state fetched and checked round={target.round} state={target.state.hex()[:12]}")
