"""Who of the other operators is there, and where they are looked for after a start."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.operators.contact import SILENT_S, Contact
from manta_swarm.network.distances import serve_pings
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name
from tests.clocks import ManualClock
from tests.memory_log import until

KEYS = [Identity(bytes([number + 1]) * 32).public_key for number in range(4)]
OPERATORS = Operators(b"r" * 32, tuple(KEYS), 3)


class Scene:
    """Four operators' endpoints, one of which looks at the others; the time is what a test says."""

    def __init__(self, directory: Path) -> None:
        self.network = MemoryNetwork()
        self.nodes = [self.network.endpoint(key) for key in KEYS]
        for place, node in enumerate(self.nodes):
            node.listens_at = [address(place)]
        self.directory = directory
        self.clock = ManualClock()

    async def start(self) -> Contact:
        for node in self.nodes:
            await serve_pings(node)
        return Contact(self.nodes[0], OPERATORS, self.directory, clock=self.clock)


def address(place: int) -> str:
    return f"/ip4/10.0.0.{place + 1}/tcp/31000/p2p/{peer_name(KEYS[place])}"


@pytest.mark.virtual_time
async def test_a_quorum_is_there_or_lost(tmp_path: Path) -> None:
    world = Scene(tmp_path)
    contact = await world.start()
    assert not contact.is_quorum()
    keeping = asyncio.create_task(contact.keep())
    await until(lambda: len(contact.heard) == 3)
    losing = asyncio.create_task(contact.lost())
    for key in KEYS[1:3]:
        del world.network.endpoints[key]
    world.clock.advance(SILENT_S)
    await asyncio.wait_for(losing, 60)
    await until(lambda: contact.heard == [KEYS[3]])
    assert not contact.is_quorum()
    await serve_pings(world.network.endpoint(KEYS[1]))
    await until(contact.is_quorum)
    keeping.cancel()


@pytest.mark.virtual_time
async def test_one_that_was_away_finds_the_others_where_it_saw_them_last(tmp_path: Path) -> None:
    world = Scene(tmp_path)
    keeping = asyncio.create_task((await world.start()).keep())
    path = tmp_path / "operators" / "addresses.json"
    await until(lambda: path.exists() and len(json.loads(path.read_text())) == 3)
    keeping.cancel()
    asked: list[tuple[PublicKey, list[str]]] = []

    class Meeting(MemoryEndpoint):
        async def meet_again(self, key: PublicKey, maddrs: Sequence[str] = ()) -> None:
            asked.append((key, list(maddrs)))

    node = world.network.endpoints[KEYS[0]] = Meeting(world.network, KEYS[0])
    for key in KEYS[1:]:
        del world.network.endpoints[key]
    again = asyncio.create_task(Contact(node, OPERATORS, tmp_path).keep())
    await until(lambda: len(asked) >= 3)
    again.cancel()
    assert sorted(asked)[:3] == sorted((KEYS[place], [address(place)]) for place in (1, 2, 3))


async def test_addresses_that_somebody_edited_are_left(tmp_path: Path) -> None:
    path = tmp_path / "operators" / "addresses.json"
    path.parent.mkdir()
    for text in (
        "",
        "{",
        "[]",
        '{"a": ["nowhere"]}',
        '{"a": 7}',
        '{"a": [7]}',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ):
        path.write_text(text)
        contact = await Scene(tmp_path).start()
        assert not contact.heard
