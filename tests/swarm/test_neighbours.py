"""Who is found in the DHT, who is not believed, and who is forgotten."""

from dataclasses import replace

import pytest

from protocol.encoding import pack
from protocol.records import Announcement
from protocol.signing import PublicKey, sha256
from swarm import neighbours, waits
from swarm.memory import MemoryEndpoint, MemoryNetwork
from swarm.neighbours import Neighbours
from tests.swarm.members import PEERS, run

RUN = sha256(b"run")
NAME = f"manta-{RUN.hex()}-members"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def endpoints(count: int) -> list[MemoryEndpoint]:
    network = MemoryNetwork()
    return [network.endpoint(peer.public_key) for peer in PEERS[:count]]


def records_of(endpoint: MemoryEndpoint) -> dict[PublicKey, bytes]:
    return endpoint._network.records.setdefault(NAME, {})


def test_those_who_announce_themselves_find_each_other_and_nobody_finds_himself() -> None:
    async def meet() -> None:
        known = [Neighbours(endpoint, RUN) for endpoint in endpoints(3)]
        for one in known:
            await one.announce(cohort="here", round_=4)
        for place, one in enumerate(known):
            await one.look()
            assert set(one.members()) == {peer.public_key for other, peer in enumerate(PEERS[:3]) if other != place}

    run(meet())


def test_an_announcement_in_another_s_name_for_another_run_or_malformed_is_counted_and_hides_nobody() -> None:
    async def lie() -> None:
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

    run(lie())


def test_an_older_announcement_changes_nothing() -> None:
    async def replay() -> None:
        here, other = endpoints(2)
        clock = Clock()
        known = Neighbours(here, RUN, clock)
        for sequence in (20, 10):
            records_of(here)[other.key] = pack(Announcement(RUN, other.key, "here", 1, sequence))
            await known.look()
            clock.now += waits.ANNOUNCED_S - 1
        clock.now += 2
        assert known.members() == []

    run(replay())


def test_who_is_silent_or_cannot_be_reached_is_forgotten_and_comes_back_by_a_new_announcement() -> None:
    async def go() -> None:
        here, other = endpoints(2)
        clock = Clock()
        known, theirs = Neighbours(here, RUN, clock), Neighbours(other, RUN)
        await theirs.announce(cohort="here", round_=1)
        await known.look()
        known.forget(other.key)
        assert known.members() == []
        await theirs.announce(cohort="here", round_=2)
        await known.look()
        assert known.members() == [other.key]
        clock.now += 100 * waits.ANNOUNCED_S
        assert known.members() == []
        known.forget(PEERS[5].public_key)  # nobody

    run(go())


def test_who_cannot_be_reached_does_not_come_back_by_its_old_announcement() -> None:
    async def go() -> None:
        here, other = endpoints(2)
        clock = Clock()
        known = Neighbours(here, RUN, clock)
        await Neighbours(other, RUN).announce(cohort="here", round_=1)
        await known.look()
        known.forget(other.key)
        for _ in range(5):  # the DHT still has it
            clock.now += waits.ANNOUNCE_S[0]
            await known.look()
            assert known.members() == []
        del records_of(here)[other.key]
        clock.now += waits.ANNOUNCED_S
        await known.look()
        assert known._known == {}

    run(go())


def test_who_is_forgotten_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_NEIGHBOURS", 2)

    async def go() -> None:
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

    run(go())


def test_at_most_so_many_are_chosen_and_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_NEIGHBOURS", 3)

    async def crowd() -> None:
        here, *others = endpoints(8)
        known = Neighbours(here, RUN)
        for other in others:
            await Neighbours(other, RUN).announce(cohort="here", round_=1)
        await known.look()
        assert len(known.members()) == 3
        assert len(known.some(2)) == len(set(known.some(2))) == 2
        assert set(known.some(99)) == set(known.members())
        assert known.some(0) == []

    run(crowd())


def test_in_a_larger_run_everybody_looks_less_often() -> None:
    known = Neighbours(endpoints(1)[0], RUN)
    shortest_s, longest_s = waits.ANNOUNCE_S
    assert known.period_s == shortest_s
    for number in range(neighbours.MAX_NEIGHBOURS):
        key = PublicKey(number.to_bytes(32, "big"))
        known._known[key] = (Announcement(RUN, key, "here", 1, 1), 0.0)
    assert shortest_s < known.period_s <= longest_s
