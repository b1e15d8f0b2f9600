"""Who hands out shards of a run's data set: those who say so in the DHT, this peer among them as soon as it begins to get some.

They stand there as a run's members do (``network.neighbours``), under another name, so that what is read does not grow with the run.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from manta_swarm.network import timeouts
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.sources import Sources
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.runtime.console import Console

logger = logging.getLogger("manta.peer")


class Holders:
    """Those that a peer knows of."""

    def __init__(self, node: Endpoint, run: bytes, operators: Sequence[bytes], console: Console) -> None:
        """Know the operators, who have all; ``console`` says who is not asked any more."""
        self._node = node
        self._operators = [PublicKey(key) for key in operators]
        self._console = console
        self._neighbours = Neighbours(node, sha256(b"manta/shards/v1\n" + run))
        self._wrong: set[PublicKey] = set()
        self._sources = Sources()

    def sources(self) -> Sources:
        """Return whom to ask now: others first, and the operators for what none of them gives; who comes to be known is added."""
        others = [key for key in self._neighbours.some(len(self._neighbours.members())) if self._may_be_asked(key)]
        spare = [key for key in self._operators if self._may_be_asked(key)]
        self._sources = Sources(others, spare=spare, may_grow=True)
        return self._sources

    def distrust(self, key: PublicKey, reason: str) -> None:
        """A node sent bytes that are not the data set's: never ask it again."""
        if key not in self._wrong:
            self._wrong.add(key)
            who = "the operator's node" if key in self._operators else f"peer {key.hex()[:8]}"
            self._console.say(f"{who} sent damaged data ({reason}): it is not asked for shards any more, others are")

    async def meet(self) -> None:
        """Say that this peer is one of them, and look for others, again and again; ends when it is cancelled."""
        pause_s = timeouts.FIRST_LOOKS_S
        while True:
            with contextlib.suppress(MantaError):  # they are looked for again
                await self.look()
            pause_s = min(2 * pause_s, self._neighbours.period_s)
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Look for others, and say that this peer is one of them."""
        await self._neighbours.look()
        known = set(self._sources)
        for key in self._neighbours.members():
            if key not in known and self._may_be_asked(key):
                self._sources.add(key)
        # A cohort of its own: those who stand where a cohort meets are all read, and here that would be everybody.
        await self._neighbours.announce(cohort=f"shards-{self._node.key.hex()[:32]}", round_=0)

    async def withdraw(self) -> None:
        """Say that this peer leaves; what cannot be said in a moment expires."""
        with contextlib.suppress(MantaError, TimeoutError):
            async with asyncio.timeout(timeouts.LEAVE_S):
                await self._neighbours.withdraw()

    def _may_be_asked(self, key: PublicKey) -> bool:
        return key not in self._wrong and key != self._node.key
