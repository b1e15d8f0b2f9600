"""Names of a run that a stranger fills with junk: a newcomer is found by another one all the same, and so is the operator's head."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.network.log_proofs import name_of
from manta_swarm.network.node import Node
from manta_swarm.protocol.signing import sha256
from tests.faults.attacking import DEADLINE_S, attacking
from tests.faults.strangers import Target
from tests.network.nodes import nodes_of, start

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]

RUN = sha256(b"run")
MEMBERS = f"manta-{RUN.hex()}-members"
HEAD = bytes(2000)  # as large as it may be


def test_under_names_that_a_stranger_fills_newcomers_and_the_operators_head_are_found(tmp_path: Path) -> None:
    async def story(operator: Node) -> None:
        address = (await operator.addresses())[0]
        async with attacking("dht_junk", Target(address, RUN)):
            await operator.publish(name_of(RUN), HEAD, ttl_s=60)
            newcomers = [await start(tmp_path, number, [address], listen=()) for number in (1, 2)]  # as peers begin: they only call
            try:
                for node in newcomers:
                    await node.publish(MEMBERS, b"of " + node.key[:4], ttl_s=60)
                for node in newcomers:
                    before = node.traffic.received.total
                    found = await node.lookup(MEMBERS)
                    for other in newcomers:
                        assert found[other.key] == b"of " + other.key[:4]
                    assert node.traffic.received.total - before < 100_000
                    assert (await node.lookup(name_of(RUN)))[operator.key] == HEAD
            finally:
                for node in newcomers:
                    await node.close()

    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), nodes_of(tmp_path, 1) as nodes:
            await story(*nodes)

    asyncio.run(whole())
