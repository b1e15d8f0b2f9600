"""What peers agree on who know only some of a larger run: each finds its cohort among them, and all of a cohort say the same of it."""

import asyncio
import random
from collections import defaultdict

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.distances import Distances, serve_pings
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.cohort.cohort_membership import Choice, CohortMembership, Membership
from manta_swarm.protocol.affinity import MAX_GROUP
from manta_swarm.protocol.signing import PublicKey, sha256
from tests.network.test_neighbours import ProvenCohortPeers
from tests.network.virtual_time import LOOP_CLOCK, run_virtual

RUN = sha256(b"run")
OPERATOR = PublicKey(sha256(b"operator"))
NEAR_S, FAR_S = 0.001, 0.04
MAX_NEIGHBOURS, MAX_NEAR, SPLIT, JOIN = 24, 12, 36, 24


@pytest.fixture(autouse=True)
def _some_dozens_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the proportions of a large run: what all look at grows with the square of their number."""
    for name, number in {"MAX_NEIGHBOURS": MAX_NEIGHBOURS, "MAX_NEAR": MAX_NEAR, "SPLIT": SPLIT, "JOIN": JOIN}.items():
        monkeypatch.setattr(f"manta_swarm.network.neighbours.{name}", number)


class Region:
    """Peers in places that are far from each other and from the operator; those of one place share a host."""

    def __init__(self, num_peers: int, a_place: int) -> None:
        self.keys = [PublicKey(sha256(b"region %d" % number)) for number in range(num_peers)]
        self.place = {key: number // a_place for number, key in enumerate(self.keys)} | {OPERATOR: -1}
        network = MemoryNetwork(delay_s=lambda one, other, _method: NEAR_S if self.place[one] == self.place[other] else FAR_S)
        self._endpoints = {key: network.endpoint(key) for key in (OPERATOR, *self.keys)}
        self.neighbours: dict[PublicKey, Neighbours] = {}
        self.companies: dict[PublicKey, CohortMembership] = {}
        for number, key in enumerate(self.keys):
            endpoint, host = self._endpoints[key], sha256(b"host %d" % self.place[key])[:16]
            near = Neighbours(endpoint, RUN, LOOP_CLOCK, proven=ProvenCohortPeers([]), rng=random.Random(number))
            distances = Distances(endpoint, near, [OPERATOR], host, clock=LOOP_CLOCK, rng=random.Random(number))
            self.neighbours[key] = near
            self.companies[key] = CohortMembership(key, Membership(Choice.AFFINITY, ""), near, distances, OPERATOR)
        self._rng = random.Random(1)
        self._told: dict[PublicKey, str] = {}  # the name that each announced

    async def open(self) -> None:
        for key in self.keys:
            await self.neighbours[key].start()
        for endpoint in self._endpoints.values():
            await serve_pings(endpoint)

    async def look(self) -> set[str]:
        """Let all look once, in any order; return the names of cohorts that somebody came to or went from."""
        changed = set()
        for key in self._rng.sample(self.keys, len(self.keys)):
            cohort_membership, neighbours = self.companies[key], self.neighbours[key]
            await cohort_membership.measure([])
            await neighbours.look()
            cohort_membership.update()
            await neighbours.announce(cohort=cohort_membership.name, round_=0, position=cohort_membership.position())
            await neighbours.tell(cohort_membership.expected)
            if cohort_membership.name != (before := self._told.get(key, "")):
                changed |= {before, cohort_membership.name}
                self._told[key] = cohort_membership.name
        await asyncio.sleep(timeouts.ANNOUNCE_S[0])
        return changed

    def views(self) -> dict[str, set[frozenset[PublicKey]]]:
        """Return by cohort who is in it as its members see it."""
        found: dict[str, set[frozenset[PublicKey]]] = defaultdict(set)
        for key, cohort_membership in self.companies.items():
            found[cohort_membership.name].add(frozenset({key, *(cohort_membership.own_cohort.members or ())}))
        return found

    def sizes(self) -> list[int]:
        """Return the size of each cohort, as those see it who see the fewest."""
        return [min(map(len, views)) for views in self.views().values()]


async def grow(region: Region, *, looks: int) -> None:
    """Let all look so often; whoever is in a cohort that nobody came to or went from at a look says the same of it as all others in it."""
    await region.open()
    settled = 0
    for _ in range(looks):
        changed = await region.look()
        for name, views in region.views().items():
            if name not in changed:
                assert len(views) == 1, f"{name}: {[sorted(key.hex()[:6] for key in view) for view in views]}"
                settled += len(next(iter(views))) > 1
        assert all(len(neighbours.members()) <= MAX_NEIGHBOURS for neighbours in region.neighbours.values())
    assert settled > 0
    for views in region.views().values():
        for view in views:
            assert len(view) <= MAX_GROUP
            assert len({region.place[key] for key in view}) == 1


def test_cohort_peers_find_each_other_in_a_run_of_more_than_each_knows_and_agree() -> None:
    region = Region(51, 3)
    assert len(region.keys) > max(2 * MAX_NEIGHBOURS, SPLIT)
    run_virtual(grow(region, looks=4))
    assert region.sizes() == [3] * (len(region.keys) // 3)


def test_a_host_of_more_than_are_known_as_near_is_divided_into_cohorts_on_which_their_members_agree() -> None:
    region = Region(MAX_NEAR * 3 // 2, MAX_NEAR * 3 // 2)
    run_virtual(grow(region, looks=5))
    assert min(region.sizes()) > 1
