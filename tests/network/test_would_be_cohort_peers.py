"""Peers whose cohorts affinity makes keep those that are near though they have no room, and tell those who may not know of them."""

import random

import pytest

from manta_swarm.network import neighbours, timeouts
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.neighbours import METHOD, Neighbours
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.affinity import NOWHERE, Position
from manta_swarm.protocol.signing import PublicKey, sha256
from tests.clocks import ManualClock

RUN = sha256(b"run")
HERE, ELSEWHERE = Position(1, b"h" * 16, b"", ()), Position(1, b"e" * 16, b"", ())
ROOM = 16


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_NEIGHBOURS", ROOM)
    monkeypatch.setattr(neighbours, "MAX_NEAR", ROOM // 2)


def crowd(count: int) -> list[MemoryEndpoint]:
    network = MemoryNetwork()
    return [network.endpoint(PublicKey(sha256(b"one of a crowd %d" % number))) for number in range(count)]


async def announce(endpoint: MemoryEndpoint, position: Position) -> Neighbours:
    known = Neighbours(endpoint, RUN, rng=random.Random(1))
    await known.start()
    await known.announce(cohort=endpoint.key.hex()[:8], round_=0, position=position)
    return known


@pytest.mark.parametrize("is_grouped", [True, False])
async def test_near_ones_are_known_and_stay_where_there_is_no_room_if_affinity_decides(is_grouped: bool) -> None:
    here, *others = crowd(60)
    own = HERE if is_grouped else Position(0, HERE.host, b"", ())
    known = await announce(here, own)
    for other in others[4:]:
        await announce(other, ELSEWHERE)
    await known.look()
    assert len(known.members()) == ROOM
    for other in others[:3]:
        await announce(other, HERE)
    await announce(others[3], Position(0, HERE.host, b"", ()))  # it is near, and has a label
    found = []
    for _ in range(30):
        await known.look()
        assert len(known.members()) <= ROOM
        found.append(sum(other.key in known.members() for other in others[:3]))
    assert (set(found) == {3}) == is_grouped


async def test_near_ones_do_not_take_all_the_room_and_others_of_them_come_in_their_place() -> None:
    here, *others = crowd(60)
    known = await announce(here, HERE)
    for number, other in enumerate(others):
        await announce(other, HERE if number < 20 else ELSEWHERE)
    near = {other.key for other in others[:20]}
    seen: set[PublicKey] = set()
    for _ in range(60):
        await known.look()
        assert len(known.members()) <= ROOM
        seen |= near.intersection(known.members())
    assert seen == near
    assert near.intersection(known.members()) != set(known.members())


async def test_who_is_told_knows_of_a_near_one_and_believes_nobody_else_s_announcement() -> None:
    here, other, third, *rest = crowd(60)
    known = await announce(here, HERE)
    for each in rest:
        await announce(each, ELSEWHERE)
    await known.look()
    assert len(known.members()) == ROOM
    theirs = await announce(other, HERE)
    await theirs.tell([here.key, PublicKey(sha256(b"nobody"))])
    assert other.key in known.members()
    assert len(known.members()) == ROOM
    far = await announce(third, ELSEWHERE)
    await far.tell([here.key])
    assert third.key not in known.members()
    for data in (b"", b"\x80" * 400, theirs._announced):
        with pytest.raises(Refused):
            await third.call(here.key, METHOD, data, timeout_s=1.0)
    assert third.key not in known.members()


async def test_a_newcomer_of_a_large_run_remembers_others_for_as_long_as_these_take_to_announce_themselves_again() -> None:
    here, *others = crowd(40)
    clock = ManualClock()
    for each in others:
        await Neighbours(each, RUN).announce(cohort="far", round_=0, position=NOWHERE)
    known = Neighbours(here, RUN, clock)
    await known.look()
    count = len(known.members())
    assert count > ROOM // 2
    clock.advance(neighbours._PERIODS_KNOWN * known.period_s - 1.0)
    assert len(known.members()) == count
    assert known.period_s > timeouts.ANNOUNCE_S[0]
