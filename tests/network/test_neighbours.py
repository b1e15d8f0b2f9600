"""Who is found in the DHT, who is not believed, and who is forgotten; in buckets while a run grows and shrinks; and who is near."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from manta_swarm.network import neighbours, timeouts
from manta_swarm.network.dht_storage import MAX_NAMES_OF_AN_OWNER
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.neighbours import JOIN, MAX_NEAR, MAX_NEIGHBOURS, SPLIT, Neighbours
from manta_swarm.protocol.affinity import FAR, NOWHERE, STEPS_US, PlacedPeer, Position, tag_of
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.records import Announcement
from manta_swarm.protocol.signing import PublicKey, sha256
from tests.clocks import ManualClock
from tests.documents import ROOT
from tests.network.members import PEERS, run

RUN = sha256(b"run")
NAME = f"manta-{RUN.hex()}-members"


class ProvenCohortPeers:
    """The cohort peers that proved to be of the cohort."""

    def __init__(self, endpoints: Sequence[MemoryEndpoint]) -> None:
        self._keys = [endpoint.key for endpoint in endpoints]

    def cohort_peers(self) -> list[PublicKey]:
        return self._keys


def endpoints(count: int) -> list[MemoryEndpoint]:
    network = MemoryNetwork()
    return [network.endpoint(peer.public_key) for peer in PEERS[:count]]


def records_of(endpoint: MemoryEndpoint) -> dict[PublicKey, bytes]:
    return endpoint._network.records.setdefault(NAME, {})


async def test_those_who_announce_themselves_find_each_other_and_nobody_finds_himself() -> None:
    known = [Neighbours(endpoint, RUN) for endpoint in endpoints(3)]
    for one in known:
        await one.announce(cohort="here", round_=4)
    for place, one in enumerate(known):
        await one.look()
        assert set(one.members()) == {peer.public_key for other, peer in enumerate(PEERS[:3]) if other != place}


def test_announcements_stand_under_the_names_of_the_document() -> None:
    here = endpoints(1)[0]
    known = Neighbours(here, RUN, secret=b"s" * 32)
    known._judge(5_000)
    run(known.announce(cohort="here", round_=1))
    records = json.loads((ROOT / "docs" / "protocol.json").read_text(encoding="utf-8"))["dht_records"]
    told = [record["name"].replace("<run, hex>", RUN.hex()) for record in records if record["value"] == "packed Announcement"]
    patterns = [re.compile(re.sub("<[^>]*>", "[0-9a-f]+", name)) for name in told]
    found = {name: [pattern.pattern for pattern in patterns if pattern.fullmatch(name)] for name in here._network.records}
    assert len(found) > 2
    assert all(found.values()), found


async def test_an_announcement_in_another_s_name_for_another_run_or_malformed_is_counted_and_hides_nobody() -> None:
    here, honest, *liars = endpoints(6)
    known = Neighbours(here, RUN)
    await Neighbours(honest, RUN).announce(cohort="here", round_=1)
    right = Announcement(RUN, liars[0].key, "here", 1, 10)
    junk = [
        pack(replace(right, key=honest.key)),
        pack(replace(right, key=liars[1].key, run=sha256(b"another"))),
        b"\x80" * 400,
        bytes(5_000),
    ]
    for liar, data in zip(liars, junk, strict=True):
        records_of(here)[liar.key] = data
    await known.look()
    assert known.members() == [honest.key]
    assert known.malformed == len(junk)


async def test_who_withdraws_is_forgotten_at_the_next_look_and_may_come_back() -> None:
    here, there, third = endpoints(3)
    known, leaving = Neighbours(here, RUN), Neighbours(there, RUN)
    await leaving.withdraw()  # it never announced itself: there is nothing to withdraw
    assert records_of(here) == {}
    for one in (leaving, Neighbours(third, RUN)):
        await one.announce(cohort="here", round_=1)
    await known.announce(cohort="here", round_=1)
    await known.look()
    assert set(known.members()) == {there.key, third.key}
    await leaving.withdraw()
    await known.look()
    assert known.members() == known.at_meeting() == [third.key]
    assert known.malformed == 0
    await leaving.announce(cohort="here", round_=2)
    await known.look()
    assert set(known.members()) == {there.key, third.key}


async def test_an_older_announcement_changes_nothing() -> None:
    here, other = endpoints(2)
    clock = ManualClock()
    known = Neighbours(here, RUN, clock)
    for sequence in (20, 10):
        records_of(here)[other.key] = pack(Announcement(RUN, other.key, "here", 1, sequence))
        await known.look()
        clock.advance(timeouts.ANNOUNCED_S - 1)
    clock.advance(2)
    assert known.members() == []


async def test_who_is_silent_or_cannot_be_reached_is_forgotten_and_comes_back_by_a_new_announcement() -> None:
    here, other = endpoints(2)
    clock = ManualClock()
    known, theirs = Neighbours(here, RUN, clock), Neighbours(other, RUN)
    await theirs.announce(cohort="here", round_=1)
    await known.look()
    known.forget(other.key)
    assert known.members() == []
    await theirs.announce(cohort="here", round_=2)
    await known.look()
    assert known.members() == [other.key]
    clock.advance(100 * timeouts.ANNOUNCED_S)
    assert known.members() == []
    known.forget(PEERS[5].public_key)  # nobody


async def test_who_cannot_be_reached_does_not_come_back_by_its_old_announcement() -> None:
    here, other = endpoints(2)
    clock = ManualClock()
    known = Neighbours(here, RUN, clock)
    await Neighbours(other, RUN).announce(cohort="here", round_=1)
    await known.look()
    known.forget(other.key)
    for _ in range(5):  # the DHT still has it
        clock.advance(timeouts.ANNOUNCE_S[0])
        await known.look()
        assert known.members() == []
    del records_of(here)[other.key]
    clock.advance(timeouts.ANNOUNCED_S)
    await known.look()
    assert known._known == {}


async def test_who_is_forgotten_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_NEIGHBOURS", 2)
    here, *others = endpoints(4)
    known = Neighbours(here, RUN)
    for other in others[:2]:
        await Neighbours(other, RUN).announce(cohort="here", round_=1)
    await known.look()
    known.forget(others[0].key)
    del records_of(here)[others[0].key]
    await Neighbours(others[2], RUN).announce(cohort="here", round_=1)
    await known.look()
    assert set(known.members()) == {others[1].key, others[2].key}


async def test_at_most_so_many_are_chosen_and_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_NEIGHBOURS", 3)
    here, *others = endpoints(8)
    known = Neighbours(here, RUN)
    for other in others:
        await Neighbours(other, RUN).announce(cohort="here", round_=1)
    await known.look()
    assert len(known.members()) == 3
    assert len(known.some(2)) == len(set(known.some(2))) == 2
    assert set(known.some(99)) == set(known.members())
    assert known.some(0) == []


def test_in_a_larger_run_everybody_looks_less_often() -> None:
    known = Neighbours(endpoints(1)[0], RUN)
    shortest_s, longest_s = timeouts.ANNOUNCE_S
    assert known.period_s == shortest_s
    for number in range(neighbours.MAX_NEIGHBOURS):
        key = PublicKey(number.to_bytes(32, "big"))
        known._known[key] = neighbours._Known(Announcement(RUN, key, "here", 1, 1), 0.0)
    assert shortest_s < known.period_s <= longest_s


# Who is near.


async def test_those_of_the_own_cohort_are_near_unless_it_is_known_that_they_are_not() -> None:
    here, *others = endpoints(6)
    known = Neighbours(here, RUN, proven=ProvenCohortPeers(others[1:]))
    for place, other in enumerate(others):
        await Neighbours(other, RUN).announce(cohort="mine" if place < 3 else "another", round_=1)
    await known.look()
    assert known.near() == []  # it has announced no cohort yet
    await known.announce(cohort="mine", round_=1)
    await known.look()
    near = {others[1].key, others[2].key}
    assert set(known.near()) == near
    assert set(known.at_meeting()) == near | {others[0].key}
    assert set(known.far(9)) == {others[0].key, others[3].key, others[4].key}
    assert len(known.far(2, without=[others[3].key])) == 2
    assert others[3].key not in known.far(3, without=[others[3].key])
    for _ in range(20):
        assert len(near.intersection(known.mixed(3))) == 2
        assert len(near.intersection(known.mixed(1))) == 1
    assert len(known.mixed(9)) == len(set(known.mixed(9))) == 5
    assert not known.is_near(PEERS[7].public_key)


def test_those_who_were_met_are_drawn_before_those_who_are_only_announced_and_stay_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbours, "MAX_NEIGHBOURS", 32)

    async def story(here: MemoryEndpoint, *others: MemoryEndpoint) -> None:
        known = Neighbours(here, RUN, rng=random.Random(1))
        for other in others:
            await Neighbours(other, RUN).announce(cohort="here", round_=1)
        await known.look()
        met = set(known.members()[:3])
        for key in met:
            known.met(key)
        known.met(PublicKey(sha256(b"a stranger")))  # nobody that is known
        draws = [known.some(4) for _ in range(100)]
        assert all(len(set(draw)) == 4 for draw in draws)
        assert 2.5 < sum(len(met & set(draw)) for draw in draws) / len(draws) <= 3  # 0.2 by chance
        before = set(known.members())
        for _ in range(50):
            await known.look()
        assert met <= set(known.members()) != before
        (gone, *_) = met
        known.forget(gone)
        assert not any(gone in known.some(4) for _ in range(20))

    network = MemoryNetwork()
    run(story(*(network.endpoint(PublicKey(sha256(b"node %d" % number))) for number in range(61))))


async def test_whoever_is_alone_in_its_cohort_mixes_others_only() -> None:
    here, *others = endpoints(5)
    known = Neighbours(here, RUN)
    await known.announce(cohort="mine", round_=1)
    for other in others:
        await Neighbours(other, RUN).announce(cohort="another", round_=1)
    await known.look()
    assert (len(known.mixed(3)), known.near()) == (3, [])


# Buckets.


class Crowd:
    """Members of one run, who announce themselves and look; records of who left are taken out of the DHT after a while."""

    def __init__(self, seed: int = 0) -> None:
        self.network = MemoryNetwork()
        self.clock = ManualClock()
        self.members: dict[PublicKey, Neighbours] = {}
        self.cohorts: dict[PublicKey, str] = {}
        self.lookups: Counter[str] = Counter()
        self.rng = random.Random(seed)
        self._number = 0

    def join(self, count: int, cohort: str = "") -> list[PublicKey]:
        """Add members, each of a cohort of its own if none is named."""
        keys = []
        for _ in range(count):
            self._number += 1
            key = PublicKey(sha256(b"member %d" % self._number))
            self.members[key] = Neighbours(self.network.endpoint(key), RUN, self.clock, rng=random.Random(self._number))
            self.cohorts[key] = cohort or f"alone-{self._number}"
            keys.append(key)
        return keys

    def leave(self, keys: Sequence[PublicKey]) -> None:
        for key in keys:
            del self.members[key]
            for records in self.network.records.values():
                records.pop(key, None)

    async def period(self) -> None:
        """Let everybody announce itself and look, in any order; records live as long as they are renewed."""
        before = {name: dict(records) for name, records in self.network.records.items()}
        for key in self.rng.sample(list(self.members), len(self.members)):
            await self.members[key].announce(cohort=self.cohorts[key], round_=1)
            await self.members[key].look()
        for name, records in self.network.records.items():
            for key, data in list(records.items()):
                if before.get(name, {}).get(key) == data:
                    del records[key]
        self.clock.advance(timeouts.ANNOUNCE_S[0])

    def reached(self) -> int:
        """Return how many can be reached from one of them, from neighbour to neighbour; who calls another can be called by it."""
        known: dict[PublicKey, set[PublicKey]] = {key: set(one.members()) & set(self.members) for key, one in self.members.items()}
        for key, one in self.members.items():
            for each in known[key].copy() & set(one.members()):
                known[each].add(key)
        new = {next(iter(self.members))}
        reached = set(new)
        while new:
            new = {each for key in new for each in known[key]} - reached
            reached |= new
        return len(reached)

    def bits(self) -> Counter[int]:
        return Counter(one._bits for one in self.members.values())


async def test_a_run_that_grows_and_shrinks_is_split_into_buckets_and_joined_and_everybody_finds_enough_others() -> None:
    crowd = Crowd()
    for size in (1, 2, 8, 60, 200):
        crowd.join(size - len(crowd.members))
        for _ in range(3 if size < SPLIT else 7):
            await crowd.period()
        assert crowd.reached() == size
        found = [len(one.members()) for one in crowd.members.values()]
        assert min(found) >= min(size - 1, 30)
        assert max(found) <= MAX_NEIGHBOURS
        sizes = sorted(one.size for one in crowd.members.values())
        assert size / 1.6 <= sizes[len(sizes) // 10] <= sizes[-len(sizes) // 10] <= size * 1.6
        if size <= JOIN:
            assert crowd.bits() == {0: size}
            assert set(found) == {size - 1}
            assert set(sizes) == {size}
    bits = crowd.bits()
    assert sum(count for number, count in bits.items() if number in (1, 2)) == 200
    counts = [len(records) for name, records in crowd.network.records.items() if "members" in name]
    assert max(counts) < 2 * SPLIT  # no name has everybody: who sees a larger run stands under the shorter prefix as well
    for size in (110, 20):
        crowd.leave(list(crowd.members)[size:])
        crowd.clock.advance(timeouts.ANNOUNCE_S[1] * 2)  # who left is forgotten
        for _ in range(3):
            await crowd.period()
        assert crowd.reached() == size
        assert min(len(one.members()) for one in crowd.members.values()) >= min(size - 1, 30)
    assert crowd.bits() == {0: 20}
    assert all(set(one.members()) == set(crowd.members) - {key} for key, one in crowd.members.items())


async def test_a_newcomer_of_a_large_run_finds_others_and_its_size_at_its_first_look() -> None:
    crowd = Crowd()
    crowd.join(150)
    for _ in range(3):
        await crowd.period()
    for key in crowd.join(5):
        newcomer = crowd.members[key]
        await newcomer.look()
        assert len(newcomer.members()) >= 30
        assert 150 / 2 <= newcomer.size <= 150 * 2
        await newcomer.announce(cohort="new", round_=0)
        names = [name for name, records in crowd.network.records.items() if key in records]
        assert 2 <= len(names) <= MAX_NAMES_OF_AN_OWNER


async def test_members_of_a_cohort_find_each_other_in_a_large_run_and_are_known_before_others() -> None:
    crowd = Crowd()
    crowd.join(150)
    await crowd.period()
    cohort_peers = crowd.join(5, "mine")
    for _ in range(2):
        await crowd.period()
    for key in cohort_peers:
        assert set(crowd.members[key].at_meeting()) == set(cohort_peers) - {key}
        assert set(crowd.members[key].near()) == set(cohort_peers) - {key}
        assert len(crowd.members[key].members()) > 30


async def test_however_many_name_a_cohort_there_is_room_for_others() -> None:
    crowd = Crowd()
    crowd.join(20)
    crowd.join(60, "mine")
    for _ in range(2):
        await crowd.period()
    one = crowd.members[crowd.join(1, "mine")[0]]
    await one.announce(cohort="mine", round_=1)
    await one.look()
    assert len(one.near()) >= MAX_NEAR
    assert len(one.members()) <= MAX_NEIGHBOURS
    assert len(one.far(99)) >= 10


async def test_strangers_who_name_a_cohort_neither_find_where_it_meets_nor_crowd_its_members_out() -> None:
    network = MemoryNetwork()
    first, second, *strangers = (network.endpoint(PublicKey(sha256(b"node %d" % number))) for number in range(50))
    cohort_peers = [Neighbours(endpoint, RUN, secret=b"theirs") for endpoint in (first, second)]
    for stranger in strangers:
        await Neighbours(stranger, RUN, secret=b"").announce(cohort="mine", round_=1)
    for one in cohort_peers:
        await one.announce(cohort="mine", round_=1)
    for one, other in zip(cohort_peers, (second, first), strict=True):
        await one.look()
        assert one.at_meeting() == one.near() == [other.key]
        assert not one.is_near(strangers[0].key)


async def test_who_stands_in_a_cohort_s_bucket_without_being_of_it_is_counted_and_not_known() -> None:
    here, liar = endpoints(2)
    known = Neighbours(here, RUN)
    await known.announce(cohort="mine", round_=1)
    name = next(name for name in here._network.records if "cohort" in name)
    here._network.records[name][liar.key] = pack(Announcement(RUN, liar.key, "another", 1, 10))
    await known.look()
    assert (known.members(), known.malformed) == ([], 1)


async def test_liars_in_the_sample_do_not_hide_a_run_s_size() -> None:
    """Keys cost nothing: those with no depth at all stand where only a large run's deepest should."""
    crowd = Crowd()
    crowd.join(220)
    for _ in range(2):
        await crowd.period()
    name = f"manta-{RUN.hex()}-members"
    honest = len(crowd.network.records[name])
    for number in range(honest // 4):
        key = PublicKey(sha256(b"liar %d" % number))
        crowd.network.records[name][key] = b"junk"
    newcomer = crowd.members[crowd.join(1)[0]]
    await newcomer.look()
    assert newcomer.size > 100


async def test_who_is_nearest_is_in_front_of_those_that_are_drawn() -> None:
    here, *others = endpoints(5)
    known = Neighbours(here, RUN)
    for step, other in enumerate(others):
        position = Position(0, b"", b"", ((tag_of(here.key), 20 - step),))
        await Neighbours(other, RUN).announce(cohort="there", round_=1, position=position)
    await known.announce(cohort="here", round_=1)
    await known.look()
    nearest_first = [other.key for other in reversed(others)]
    assert known.mixed(4) == nearest_first
    known.met(others[0].key)  # that it is there counts more
    assert known.far(4) == [others[0].key, *nearest_first[:-1]]
    assert known.distance_us(others[1].key) == STEPS_US[19]
    assert known.distance_us(sha256(b"nobody")) == FAR


async def test_what_was_announced_is_known_with_its_place() -> None:
    here, other = endpoints(2)
    known = Neighbours(here, RUN)
    position = Position(1, b"h" * 16, b"", ())
    await Neighbours(other, RUN).announce(cohort="there", round_=1, position=position)
    await known.look()
    assert known.others() == [PlacedPeer(other.key, "there", position)]
    assert (known.position(other.key), known.position(here.key)) == (position, NOWHERE)


async def test_who_changes_its_cohort_has_its_cohort_peers_at_the_new_meeting() -> None:
    here, old, new = endpoints(3)
    known = Neighbours(here, RUN, secret=b"secret")
    for endpoint, cohort in ((old, "old"), (new, "new")):
        await Neighbours(endpoint, RUN, secret=b"secret").announce(cohort=cohort, round_=1)
    for cohort, cohort_peer in (("old", old), ("new", new)):
        await known.announce(cohort=cohort, round_=1)
        await known.look()
        assert known.at_meeting() == known.near() == [cohort_peer.key]
    assert known.malformed == 0
