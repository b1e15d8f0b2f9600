"""Has the newest state evaluated on held-out data when the run file says so, and at the run's end."""

import asyncio

from manta_swarm.aggregator.follow.follower import Follower
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.status import Quality
from manta_swarm.protocol.errors import UserError


class Evaluating:
    """One run's."""

    def __init__(self, log: Log, follower: Follower, every: int) -> None:
        """Evaluate what ``follower`` holds each ``every`` rounds of ``log``; 0: only after the last one."""
        self._log = log
        self._follower = follower
        self._every = every
        self._due = asyncio.Event()
        self.quality: Quality | None = None
        self.round: int | None = None  # that was evaluated last, or could not be

    def look(self) -> None:
        """See whether the newest state is to be evaluated."""
        round_ = self._log.ledger.round
        if self._log.ledger.finished or (self._every and round_ and round_ % self._every == 0):
            self._due.set()

    @property
    def is_over(self) -> bool:
        """Whether the last round is committed and evaluated."""
        return self._log.ledger.finished and self.round == self._log.ledger.round

    async def next(self) -> str:
        """Wait until something is due, and evaluate it; return what to tell the person."""
        await self._due.wait()
        self._due.clear()
        try:
            evaluation = await asyncio.to_thread(self._follower.evaluate)
        except UserError as error:  # samples are missing or damaged: only figures are lost by it, the log needs none
            self.quality, self.round = None, self._log.ledger.round
            return f"not evaluated round={self.round}: {error}"
        self.quality, self.round = Quality.of(evaluation.quality), evaluation.round
        return f"evaluated round={self.round} {self.quality.words()}"
