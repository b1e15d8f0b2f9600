"""Puts the log's newest tree head into the DHT, where whoever was shown another one finds it."""

import asyncio
import logging

from manta_swarm.aggregator.log.log import Log
from manta_swarm.network.newest_head import PUBLISHED_S, publish_newest
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.errors import MantaError
from manta_swarm.runtime.tasks import within

logger = logging.getLogger("manta.heads")


class Announcing:
    """One log's."""

    def __init__(self, endpoint: Endpoint, log: Log) -> None:
        """Prepare; ``keep`` does it."""
        self._endpoint = endpoint
        self._log = log
        self._news = asyncio.Event()

    def committed(self) -> None:
        """There is a newer head."""
        self._news.set()

    async def keep(self) -> None:
        """Publish the head, again and again, until this is cancelled."""
        least_s, most_s = PUBLISHED_S
        while True:
            self._news.clear()
            await self._publish()
            await asyncio.sleep(least_s)
            await within(self._news, most_s - least_s)

    async def _publish(self) -> None:
        ledger = self._log.ledger
        index = ledger.index_at(ledger.round)
        if index is None:
            return  # nothing was committed
        try:
            if not await publish_newest(self._endpoint, ledger.run, await asyncio.to_thread(self._log.receipt, index)):
                logger.warning("the newest head is too large for the DHT round=%d", ledger.round)
        except MantaError as error:  # peers compare heads with each other as well
            logger.info("newest head not in the DHT reason=%s", error)
