"""How far others are: measured by tiny calls in memory, where time is virtual."""

import random
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import pytest

from manta_swarm.network.distances import METHOD, NUM_LANDMARKS, Distances, serve_pings
from manta_swarm.network.lan import Networks
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.affinity import MAX_DISTANCES, SAME_SITE, Position, distance_us, tag_of
from manta_swarm.protocol.signing import Identity, sha256
from tests.network.virtual_time import LOOP_CLOCK

pytestmark = pytest.mark.virtual_time
RUN = sha256(b"run")
OPERATOR = Identity(sha256(b"operator")).public_key
PEERS = sorted((Identity(sha256(b"peer %d" % i)).public_key for i in range(30)), key=tag_of)
HOME, WORK = ip_network("192.168.1.0/24"), ip_network("192.168.7.0/24")


class Town:
    """Peers some way apart, all of whom answer pings, and an operator."""

    def __init__(self, count: int, one_way_ms: Callable[[int, int], float]) -> None:
        """Peers are numbered from 0 in the order of their tags; the operator is -1."""
        keys = {OPERATOR: -1, **{key: number for number, key in enumerate(PEERS)}}
        self.noise_ms: Callable[[], float] = lambda: 0.0
        self.network = MemoryNetwork(
            delay_s=lambda one, other, _method: (2 * one_way_ms(*sorted((keys[one], keys[other]))) + self.noise_ms()) / 1000
        )
        self.networks: dict[int, Networks] = {}
        self.operator = self.network.endpoint(OPERATOR)
        self.endpoints = [self.network.endpoint(key) for key in PEERS[:count]]
        self.neighbours = [Neighbours(endpoint, RUN, LOOP_CLOCK) for endpoint in self.endpoints]
        self.distances = [
            Distances(endpoint, neighbours, [OPERATOR], b"", clock=LOOP_CLOCK, rng=random.Random(number))
            for number, (endpoint, neighbours) in enumerate(zip(self.endpoints, self.neighbours, strict=True))
        ]

    async def open(self) -> "Town":
        for endpoint in (self.operator, *self.endpoints):
            await serve_pings(endpoint)
        return self

    async def look(self, *, measure: bool = True) -> None:
        """Let all measure, announce themselves and look, as peers do again and again."""
        for number, neighbours in enumerate(self.neighbours):
            if measure:
                await self.distances[number].measure((), list(self.networks.get(number, ())))
            await neighbours.announce(cohort="here", round_=0, position=self.distances[number].position(is_grouped=True))
        for neighbours in self.neighbours:
            await neighbours.look()


def steps_of(position: Position) -> dict[bytes, int]:
    return dict(position.distances)


async def test_landmarks_are_the_operators_and_the_smallest_hashes_for_everybody() -> None:
    town = await Town(6, lambda *_: 1.0).open()
    await town.look()
    for number, distances in enumerate(town.distances):
        others = [key for key in PEERS[:NUM_LANDMARKS] if key != PEERS[number]]
        assert distances.landmarks == [OPERATOR, *others]


async def test_two_that_never_measured_each_other_are_bounded_by_a_landmark() -> None:
    """The peers 4 and 5 are 1 and 2 ms from the operator."""
    town = await Town(6, lambda one, other: {4: 0.5, 5: 1.0}.get(other, 30.0) if one == -1 else 30.0).open()
    await town.look()
    await town.distances[4].measure((), [])
    own = town.distances[4].position(is_grouped=True)
    assert steps_of(own)[tag_of(OPERATOR)] == 0
    placed = {each.key: each for each in town.neighbours[0].others()}
    assert distance_us(placed[PEERS[4]], placed[PEERS[5]]) == 3_000


async def test_noise_changes_nothing_once_the_shortest_was_seen() -> None:
    rng = random.Random(1)
    town = await Town(5, lambda *_: 3.0).open()
    await town.look()
    before = [distances.position(is_grouped=True) for distances in town.distances]
    town.noise_ms = lambda: rng.expovariate(1 / 20)
    for _ in range(4):
        await town.look()
        known = [steps_of(distances.position(is_grouped=True)) for distances in town.distances]
        for number, position in enumerate(before):
            assert known[number].items() >= steps_of(position).items()


async def test_who_moved_away_is_found_out_though() -> None:
    town = await Town(3, lambda *_: 1.0).open()
    await town.look()
    near = steps_of(town.distances[0].position(is_grouped=True))[tag_of(OPERATOR)]
    town.noise_ms = lambda: 100.0
    for _ in range(6):
        await town.look()
    assert steps_of(town.distances[0].position(is_grouped=True))[tag_of(OPERATOR)] > near


async def test_who_is_known_well_is_called_once_at_a_look_until_it_is_further_away() -> None:
    town = await Town(3, lambda *_: 1.0).open()
    calls = Counter[bytes]()

    async def answer(caller: bytes, _request: bytes) -> bytes:
        calls[caller] += 1
        return b""

    await town.operator.serve(METHOD, answer)
    for _ in range(4):
        await town.look()
    assert calls == dict.fromkeys(PEERS[:3], 32)
    calls.clear()
    await town.look()
    assert calls == dict.fromkeys(PEERS[:3], 1)
    calls.clear()
    town.noise_ms = lambda: 100.0
    await town.look()
    assert min(calls.values()) > 1


async def test_who_is_near_is_found_among_many_and_named_before_others() -> None:
    """Peers 20 and 21 are neighbours, far from everybody: each names the other among its few distances before long."""
    town = await Town(25, lambda one, other: 0.4 if (one, other) == (20, 21) else 20.0).open()
    for _ in range(10):
        await town.look()
    for one, other in ((20, 21), (21, 20)):
        position = town.distances[one].position(is_grouped=True)
        assert steps_of(position)[tag_of(PEERS[other])] == 0
        assert len(position.distances) == MAX_DISTANCES
        assert {tag_of(key) for key in town.distances[one].landmarks} <= steps_of(position).keys()


async def test_cohort_peers_are_named_before_all_others() -> None:
    town = await Town(25, lambda one, other: 40.0 if other >= 20 else 1.0).open()
    for _ in range(3):
        await town.look()
    cohort_peers = PEERS[20:25]
    await town.distances[0].measure(cohort_peers, [])
    named = steps_of(town.distances[0].position(is_grouped=True, cohort_peers=cohort_peers))
    assert {tag_of(key) for key in cohort_peers} <= named.keys()


async def test_who_does_not_answer_is_not_in_it_and_keeps_nobody() -> None:
    town = await Town(4, lambda *_: 1.0).open()
    await town.look()
    del town.endpoints[1].handlers[METHOD]
    town.network.lost = lambda _one, other, _method: other == OPERATOR
    fresh = Distances(town.endpoints[0], town.neighbours[0], [OPERATOR], b"", clock=LOOP_CLOCK)
    await fresh.measure((), [])
    assert steps_of(fresh.position(is_grouped=False)).keys() == {tag_of(key) for key in PEERS[2:4]}


async def test_a_ping_says_nothing() -> None:
    town = await Town(1, lambda *_: 1.0).open()
    assert await town.operator.call(PEERS[0], METHOD, b"", timeout_s=1.0) == b""
    with pytest.raises(Refused, match="says nothing"):
        await town.operator.call(PEERS[0], METHOD, b"x", timeout_s=1.0)


def connect(town: Town, *numbers: int, address: str = "192.168.1.%d") -> None:
    """Let these be connected to each other at such addresses."""
    for one in numbers:
        for other in numbers:
            if one != other:
                town.endpoints[one].ways[PEERS[other]] = [address % (other + 1)]


def sites(town: Town) -> list[bytes]:
    return [distances.position(is_grouped=True).site for distances in town.distances]


async def test_who_is_connected_over_a_local_network_is_of_one_site_with_all_there() -> None:
    """Peers 0 and 3 are not connected, but both to 2."""
    town = Town(4, lambda *_: 1.0)
    town.networks = {number: [HOME] for number in range(4)}
    await town.open()
    connect(town, 0, 2)
    connect(town, 2, 3)
    for _ in range(4):
        await town.look()
    assert sites(town) == [tag_of(PEERS[0]), b"", tag_of(PEERS[0]), tag_of(PEERS[0])]
    placed: Any = {each.key: each for each in town.neighbours[1].others()}
    assert distance_us(placed[PEERS[0]], placed[PEERS[3]]) == SAME_SITE


@pytest.mark.parametrize(
    ("address", "one_way_ms", "network"),
    [("203.0.113.%d", 1.0, HOME), ("192.168.7.%d", 1.0, HOME), ("192.168.1.%d", 12.0, HOME), ("192.168.1.%d", 1.0, WORK)],
    ids=["public", "another network", "beyond a tunnel", "not on it any more"],
)
async def test_who_is_not_on_it_is_of_no_site(address: str, one_way_ms: float, network: Any) -> None:
    town = Town(2, lambda *_: one_way_ms)
    town.networks = {0: [network], 1: [network]}
    await town.open()
    connect(town, 0, 1, address=address)
    for _ in range(3):
        await town.look()
    assert sites(town) == [b"", b""]


async def test_who_carries_its_laptop_elsewhere_is_of_another_site_at_the_next_look() -> None:
    town = Town(3, lambda *_: 1.0)
    town.networks = {number: [HOME] for number in range(3)}
    await town.open()
    connect(town, 0, 1, 2)
    for _ in range(3):
        await town.look()
    assert len(set(sites(town))) == 1
    town.networks[2] = [WORK]
    for one, other in ((0, 2), (1, 2), (2, 0), (2, 1)):
        town.endpoints[one].ways[PEERS[other]] = ["203.0.113.5"]
    await town.look()
    found = sites(town)
    assert found[2] == b""
    assert found[0] == found[1] != b""


async def test_a_connection_that_is_closed_for_a_while_changes_no_site() -> None:
    town = Town(2, lambda *_: 1.0)
    town.networks = {0: [HOME], 1: [HOME]}
    await town.open()
    connect(town, 0, 1)
    for _ in range(2):
        await town.look()
    before = sites(town)
    for endpoint in town.endpoints:
        endpoint.ways.clear()
    await town.look()
    assert sites(town) == before
    assert before[0] == before[1] != b""
