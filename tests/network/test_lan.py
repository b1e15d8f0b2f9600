"""Cohort peers on one local network find each other's addresses, and nobody else reads them, or makes them dial elsewhere."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from manta_swarm.network import lan
from manta_swarm.network.lan import LocalNetwork
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import PublicKey, peer_name
from tests.network.nodes import PEERS

RUN, SECRET = b"r" * 32, b"s" * 32
KEYS = [identity.public_key for identity in PEERS]
HOME = ipaddress.ip_network("192.168.1.0/24")


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lan, "own_networks", lambda: ([HOME], {"192.168.1.2"}))


class _Dialling:
    """Peers in memory that note whom they dial."""

    def __init__(self, count: int = 3) -> None:
        self.network = MemoryNetwork()
        self.nodes = [self.network.endpoint(key) for key in KEYS[:count]]
        self.dialled: list[tuple[PublicKey, tuple[str, ...]]] = []
        for node in self.nodes:
            self._note(node)

    def _note(self, node: MemoryEndpoint) -> None:
        async def introduce(key: PublicKey, maddrs: Sequence[str]) -> None:
            self.dialled.append((key, tuple(maddrs)))
            if key == KEYS[2]:
                raise Unreachable("switched off")

        node.introduce = introduce  # type: ignore[method-assign]


async def test_a_cohort_peer_s_addresses_on_this_network_are_dialled_and_no_others() -> None:
    scene = _Dialling()
    one, two, three = scene.nodes
    two.listens_at = [f"/ip4/{host}/tcp/4000/p2p/{peer_name(two.key)}" for host in ("127.0.0.1", "192.168.1.3", "10.0.0.3", "192.168.1.2")]
    three.listens_at = ["/ip4/192.168.1.4/tcp/4001"]
    for node in (two, three):
        await LocalNetwork(node, RUN, SECRET, "home").publish(60)
    cohort_peers = LocalNetwork(one, RUN, SECRET, "home")
    await cohort_peers.meet([])  # one of the two is not there, which is no error
    assert sorted(scene.dialled) == sorted(
        [
            (two.key, (f"/ip4/192.168.1.3/tcp/4000/p2p/{peer_name(two.key)}",)),
            (three.key, (f"/ip4/192.168.1.4/tcp/4001/p2p/{peer_name(three.key)}",)),
        ]
    )
    scene.dialled.clear()
    await cohort_peers.meet([two.key, three.key])  # who is met already is left in peace
    assert scene.dialled == []


async def test_a_peer_that_listens_on_no_network_says_nothing() -> None:
    scene = _Dialling()
    scene.nodes[0].listens_at = ["/ip4/127.0.0.1/tcp/4000"]
    await LocalNetwork(scene.nodes[0], RUN, SECRET, "home").publish(60)
    assert scene.network.records == {}


@pytest.mark.parametrize("other", [(b"q" * 32, SECRET, "home"), (RUN, b"t" * 32, "home"), (RUN, SECRET, "away")])
async def test_another_cohort_s_cohort_peers_are_not_found(other: tuple[bytes, bytes, str]) -> None:
    scene = _Dialling()
    scene.nodes[1].listens_at = ["/ip4/192.168.1.3/tcp/4000"]
    await LocalNetwork(scene.nodes[1], *other).publish(60)
    await LocalNetwork(scene.nodes[0], RUN, SECRET, "home").meet([])
    assert scene.dialled == []


async def test_what_nobody_of_the_cohort_sealed_is_counted_and_left_alone() -> None:
    scene = _Dialling()
    one, two, three = scene.nodes
    two.listens_at = ["/ip4/192.168.1.3/tcp/4000"]
    await LocalNetwork(two, RUN, SECRET, "home").publish(60)
    ((name, records),) = scene.network.records.items()
    sealed = records[two.key]
    assert b"192.168" not in sealed
    cohort_peers = LocalNetwork(one, RUN, SECRET, "home")
    for data in (b"", b"x" * 20, b"x" * 5000, sealed[:-1], sealed):
        scene.network.records[name] = {three.key: data}  # the last is another one's, under a key that did not write it
        await cohort_peers.meet([])
    assert (scene.dialled, cohort_peers.malformed) == ([], 5)


@dataclass(frozen=True, slots=True)
class _AnyPlaces:
    """What a node says of where it listens, true or not."""

    places: tuple[tuple[str, int], ...]


@pytest.mark.parametrize("place", [("fe80::1%x", 4000), ("192.168.1.3%1", 4000), ("nowhere", 4000), ("192.168.1.3", 65536)])
async def test_an_address_that_is_none_is_counted_and_left_alone_whoever_sealed_it(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lan, "own_networks", lambda: ([HOME, ipaddress.ip_network("fe80::/64")], {"192.168.1.2"}))
    scene = _Dialling()
    one, two, _ = scene.nodes
    cohort_peers, others = (LocalNetwork(node, RUN, SECRET, "home") for node in (one, two))
    nonce = bytes(12)
    sealed = others._seal.encrypt(nonce, pack(_AnyPlaces((place,))), others._about(two.key))
    await two.publish(others._name, nonce + sealed, ttl_s=60)
    await cohort_peers.meet([])
    assert (scene.dialled, cohort_peers.malformed) == ([], 1)
