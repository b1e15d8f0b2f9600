"""Pings under ever new node ids: an operator sends nobody what it keeps of the DHT, and remembers nobody by an id that is not its key's."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network.node import Node
from manta_swarm.protocol.signing import sha256
from tests.faults.attacking import DEADLINE_S, attacking
from tests.faults.strangers import Target
from tests.network.nodes import nodes_of, start, until

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]

RUN = sha256(b"run")


def test_pings_under_new_node_ids_are_answered_with_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(operator: Node) -> None:
        address = (await operator.addresses())[0]
        protocol, stored_elsewhere = operator.dht.protocol, list[Any]()
        call_store = protocol.call_store

        async def counted(peer: Any, *arguments: Any, **named: Any) -> Any:
            stored_elsewhere.append(peer)
            return await call_store(peer, *arguments, **named)

        monkeypatch.setattr(protocol, "call_store", counted)
        async with attacking("dht_pings", Target(address, RUN)):
            begun = operator.traffic.received.total
            sent = operator.traffic.sent.total
            await until(lambda: operator.traffic.received.total > begun + 4000)  # more than a hundred pings
            assert stored_elsewhere == []
            assert operator.traffic.sent.total - sent < 100_000
            assert len(protocol.routing_table.uid_to_peer_id) <= 1
            assert len(asyncio.all_tasks()) < 200
            assert sum(len(item.value) for _, item in protocol.storage.items()) <= 32
            honest = await start(tmp_path, 1, [address], listen=())
            try:
                await honest.publish("members", b"of an honest peer", ttl_s=60)
                assert await operator.lookup("members") == {honest.key: b"of an honest peer"}
            finally:
                await honest.close()

    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), nodes_of(tmp_path, 1) as nodes:
            await story(*nodes)

    asyncio.run(whole())
