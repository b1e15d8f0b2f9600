"""The newest tree head of a log stands in the DHT, as the receipt of its newest commit."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.aggregator.log import tree_heads
from manta_swarm.aggregator.log.tree_heads import TreeHeadPublisher
from manta_swarm.network.log_client import LogClient
from manta_swarm.network.log_proofs import look_up_newest, name_of
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.small_run import OPERATOR, PEERS, create, grow, opened_head, signed_manifest
from tests.memory_log import DEADLINE_S

SIGNED = signed_manifest()


async def test_each_newest_head_is_published_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_heads, "PUBLISHED_S", (0.01, 60.0))
    network = MemoryNetwork()
    reader = network.endpoint(PEERS[0].public_key)
    log_of = LogClient(reader, SIGNED.open(), SIGNED.run)

    async def found(size: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                newest = await look_up_newest(reader, SIGNED.run, log_of)
                if newest and newest[0].proven.tree_head.size == size:
                    assert newest[0].proven.tree_head == opened_head(log)
                    return
                await asyncio.sleep(0.005)

    with create(tmp_path, SIGNED) as log:
        work = TreeHeadPublisher(network.endpoint(PublicKey(OPERATOR.public_key)), log)
        task = asyncio.create_task(work.keep())
        await asyncio.sleep(0)
        assert network.records.get(name_of(SIGNED.run)) is None
        for _ in range(3):
            grow(log, 1)
            work.committed()
            await found(log.head.size)
        task.cancel()
        await asyncio.wait([task])
