"""Who is known to be in the run: told directly, found in the DHT, and forgotten in silence."""

import asyncio

import pytest

from protocol.encoding import pack
from protocol.errors import EncodingError
from protocol.records import Announcement
from protocol.signing import PublicKey, sha256
from swarm.membership import DHT_PERIOD_S, MAX_MEMBERS, MAX_TOLD, TTL_S, Membership
from swarm.memory import MemoryNetwork
from swarm.rpc import Refused
from tests.swarm.members import run

RUN = sha256(b"run")
NAME = f"manta-{RUN.hex()}-members"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def key_of(number: int) -> PublicKey:
    return PublicKey(sha256(b"member %d" % number))


def announcement(number: int, *, run_: bytes = RUN, samples: int = 0, sequence: int = 1) -> Announcement:
    return Announcement(run_, key_of(number), "home", run_, 1, samples, 0, sequence)


class Members:
    """Some memberships on one network, with one clock."""

    def __init__(self, count: int) -> None:
        self.network = MemoryNetwork()
        self.clock = Clock()
        self.all = [Membership(self.network.endpoint(key_of(i)), RUN, self.clock) for i in range(count)]

    async def announce(self, number: int, samples: int = 0) -> None:
        await self.all[number].announce(cohort="home", last_commit=RUN, round_=1, samples=samples, ready=False)
        await self.all[number].told(timeout_s=10)

    def known(self, number: int) -> dict[bytes, int]:
        return {member.key: member.samples for member in self.all[number].members()}


def test_members_meet_in_the_dht_and_then_tell_each_other_directly() -> None:
    async def work() -> None:
        members = Members(3)
        for number, membership in enumerate(members.all):
            await membership.start()
            await members.announce(number)
            await membership.look()
        assert members.known(2) == {key_of(0): 0, key_of(1): 0, key_of(2): 0}
        await members.announce(2, samples=32)  # too soon for the DHT
        assert members.known(2)[key_of(2)] == 0
        for number in range(2):
            await members.all[number].look()
            assert len(members.known(number)) == 3
        members.clock.now_s += DHT_PERIOD_S
        await members.announce(2, samples=48)
        assert members.known(0)[key_of(2)] == members.known(1)[key_of(2)] == 48

    run(work())


def test_news_are_signalled() -> None:
    async def work() -> None:
        members = Members(1)
        one = members.all[0]
        members.network.records[NAME] = {key_of(1): pack(announcement(1, sequence=2))}
        assert not one.changed.is_set()
        await one.look()
        assert one.changed.is_set()
        one.changed.clear()
        await one.look()
        assert not one.changed.is_set()

    run(work())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(pack(announcement(2)), id="in another's name"),
        pytest.param(pack(announcement(1, run_=sha256(b"another run"))), id="for another run"),
        pytest.param(b"garbage", id="garbage"),
        pytest.param(b"", id="nothing"),
        pytest.param(pack(announcement(1)) + b"\x00", id="bytes left over"),
    ],
)
def test_an_announcement_that_is_not_the_senders_own_is_counted_and_hides_no_other(data: bytes) -> None:
    async def work() -> None:
        members = Members(2)
        one = members.all[0]
        await one.start()
        with pytest.raises(Refused):
            await members.network.endpoints[key_of(1)].call(key_of(0), "announce", data, timeout_s=1)
        members.network.records[NAME] = {key_of(1): data, key_of(3): pack(announcement(3, samples=5))}
        await one.look()
        assert members.known(0) == {key_of(3): 5}
        assert one.malformed == 2

    run(work())


def test_an_older_announcement_does_not_replace_a_newer_one() -> None:
    async def work() -> None:
        members = Members(1)
        one = members.all[0]
        for sequence, samples in ((5, 50), (4, 40), (5, 51)):
            members.network.records[NAME] = {key_of(1): pack(announcement(1, samples=samples, sequence=sequence))}
            await one.look()
        assert members.known(0) == {key_of(1): 50}
        members.network.records[NAME] = {key_of(1): pack(announcement(1, samples=60, sequence=6))}
        await one.look()
        assert members.known(0) == {key_of(1): 60}

    run(work())


def test_a_silent_member_is_forgotten_and_may_come_back_with_an_older_clock() -> None:
    async def work() -> None:
        members = Members(1)
        one = members.all[0]
        members.network.records[NAME] = {key_of(1): pack(announcement(1, sequence=9))}
        await one.look()
        members.clock.now_s += TTL_S - 1
        assert len(one.members()) == 1
        members.clock.now_s += 1
        assert one.members() == []
        members.network.records[NAME] = {key_of(1): pack(announcement(1, samples=7, sequence=3))}
        await one.look()
        assert members.known(0) == {}  # it may be a record that the DHT still had
        members.clock.now_s += TTL_S
        await one.look()
        assert members.known(0) == {key_of(1): 7}

    run(work())


def test_strangers_in_masses_do_not_fill_the_memory_and_make_room_when_silent() -> None:
    async def work() -> None:
        members = Members(1)
        one = members.all[0]
        members.network.records[NAME] = {key_of(i): pack(announcement(i)) for i in range(1, MAX_MEMBERS + 10)}
        await one.look()
        assert len(one.members()) == MAX_MEMBERS
        members.clock.now_s += TTL_S
        members.network.records[NAME] = {key_of(MAX_MEMBERS + 20): pack(announcement(MAX_MEMBERS + 20))}
        await one.look()
        assert set(members.known(0)) == {key_of(MAX_MEMBERS + 20)}

    run(work())


def test_in_a_large_swarm_some_members_are_told_at_a_time() -> None:
    async def work() -> None:
        members = Members(1)
        one, told = members.all[0], []
        members.network.records[NAME] = {key_of(i): pack(announcement(i)) for i in range(1, 3 * MAX_TOLD)}
        for i in range(1, 3 * MAX_TOLD):

            async def on_announce(sender: PublicKey, _data: bytes) -> bytes:
                told.append(sender)
                return b""

            await members.network.endpoint(key_of(i)).serve("announce", on_announce)
        await one.look()
        await members.announce(0)
        assert told == [key_of(0)] * MAX_TOLD

    run(work())


def test_a_member_that_cannot_be_told_holds_up_nobody() -> None:
    async def work() -> None:
        members = Members(3)
        for number, membership in enumerate(members.all):
            await membership.start()
            await members.announce(number)
        await members.all[0].look()
        members.network.lost = lambda _sender, receiver, _method: receiver == key_of(1)
        await members.announce(0, samples=9)
        assert members.known(2)[key_of(0)] == 9

    run(work())


def test_a_slow_member_is_waited_for_only_so_long() -> None:
    async def work() -> None:
        members = Members(1)
        members.network.records[NAME] = {key_of(1): pack(announcement(1))}

        async def never(_sender: PublicKey, _data: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        await members.network.endpoint(key_of(1)).serve("announce", never)
        await members.all[0].look()
        await members.all[0].announce(cohort="home", last_commit=RUN, round_=1, samples=0, ready=True)
        await members.all[0].told(timeout_s=0.01)

    run(work())


def test_who_let_an_attempt_down_is_suspected_for_a_while_and_never_oneself() -> None:
    members = Members(1)
    one = members.all[0]
    one.suspect(frozenset({key_of(0), key_of(1)}))
    assert not one.is_suspect(key_of(0))
    assert one.is_suspect(key_of(1))
    assert not one.is_suspect(key_of(2))
    members.clock.now_s += TTL_S
    assert not one.is_suspect(key_of(1))


def test_a_malformed_announcement_is_a_remote_fault() -> None:
    with pytest.raises(EncodingError):
        Members(1).all[0]._take(key_of(1), b"garbage")
