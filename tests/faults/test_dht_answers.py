"""Searches for more than one answer can hold: what fits is answered, the rest is not found there, and nothing is logged."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from manta_swarm.network.node import Node
from manta_swarm.protocol.signing import peer_id, sha256
from tests.faults.attacking import DEADLINE_S, attacking
from tests.faults.strangers import Target
from tests.faults.strangers.dht_answers import NAMES
from tests.network.nodes import nodes_of

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]

RUN = sha256(b"run")
MOST_BYTES = 2 * 1024 * 1024


async def search(seeker: Node, at: Node) -> int:
    """Search for all names at a node; return under how many something was found. The answer fits into a message of hivemind's."""
    request = dht_pb2.FindRequest(keys=[name.to_bytes() for name in NAMES])
    answer = await seeker.dht.protocol.get_stub(PeerID(peer_id(at.key))).rpc_find(request, timeout=30)
    assert len(answer.results) == len(NAMES)
    assert answer.ByteSize() < MOST_BYTES
    return sum(result.type == dht_pb2.FOUND_DICTIONARY for result in answer.results)


def test_a_search_for_much_is_answered_as_far_as_it_fits_and_logs_nothing(tmp_path: Path) -> None:
    async def story(operator: Node, honest: Node) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        async with attacking("dht_answers", Target((await operator.addresses())[0], RUN)):
            for _ in range(3):
                await search(honest, operator)
        storage = operator.dht.protocol.storage
        for number, name in enumerate(NAMES):  # as if as many neighbours as fill them had brought it
            for each in range(300):
                storage.store(name, bytes(2000), 2.0**33, subkey=peer_id(sha256(b"%d %d" % (number // 10, each))))
        assert 1 <= await search(honest, operator) < len(NAMES)
        gc.collect()
        assert errors == []

    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), nodes_of(tmp_path, 2) as nodes:
            await story(*nodes)

    asyncio.run(whole())
