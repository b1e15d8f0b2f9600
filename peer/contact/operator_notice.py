"""What a peer's person is told of the run's operators: which of them it talks to, which stops, and that none can be reached."""

import logging

from manta_swarm.network.operator_line import Change, short
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.shutdown_notices import ShutdownNotice, ShutdownNotices
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.signing import PublicKey

_AGAIN_S = 10.0  # at least, from one line about another operator to the next
_NO_LOG = "the run's log, which cannot be reached; nothing is lost"

logger = logging.getLogger("manta.peer")


class OperatorNotice:
    """Tells this peer's person what happens to the run's operators."""

    def __init__(self, context: RunContext) -> None:
        """Say it in the context's live status."""
        log, live_status = context.log, context.live_status
        self._log = log
        self._live_status = live_status
        self._now_s = context.clock.now_s
        self._said_s = -_AGAIN_S  # when it was said last that it talks to another one
        self._over: set[PublicKey] = set()  # operators who say that the run is over
        self.ended = ""  # for good: in words
        self._shutdown_notices = ShutdownNotices(log.operators.keys, log.operators.run)
        if not log.operators.is_alone:
            live_status.update(operator=short(log.operator))

    async def hear(self, endpoint: Endpoint) -> None:
        """Take note of what operators say before they stop, from now on."""
        await self._shutdown_notices.start(endpoint)

    async def watch(self) -> None:
        """Say which operator is talked to, whenever it is another one, until this is cancelled."""
        while True:
            self._talks_to(await self._log.line.next_change())

    async def over(self) -> None:
        """Say which operators stop, and return once they ended the run for good."""
        while not self.ended:
            self._stops(*await self._shutdown_notices.next())

    @property
    def is_away(self) -> bool:
        """Whether the log is waited for."""
        return self._live_status.status.waiting_for == _NO_LOG

    def show_away(self, is_away: bool) -> None:
        """Show whether the log is waited for; what else is waited for stays as it is, and nobody waits for a run that is over."""
        if is_away and not self.ended:
            self._live_status.wait_for(_NO_LOG)
        elif self.is_away:
            self._live_status.update(waiting_for="")

    def _talks_to(self, change: Change) -> None:
        name = short(change.key)
        self._live_status.update(operator=name)
        self._live_status.write()
        logger.info("other operator key=%s reason=%s", name, change.why)
        if self._now_s() - self._said_s >= _AGAIN_S:  # where none of them is of use it goes round and round
            self._said_s = self._now_s()
            self._live_status.say(f"talks to operator {name} from now on; the one before it was of no use: {change.why}")

    def _stops(self, key: PublicKey, shutdown_notice: ShutdownNotice) -> None:
        """An operator says that it stops: for a while, or for good; one of several speaks for itself alone."""
        reason = f": {shutdown_notice.reason}" if shutdown_notice.reason else ""
        if shutdown_notice.is_over:
            self._over.add(key)
        if len(self._over) >= self._log.operators.quorum:
            self.ended = f"the operator{'' if self._log.operators.is_alone else 's'} ended this run for good{reason}"
            self._live_status.say(self.ended)
        elif self._log.operators.is_alone:
            self._live_status.say(f"the operator stops the run's log for a while{reason}; it is waited for, and nothing is lost")
        else:
            what = "ends this run for good, as it says" if shutdown_notice.is_over else "stops for a while"
            self._live_status.say(f"operator {short(key)} {what}{reason}; the others go on")
            if key == self._log.operator:
                self._log.line.turn_away("it stops")
