"""Stores much under many names, and searches for all of them in one call, again and again."""

import asyncio

from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2

from tests.faults.strangers import Target
from tests.faults.strangers.dht import bring, junk, new_keys, operator_of, strangers

_KEYS = 250  # of 4 kB each under a name
_PAUSE_S = 0.2
NAMES = [DHTID.generate(source=f"many {number}") for number in range(40)]


async def attack(target: Target) -> None:
    """Attack until cancelled."""
    operator = operator_of(target)
    async with strangers(target) as ((own, node),):
        for half in (NAMES[:20], NAMES[20:]):  # a key has 32 names at most
            await bring(node, operator, junk(half, new_keys(_KEYS)))
        await bring(node, operator, junk(NAMES, [own], 2000), 1)
        stub, request = node.dht.protocol.get_stub(operator), dht_pb2.FindRequest(keys=[name.to_bytes() for name in NAMES])
        print("attacks", flush=True)
        while True:
            try:
                await stub.rpc_find(request, timeout=5)
            except (P2PHandlerError, P2PDaemonError, TimeoutError):
                pass  # it says no, or nothing
            await asyncio.sleep(_PAUSE_S)
