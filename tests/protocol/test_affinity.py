"""Cohorts by affinity: a pure function of what peers announce, bounded, with nobody left out, and sticky from round to round."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from manta_swarm.protocol.affinity import (
    FAR,
    JOIN_US,
    MAX_GROUP,
    NUM_STEPS,
    SAME_HOST,
    SAME_SITE,
    STAY_US,
    STEPS_US,
    PlacedPeer,
    Position,
    cohorts,
    distance_us,
    first_name,
    step_of,
    tag_of,
)
from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.fields import check_name
from manta_swarm.protocol.signing import sha256

NOWHERE = Position(1, b"", b"", ())


def key_of(number: int) -> bytes:
    return sha256(b"peer %d" % number)


def host(name: int) -> bytes:
    return sha256(b"host %d" % name)[:16]


def site(name: int) -> bytes:
    return sha256(b"site %d" % name)[:8]


def placed(number: int, cohort: str = "", **values: Any) -> PlacedPeer:
    """Return a peer; the steps to others are given by their numbers."""
    steps: Mapping[int, int] = values.pop("steps", {})
    distances = tuple(sorted((tag_of(key_of(other)), step) for other, step in steps.items()))
    return PlacedPeer(key_of(number), cohort or first_name(key_of(number)), replace(NOWHERE, distances=distances, **values))


def under(peers: Sequence[PlacedPeer], names: Mapping[bytes, str]) -> list[PlacedPeer]:
    """Return the peers once they have announced these names."""
    return [replace(peer, cohort=names[peer.key]) for peer in peers]


def parts(names: Mapping[bytes, str]) -> set[frozenset[bytes]]:
    return {frozenset(key for key in names if names[key] == name) for name in names.values()}


def sizes(names: Mapping[bytes, str]) -> list[int]:
    return sorted(Counter(names.values()).values())


# Peers of a few hosts and sites, with some round trips to each other and to a few landmarks, under any names.
landmarks = st.integers(100, 103)
hosts = st.one_of(st.just(b""), st.integers(0, 4).map(host))
sites = st.one_of(st.just(b""), st.integers(0, 2).map(site))
steps = st.dictionaries(st.one_of(st.integers(0, 12), landmarks), st.integers(0, 8), max_size=6)
anybody = st.builds(
    lambda number, name, host, site, steps: placed(number, name, host=host, site=site, steps=steps),
    st.integers(0, 40),
    st.one_of(st.just(""), st.sampled_from(["east", "west", "north"])),
    hosts,
    sites,
    steps,
)
crowds = st.lists(anybody, max_size=24, unique_by=lambda peer: peer.key)


def crowd_of(strategy: st.SearchStrategy[PlacedPeer]) -> st.SearchStrategy[list[PlacedPeer]]:
    return st.lists(strategy, min_size=1, max_size=20, unique_by=lambda peer: peer.key)


by_round_trips = crowd_of(st.builds(lambda number, steps: placed(number, steps=steps), st.integers(0, 40), steps))


@given(crowds, st.randoms(use_true_random=False))
def test_what_is_found_depends_on_no_order_and_is_found_again_once_all_have_announced_it(peers: list[PlacedPeer], random: Any) -> None:
    names, shuffled = cohorts(peers), list(peers)
    random.shuffle(shuffled)
    assert cohorts(shuffled) == cohorts(under(peers, names)) == names


@given(crowds)
def test_everybody_is_in_one_bounded_cohort_of_near_peers_and_nobody_alone_beside_somebody_alone_or_with_room(
    peers: list[PlacedPeer],
) -> None:
    names, by_key = cohorts(peers), {peer.key: peer for peer in peers}
    assert names.keys() == by_key.keys()
    assert not peers or max(sizes(names)) <= MAX_GROUP <= MAX_COHORT
    for one, other in combinations(peers, 2):
        if names[one.key] == names[other.key]:
            assert distance_us(one, other) <= STAY_US
    for name in names.values():
        check_name(name, "cohort")
    found = parts(names)
    for (lone,) in [part for part in found if len(part) == 1]:
        for part in found - {frozenset({lone})}:
            near = all(distance_us(by_key[lone], by_key[key]) <= JOIN_US for key in part)
            assert not near or len(part) == MAX_GROUP


@given(crowds, st.sets(st.integers(0, 23)))
def test_it_is_found_while_some_have_announced_it_and_others_not_yet(peers: list[PlacedPeer], told: set[int]) -> None:
    """From first names on, as after a start; who is in an established cohort then is in it by name already."""
    fresh = [replace(peer, cohort=first_name(peer.key)) for peer in peers]
    names = cohorts(fresh)
    half = [replace(peer, cohort=names[peer.key]) if place in told else peer for place, peer in enumerate(fresh)]
    mixed = cohorts(half)
    settled = cohorts(under(half, mixed))
    assert settled == mixed
    assert max(sizes(mixed), default=0) <= MAX_GROUP


@settings(max_examples=20)
@given(st.lists(st.tuples(st.one_of(st.just(b""), st.integers(0, 2).map(host)), st.integers(0, 4)), min_size=2, max_size=8), st.randoms())
def test_all_agree_before_long_though_each_hears_of_the_others_late(where: list[tuple[bytes, int]], random: Any) -> None:
    """One after the other finds its cohort by what it has heard: of each of the others one of the newest three announcements."""
    told = [[placed(number, host=found, steps={100: step})] for number, (found, step) in enumerate(where)]

    def look(number: int) -> None:
        heard = [told[other][-1 - min(random.randint(0, 2), len(told[other]) - 1)] for other in range(len(told)) if other != number]
        own = told[number][-1]
        told[number].append(replace(own, cohort=cohorts([own, *heard])[own.key]))

    for _ in range(12):
        for number in random.sample(range(len(told)), len(told)):
            look(number)
    settled = {each[-1].key: each[-1].cohort for each in told}
    assert cohorts([each[-1] for each in told]) == settled
    for number in range(len(told)):
        look(number)
        assert told[number][-1].cohort == settled[told[number][-1].key]


@given(by_round_trips, st.randoms(use_true_random=False))
def test_round_trips_that_grow_by_a_step_move_nobody(peers: list[PlacedPeer], random: Any) -> None:
    names = cohorts(peers)
    grown = [
        replace(
            peer,
            position=replace(peer.position, distances=tuple((tag, step + random.randint(0, 1)) for tag, step in peer.position.distances)),
        )
        for peer in under(peers, names)
    ]
    assert cohorts(grown) == names


@given(st.integers(1, 30), st.integers(0, 30), st.sampled_from([{"host": host(1)}, {"site": site(1)}, {"steps": {100: 1}}]))
def test_who_comes_moves_one_other_at_most(count: int, newcomer: int, where: dict[str, Any]) -> None:
    peers = [placed(number, **where) for number in range(31) if number != newcomer][:count]
    names = cohorts(peers)
    after = cohorts([*under(peers, names), placed(newcomer, **where)])
    assert sum(names[key] != after[key] for key in names) <= 1
    assert min(sizes(after)) > 1


@given(st.integers(2, 31), st.integers(0, 30), st.sampled_from([{"host": host(1)}, {"site": site(1)}, {"steps": {100: 1}}]))
def test_who_goes_moves_one_other_at_most_and_those_of_a_cohort_that_is_small_by_now(
    count: int, leaver: int, where: dict[str, Any]
) -> None:
    peers = [placed(number, **where) for number in range(count)]
    names = cohorts(peers)
    left = [peer for peer in under(peers, names) if peer.key != key_of(leaver)]
    after = cohorts(left)
    before = Counter(names.values())
    moved = [before[peer.cohort] for peer in left if names[peer.key] != after[peer.key]]
    assert len(moved) <= MAX_GROUP // 2
    assert sum(size > MAX_GROUP // 2 for size in moved) <= 1  # whom somebody takes along who would be alone


@pytest.mark.parametrize("count", range(1, 34))
def test_on_one_host_nobody_is_alone_whoever_comes_one_by_one(count: int) -> None:
    peers: list[PlacedPeer] = []
    for number in range(count):
        peers = [*peers, placed(number, host=host(1))]
        peers = under(peers, cohorts(peers))
    found = sizes({peer.key: peer.cohort for peer in peers})
    assert sum(found) == count
    assert max(found) <= MAX_GROUP
    assert count == 1 or min(found) > 1


def test_hosts_come_first_then_sites_then_round_trips() -> None:
    on_a_host = [placed(number, host=host(1), site=site(1)) for number in range(5)]
    beside = [placed(number, host=host(2), site=site(1)) for number in range(5, 10)]
    far = [placed(number, steps={100: 2}) for number in range(10, 13)]
    names = cohorts([*on_a_host, *beside, *far])
    assert parts(names) == {frozenset(peer.key for peer in part) for part in (on_a_host, beside, far)}


def test_hosts_of_one_site_are_one_cohort_where_there_is_room() -> None:
    peers = [placed(number, host=host(number), site=site(1)) for number in range(4)]
    assert len(parts(cohorts(peers))) == 1


def test_who_is_nearer_to_others_moves_to_them() -> None:
    crowd = [placed(number, "east", host=host(number), site=site(1)) for number in range(6)]
    cohort_peers = [placed(number, "west", host=host(0), site=site(1)) for number in range(10, 14)]
    names = cohorts([*crowd, *cohort_peers])
    assert names[crowd[0].key] == "west"
    assert {names[peer.key] for peer in crowd[1:]} == {"east"}


def test_whoever_is_not_near_any_more_is_alone_under_a_name_of_its_own() -> None:
    peers = [placed(number, "east", steps={100: 2}) for number in range(4)]
    gone = replace(peers[1], position=replace(peers[1].position, distances=((tag_of(key_of(100)), 12),)))
    names = cohorts([peers[0], gone, *peers[2:]])
    assert names[gone.key] not in ("east", *(first_name(peer.key) for peer in peers if peer.key != gone.key))
    assert {names[peer.key] for peer in peers if peer.key != gone.key} == {"east"}


def test_who_left_a_cohort_that_has_its_own_first_name_gets_another_one() -> None:
    name = first_name(key_of(0))
    peers = [placed(number, name, host=host(min(number, 1))) for number in range(4)]
    names = cohorts(peers)
    assert {names[key_of(number)] for number in range(1, 4)} == {name}
    assert names[key_of(0)] != name


def test_those_in_between_of_joining_and_staying_stay_and_do_not_come() -> None:
    between = {100: STEPS_US.index(JOIN_US)}  # twice that far from each other, by way of the landmark
    assert JOIN_US < distance_us(placed(0, steps=between), placed(1, steps=between)) <= STAY_US
    assert sizes(cohorts([placed(number, "east", steps=between) for number in range(3)])) == [3]
    assert sizes(cohorts([placed(number, steps=between) for number in range(3)])) == [1, 1, 1]


# Distances.


@given(anybody, anybody)
def test_distances_are_the_same_from_both_sides(one: PlacedPeer, other: PlacedPeer) -> None:
    assert distance_us(one, other) == distance_us(other, one)
    assert distance_us(one, one) == SAME_HOST


def test_what_is_known_best_decides() -> None:
    ways = {"steps": {100: 2, 101: 6}}
    assert distance_us(placed(0, host=host(1), site=site(1), **ways), placed(1, host=host(1), site=site(2), **ways)) == SAME_HOST
    assert distance_us(placed(0, host=host(1), site=site(1), **ways), placed(1, host=host(2), site=site(1), **ways)) == SAME_SITE
    assert distance_us(placed(0, **ways), placed(1, **ways)) == 2 * STEPS_US[2]
    assert distance_us(placed(0, steps={100: 2, 1: 0}), placed(1, **ways)) == STEPS_US[0]
    assert distance_us(placed(0, steps={100: 2}), placed(1, steps={101: 2})) == FAR
    assert distance_us(placed(0), placed(1)) == FAR  # who says nothing of its host or site shares none


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)), min_size=3, max_size=6))
def test_a_bound_by_landmarks_is_never_less_than_the_truth(points: list[tuple[int, int]]) -> None:
    """In a plane where calls take as long as the way there and back: all measure the first point."""

    def apart_us(one: tuple[int, int], other: tuple[int, int]) -> int:
        return abs(one[0] - other[0]) + abs(one[1] - other[1])

    found = [step_of(apart_us(point, points[0])) for point in points]
    peers = [placed(place, steps={100: step}) for place, step in enumerate(found) if step is not None]
    for one, other in combinations(range(len(points)), 2):
        assert distance_us(peers[one], peers[other]) >= apart_us(points[one], points[other])


@pytest.mark.parametrize(
    ("round_trip_us", "before", "step"),
    [
        (0, None, 0),
        (1_000, None, 0),
        (1_001, None, 1),
        (4_000, None, 4),
        (STEPS_US[-1], None, NUM_STEPS - 1),
        (STEPS_US[-1] + 1, None, None),
        (1_100, 0, 0),
        (1_300, 0, 1),
        (3_500, 3, 4),
        (3_300, 3, 3),
        (1_001, 1, 1),
        (900, 1, 0),
        (3_992, 5, 4),
        (5_000, NUM_STEPS, 5),
    ],
)
def test_a_round_trip_has_a_step_that_noise_does_not_change(round_trip_us: int, before: int | None, step: int | None) -> None:
    assert step_of(round_trip_us, before) == step


@given(st.integers(0, 2 * STEPS_US[-1]), st.integers(0, NUM_STEPS - 1))
def test_a_step_is_kept_once_it_is_found(round_trip_us: int, before: int) -> None:
    step = step_of(round_trip_us, before)
    assume(step is not None)
    assert step is not None
    assert step_of(round_trip_us, step) == step
    assert round_trip_us <= STEPS_US[step] * 1.19 + 1
