"""Which cohort a peer is of, and why, among peers that measure, announce themselves and look, in memory and virtual time."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from manta_swarm.automl.training.schedule import Plan
from manta_swarm.network import timeouts
from manta_swarm.network.distances import Distances, serve_pings
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.cohort.cohort_membership import Choice, CohortMembership, FirstCohort
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.protocol.affinity import MAX_GROUP, first_name
from manta_swarm.protocol.cohorts import ALL
from manta_swarm.protocol.manifest import Optimizer
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name, sha256
from tests.network.test_neighbours import ProvenCohortPeers
from tests.network.virtual_time import LOOP_CLOCK

pytestmark = pytest.mark.virtual_time

RUN = sha256(b"run")
OPERATOR = Identity(sha256(b"operator")).public_key
PEERS = [Identity(sha256(b"cohort membership %d" % i)).public_key for i in range(51)]
PLAN = Plan("classifier-tiny", "sandwich", "model-parallel", Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0, "0.9", "0.5"), 9, 0)


class Crowd:
    """Peers whose hosts and ways are given by number; the operator is -1."""

    def __init__(
        self,
        choices: Sequence[Choice],
        *,
        hosts: Sequence[bytes] = (),
        sizes: Sequence[int] = (),
        one_way_ms: Callable[[int, int], float] = lambda *_: 20.0,
    ) -> None:
        keys = {OPERATOR: -1, **{key: number for number, key in enumerate(PEERS)}}
        network = MemoryNetwork(delay_s=lambda one, other, _method: 2 * one_way_ms(*sorted((keys[one], keys[other]))) / 1000)
        self.endpoints = [network.endpoint(OPERATOR)]
        self.neighbours: list[Neighbours] = []
        self.companies: list[CohortMembership] = []
        for number, choice in enumerate(choices):
            endpoint = network.endpoint(PEERS[number])
            host = hosts[number] if hosts else b""
            has_proved = choice is Choice.LABEL and bool(sizes)
            neighbours = Neighbours(
                endpoint, RUN, LOOP_CLOCK, proven=None if has_proved else ProvenCohortPeers([]), rng=random.Random(number)
            )
            distances = Distances(endpoint, neighbours, [OPERATOR], host, clock=LOOP_CLOCK, rng=random.Random(number))
            self.endpoints.append(endpoint)
            self.neighbours.append(neighbours)
            sizing = Sizing(PLAN, 32, given=sizes[number]) if sizes else None
            self.companies.append(CohortMembership(PEERS[number], FirstCohort(choice, "lab"), neighbours, distances, OPERATOR, sizing))

    async def look(self, numbers: Sequence[int] | None = None) -> None:
        """Let these, or all, do once what peers do again and again."""
        for number in range(len(self.companies)) if numbers is None else numbers:
            cohort_membership, neighbours = self.companies[number], self.neighbours[number]
            await cohort_membership.measure([])
            await neighbours.look()
            cohort_membership.update()
            await neighbours.announce(
                cohort=cohort_membership.name, round_=0, position=cohort_membership.position(), size=cohort_membership.own_size
            )

    def names(self) -> list[str]:
        return [cohort_membership.name for cohort_membership in self.companies]


async def crowd_of(choices: Sequence[Choice], *, looks: int = 3, **settings: Any) -> Crowd:
    """Return a crowd in which all can be measured, once all have looked so often."""
    crowd = Crowd(choices, **settings)
    for endpoint in crowd.endpoints:
        await serve_pings(endpoint)
    for _ in range(looks):
        await crowd.look()
    return crowd


OPEN = Choice.AFFINITY
EAST, WEST = b"e" * 16, b"w" * 16


async def test_those_of_a_host_find_each_other_without_a_label_and_stay() -> None:
    crowd = await crowd_of([OPEN] * 6, hosts=[EAST] * 3 + [WEST] * 3, looks=0)
    assert crowd.names() == [first_name(key) for key in PEERS[:6]]
    for _ in range(3):
        await crowd.look()
    names = crowd.names()
    assert len(set(names)) == 2
    assert len({*names[:3]}) == len({*names[3:]}) == 1
    for number, cohort_membership in enumerate(crowd.companies):
        others = range(3) if number < 3 else range(3, 6)
        assert cohort_membership.own_cohort.members == {PEERS[other] for other in others if other != number}
    for _ in range(3):
        await crowd.look()
        assert crowd.names() == names
    assert crowd.companies[0].why(()) == "same host as 2 others"


async def test_those_a_short_way_apart_are_a_cohort_and_a_far_one_is_alone() -> None:
    crowd = await crowd_of([OPEN] * 3, one_way_ms=lambda one, other: 1.0 if (one, other) == (0, 1) else 20.0, looks=4)
    names = crowd.names()
    assert names[0] == names[1] != names[2] == first_name(PEERS[2])
    assert crowd.companies[0].why(()) == "at most 2.0 ms from 1 other"
    assert crowd.companies[2].why(()) == "alone: nobody is near enough; the nearest is up to 45 ms away"
    assert "45 ms from the aggregator" in crowd.companies[2].round_trips()


async def test_who_has_a_label_or_is_alone_is_in_no_cohort_of_others() -> None:
    crowd = await crowd_of([OPEN, OPEN, Choice.LABEL, Choice.ALONE], hosts=[EAST] * 4)
    names = crowd.names()
    assert names[0] == names[1] != names[2] == names[3] == "lab"
    assert crowd.companies[0].own_cohort.members == {PEERS[1]}
    assert crowd.companies[2].own_cohort.members is None
    assert crowd.companies[3].own_cohort.members == frozenset()
    assert crowd.companies[2].why([PEERS[0]]) == "label given: --cohort lab; 1 cohort peer with its token"


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Choice.ALONE, "alone, as --alone says"),
        (Choice.GATEWAY, "alone with its light contributors: a gateway"),
        (Choice.NOISE, "alone: it adds noise to what it hands in"),
    ],
)
async def test_who_is_alone_says_the_true_reason(choice: Choice, says: str) -> None:
    crowd = await crowd_of([choice, OPEN], hosts=[EAST] * 2, looks=1)
    assert crowd.companies[0].own_cohort.members == frozenset()
    assert crowd.companies[0].why(()).startswith(says)


@pytest.mark.parametrize("choice", [Choice.HOST, Choice.LABEL, Choice.ALONE, Choice.GATEWAY, Choice.NOISE])
async def test_where_affinity_does_not_decide_it_suggests_who_is_near(choice: Choice) -> None:
    near = {(0, 2), (1, 2)}
    crowd = await crowd_of([choice] * 4, hosts=[EAST, EAST, b"", b""], one_way_ms=lambda *pair: 1.0 if pair in near else 20.0)
    assert set(crowd.names()) == {"lab"}
    suggestion = crowd.companies[0].suggestion()
    assert suggestion == "same host as 1 other, at most 2.0 ms from 1 other"
    assert crowd.companies[3].suggestion() == ""


async def test_a_lone_peer_of_a_token_says_why() -> None:
    crowd = await crowd_of([Choice.HOST, OPEN], looks=1)
    assert crowd.companies[0].why(()).startswith("alone: no other peer of this user on this host")
    assert crowd.companies[0].why([PublicKey(PEERS[1])]) == "1 other peer of the same user on this host"
    assert crowd.companies[1].why(()) == "alone: nobody else is in the run whose cohort affinity decides"


@pytest.mark.parametrize("choice", [OPEN, Choice.LABEL])
async def test_a_slow_member_lowers_the_cohorts_size_and_its_leaving_raises_it_again(choice: Choice) -> None:
    crowd = await crowd_of([choice] * 3, hosts=[EAST] * 3, sizes=[ALL, 3, 1], looks=0)
    for _ in range(3):
        await crowd.look([0, 1])
    (name,) = set(crowd.names()[:2])
    assert {cohort_membership.own_cohort.name for cohort_membership in crowd.companies[:2]} == {f"{name}.size-3"}
    assert crowd.companies[1].why_size() == "3 of 4: its slowest device is this one, --size 3"
    for _ in range(3):
        await crowd.look()
    assert set(crowd.names()) == {name}  # what they meet by is the same whatever the size
    assert {cohort_membership.own_cohort.name for cohort_membership in crowd.companies} == {f"{name}.size-1"}
    assert crowd.companies[0].why_size() == f"1 of 4: its slowest device is that of {peer_name(PEERS[2])[-8:]}"
    assert crowd.companies[2].why_size().startswith("1 of 4: its slowest device is this one")
    await crowd.neighbours[2].withdraw()
    for _ in range(2):
        await crowd.look([0, 1])
    assert {cohort_membership.own_cohort.name for cohort_membership in crowd.companies[:2]} == {f"{name}.size-3"}


async def test_work_that_begins_before_the_next_look_goes_by_the_size_that_all_have_seen() -> None:
    crowd = await crowd_of([OPEN] * 2, hosts=[EAST] * 2, sizes=[ALL, ALL])
    cohort_membership = crowd.companies[0]
    before = cohort_membership.own_cohort.name
    cohort_membership._sizing = Sizing(PLAN, 32, given=2)
    assert (cohort_membership.own_size, cohort_membership.own_cohort.name) == (2, before)
    assert cohort_membership.update()  # to be announced at once
    assert cohort_membership.own_cohort.name == f"{before}.size-2"
    assert not cohort_membership.update()


async def test_who_is_alone_need_not_wait_for_a_look() -> None:
    crowd = await crowd_of([Choice.ALONE] * 2, sizes=[ALL, 1], looks=1)
    lone, other = crowd.companies
    lone._sizing = Sizing(PLAN, 32, given=2)
    assert lone.own_cohort.name == "lab.size-2"
    assert lone.why_size() == "2 of 4: --size 2"
    assert other.own_cohort.name == "lab.size-1"  # whoever else goes by that name


async def test_in_a_run_without_sizes_names_say_none_and_all_is_announced() -> None:
    crowd = await crowd_of([OPEN, OPEN, Choice.ALONE], hosts=[EAST] * 3)
    assert [cohort_membership.own_cohort.name for cohort_membership in crowd.companies] == crowd.names()
    assert {cohort_membership.own_size for cohort_membership in crowd.companies} == {ALL}
    assert {cohort_membership.why_size() for cohort_membership in crowd.companies} == {""}


# Of a run of more than each knows: each finds its cohort among those, and all of a cohort say the same of it.

MAX_NEIGHBOURS, MAX_NEAR, SPLIT, JOIN = 24, 12, 36, 24


@pytest.fixture
def some_dozens_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the proportions of a large run: what all look at grows with the square of their number."""
    for name, number in {"MAX_NEIGHBOURS": MAX_NEIGHBOURS, "MAX_NEAR": MAX_NEAR, "SPLIT": SPLIT, "JOIN": JOIN}.items():
        monkeypatch.setattr(f"manta_swarm.network.neighbours.{name}", number)


def views(crowd: Crowd) -> dict[str, set[frozenset[bytes]]]:
    """Return by cohort who is in it as its members see it."""
    found: dict[str, set[frozenset[bytes]]] = defaultdict(set)
    for key, cohort_membership in zip(PEERS, crowd.companies, strict=False):
        found[cohort_membership.name].add(frozenset({key, *(cohort_membership.own_cohort.members or ())}))
    return found


async def sizes(num_peers: int, a_host: int, *, looks: int) -> list[int]:
    """Let all look so often, in any order; return the size of each cohort, as those see it who see the fewest.

    Whoever is in a cohort that nobody came to or went from at a look says the same of it as all others in it.
    """
    hosts = [sha256(b"host %d" % (number // a_host))[:16] for number in range(num_peers)]
    one_way_ms = lambda one, other: 0.5 if one >= 0 and hosts[one] == hosts[other] else 20.0  # noqa: E731
    crowd = await crowd_of([OPEN] * num_peers, looks=0, hosts=hosts, one_way_ms=one_way_ms)
    for neighbours in crowd.neighbours:
        await neighbours.start()
    rng, told, settled = random.Random(1), [""] * num_peers, 0
    for _ in range(looks):
        changed = set()
        for number in rng.sample(range(num_peers), num_peers):
            await crowd.look([number])
            await crowd.neighbours[number].tell(crowd.companies[number].expected)
            if (name := crowd.companies[number].name) != told[number]:
                changed |= {told[number], name}
                told[number] = name
        await asyncio.sleep(timeouts.ANNOUNCE_S[0])
        for name, seen in views(crowd).items():
            if name not in changed:
                assert len(seen) == 1, f"{name}: {[sorted(key.hex()[:6] for key in view) for view in seen]}"
                settled += len(next(iter(seen))) > 1
        assert all(len(neighbours.members()) <= MAX_NEIGHBOURS for neighbours in crowd.neighbours)
    assert settled > 0
    for view in (view for seen in views(crowd).values() for view in seen):
        assert len(view) <= MAX_GROUP
        assert len({hosts[PEERS.index(key)] for key in view}) == 1
    return [min(map(len, seen)) for seen in views(crowd).values()]


@pytest.mark.usefixtures("some_dozens_are_many")
async def test_cohort_peers_find_each_other_in_a_run_of_more_than_each_knows_and_agree() -> None:
    assert len(PEERS) > max(2 * MAX_NEIGHBOURS, SPLIT)
    assert await sizes(len(PEERS), 3, looks=4) == [3] * (len(PEERS) // 3)


@pytest.mark.usefixtures("some_dozens_are_many")
async def test_a_host_of_more_than_are_known_as_near_is_divided_into_cohorts_on_which_their_members_agree() -> None:
    assert min(await sizes(MAX_NEAR * 3 // 2, MAX_NEAR * 3 // 2, looks=5)) > 1
