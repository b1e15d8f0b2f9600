"""What a peer's person is told of the run's operators: which of them it talks to, which stops, and that none can be reached."""

import asyncio
import logging

from manta_swarm.network.farewells import Farewell, hear_farewells
from manta_swarm.network.operator_line import short
from manta_swarm.network.rpc import Endpoint
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.signing import PublicKey

_AGAIN_S = 10.0  # at least, from one line about another operator to the next
_NO_LOG = "the run's log, which cannot be reached; nothing is lost"

logger = logging.getLogger("manta.peer")


class OperatorsWord:
    """Of one run, at one peer."""

    def __init__(self, context: RunContext) -> None:
        """Say it on the context's board."""
        log, board = context.log, context.board
        self._log = log
        self._board = board
        self._now_s = context.clock.now_s
        self._is_over = asyncio.Event()
        self._said_s = -_AGAIN_S  # when it was said last that it talks to another one
        self._over: set[PublicKey] = set()  # operators who say that the run is over
        self.ended = ""  # for good: in words
        log.line.on_change = self._talks_to
        if not log.operators.is_alone:
            board.update(operator=short(log.operator))

    async def hear(self, endpoint: Endpoint) -> None:
        """Take note of what operators say before they stop, from now on."""
        await hear_farewells(endpoint, self._log.operators.keys, self._log.operators.run, self._stops)

    async def over(self) -> None:
        """Return once the operators ended the run for good."""
        await self._is_over.wait()

    @property
    def is_away(self) -> bool:
        """Whether the log is waited for."""
        return self._board.status.waiting_for == _NO_LOG

    def show_away(self, is_away: bool) -> None:
        """Show whether the log is waited for; what else is waited for stays as it is, and nobody waits for a run that is over."""
        if is_away and not self.ended:
            self._board.wait_for(_NO_LOG)
        elif self.is_away:
            self._board.update(waiting_for="")

    def _talks_to(self, key: PublicKey, why: str) -> None:
        self._board.update(operator=short(key))
        self._board.write()
        logger.info("other operator key=%s reason=%s", short(key), why)
        if self._now_s() - self._said_s >= _AGAIN_S:  # where none of them is of use it goes round and round
            self._said_s = self._now_s()
            self._board.say(f"talks to operator {short(key)} from now on; the one before it was of no use: {why}")

    def _stops(self, key: PublicKey, farewell: Farewell) -> None:
        """An operator says that it stops: for a while, or for good; one of several speaks for itself alone."""
        reason = f": {farewell.reason}" if farewell.reason else ""
        if farewell.is_over:
            self._over.add(key)
        if len(self._over) >= self._log.operators.quorum:
            self.ended = f"the operator{'' if self._log.operators.is_alone else 's'} ended this run for good{reason}"
            self._board.say(self.ended)
            self._is_over.set()
        elif self._log.operators.is_alone:
            self._board.say(f"the operator stops the run's log for a while{reason}; it is waited for, and nothing is lost")
        else:
            what = "ends this run for good, as it says" if farewell.is_over else "stops for a while"
            self._board.say(f"operator {short(key)} {what}{reason}; the others go on")
            if key == self._log.operator:
                self._log.line.turn_away("it stops")
