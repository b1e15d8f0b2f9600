"""For tests that need no processes: identities, a deadline for what runs in a loop, and a way to let it go on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from manta_swarm.protocol.signing import Identity, sha256

DEADLINE_S = 240.0  # on a machine that has much else to do
PEERS = [Identity(sha256(b"peer %d" % i)) for i in range(8)]

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what ``work`` returns, in a loop of its own, within the deadline."""

    async def bounded() -> _Result:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


async def settle() -> None:
    """Let everything that can go on in this loop go on: nothing in memory needs time."""
    for _ in range(500):
        await asyncio.sleep(0)
