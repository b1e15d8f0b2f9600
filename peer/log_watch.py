"""A peer's eye on the run's log: the newest commit, however long it takes, and every commit that nobody pushed."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from protocol.errors import MantaError, Unreachable
from swarm.log_client import Commitment, LogClient
from swarm.node import Node

LOG_POLL_S = 2.0  # a commit that nobody pushed is seen this late at most
LOG_RETRY_S = (0.5, 5.0)  # first and longest pause between calls of a log that does not answer

logger = logging.getLogger("manta.peer")


class LogWatch:
    """Looks at the log and tells what it finds."""

    def __init__(self, node: Node, log: LogClient, take: Callable[[Commitment], None]) -> None:
        """Prepare; ``take`` is told of every commit found, often of one that it knows."""
        self._node = node
        self._log = log
        self._take = take

    async def first_look(self, is_over: Callable[[], bool], show: Callable[[bool], None]) -> None:
        """Find the newest commit, however long the log takes to come back.

        Args:
            is_over: nobody wants to know any more.
            show: is told whether the log is being waited for.
        """
        pause_s = LOG_RETRY_S[0]
        while not is_over():
            try:
                commitment = await self._log.latest()
            except Unreachable:
                show(True)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LOG_RETRY_S[1])
                continue
            show(False)
            if commitment is not None:
                self._take(commitment)
            return

    async def look(self) -> bool:
        """Find the newest commit; return whether the log answered."""
        try:
            commitment = await self._log.latest()
        except MantaError as error:
            logger.info("log not read reason=%s", error)
            return False
        if commitment is not None:
            self._take(commitment)
        return True

    async def watch(self) -> None:
        """Look again and again, and find the log again when it was away. Ends when it is cancelled.

        Also when it answers by itself: a restarted node knows nobody, and newcomers who ask it for members would never find this one.
        """
        has_met = True
        while True:
            await asyncio.sleep(LOG_POLL_S)
            has_met = await self.look() and has_met
            if not has_met:
                with contextlib.suppress(Unreachable):
                    await self._node.meet_again(self._log.operator)
                    has_met = True
