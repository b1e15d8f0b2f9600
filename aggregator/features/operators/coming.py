"""How an operator that begins with an empty folder comes to take part: it asks each other one where that stands, and lets the log go on.

``protocol.operators`` has the rule, and why.
"""

import asyncio
import logging
from collections.abc import Sequence

from manta_swarm.aggregator.features.operators.lending import MAX_SMALL_BYTES
from manta_swarm.aggregator.features.operators.store import Store
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.worker import Worker
from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Busy, Endpoint
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.operators import LogPosition
from manta_swarm.protocol.signing import PublicKey

STANDING = "operators-position"  # of no content; the answer is a ``protocol.operators.LogPosition``

_LOOK_S = 1.0

logger = logging.getLogger("manta.operators")


class Coming:
    """Brings one operator to take part; most operators take part from their start."""

    def __init__(self, endpoint: Endpoint, log: Log, store: Store, others: Sequence[PublicKey], disk: Worker) -> None:
        """Prepare.

        Args:
            endpoint: this node's.
            log: the run's.
            store: has what was heard.
            others: the run's other operators.
            disk: the one thread that writes.
        """
        self._endpoint = endpoint
        self._log = log
        self._store = store
        self._others = others
        self._disk = disk

    @property
    def takes_part(self) -> bool:
        """Whether this operator promises, accepts, signs, keeps and writes."""
        return self._store.newcomer is None

    def check(self) -> None:
        """See that this operator takes part.

        Raises:
            Busy: not yet.
        """
        if not self.takes_part:
            raise Busy("this operator has begun anew, and takes no part yet")

    def told(self) -> LogPosition:
        """Return where this operator stands.

        Raises:
            Busy: it is a newcomer itself.
        """
        self.check()
        memory, size = self._store.memory, self._log.head.size
        accepted = memory.accepted_at(size)
        return LogPosition(memory.promised, size if accepted is None else accepted.batch.size, self._log.ledger.round)

    def waits_for(self) -> tuple[list[PublicKey], int]:
        """Return which others were not heard yet, and the round that the log needs at least."""
        newcomer = self._store.newcomer
        assert newcomer is not None
        return [key for key in self._others if key not in newcomer.keys], newcomer.round

    async def take_part(self) -> None:
        """Return once this operator takes part.

        Raises:
            StorageError: the disk failed.
        """
        while (newcomer := self._store.newcomer) is not None:
            if newcomer.is_over(self._others, self._log.head.size, self._log.ledger.round):
                await self._disk.do(self._store.take_part)
                return
            for key in self.waits_for()[0]:
                await self._ask(key)
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, key: PublicKey) -> None:
        try:
            answer = await self._endpoint.call(key, STANDING, b"", timeout_s=timeouts.CALL_S)
            position = unpack(LogPosition, answer, max_bytes=MAX_SMALL_BYTES)
        except MantaError as error:
            logger.info("an operator does not say where it stands reason=%s", error)
            return
        newcomer = self._store.newcomer
        assert newcomer is not None
        await self._disk.do(self._store.come, newcomer.hearing(key, position))
