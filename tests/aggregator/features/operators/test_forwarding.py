"""What a follower passes on to the leader: answered by whoever writes, also where that is another one by now."""

import asyncio

import pytest

from manta_swarm.aggregator.features.operators.forwarding import Switch
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Busy, Handler, Refused
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import PublicKey
from tests.contributions import PEERS
from tests.memory_log import DEADLINE_S

pytestmark = pytest.mark.virtual_time

FOLLOWER, LEADER, NEXT, PEER = (each.public_key for each in PEERS[:4])


class Scene:
    """Three operators' switches, who all know who writes, and a peer that asks the follower."""

    def __init__(self) -> None:
        self.leader: PublicKey | None = LEADER
        self.is_cut_off = False
        self.network = MemoryNetwork()
        self.peer = self.network.endpoint(PEER)

    @property
    def leader_key(self) -> PublicKey | None:
        return self.leader

    def is_quorum(self) -> bool:
        return not self.is_cut_off

    def among_operators(self, handler: Handler) -> Handler:
        return handler

    async def switch_of(self, key: PublicKey) -> Switch:
        """Return an operator's switch, which passes on to the leader."""
        switch = Switch(self.network.endpoint(key), self, self)
        await switch.start()
        return switch

    def bring(self) -> "asyncio.Task[bytes]":
        """Let the peer bring a header to the follower."""
        return asyncio.create_task(self.peer.call(FOLLOWER, "header", b"a header", timeout_s=60))

    async def brought_to_one_that_stands_still(self, leader: Switch) -> "asyncio.Task[bytes]":
        """Let the peer do so; return once the call has come to the leader, which never answers it."""
        has_come = asyncio.Event()

        async def stand_still(_caller: PublicKey, _request: bytes) -> bytes:
            has_come.set()
            await asyncio.Event().wait()
            raise AssertionError

        await leader.serve("header", stand_still)
        call = self.bring()
        await has_come.wait()
        return call


async def answer(caller: PublicKey, request: bytes) -> bytes:
    """Take it, as a leader does."""
    assert (caller, request) == (PEER, b"a header")
    return b"taken"


async def test_what_is_passed_on_to_a_leader_that_stands_still_goes_to_the_next_one_once_that_writes() -> None:
    scene = Scene()
    follower, leader, following = [await scene.switch_of(key) for key in (FOLLOWER, LEADER, NEXT)]
    call = await scene.brought_to_one_that_stands_still(leader)
    await following.serve("header", answer)
    scene.leader = NEXT
    follower.another_writes()
    assert await call == b"taken"


async def test_while_nobody_writes_a_caller_is_held_until_this_operator_does_or_another() -> None:
    scene = Scene()
    follower = await scene.switch_of(FOLLOWER)
    scene.network.lost = lambda _sender, receiver, _method: receiver == LEADER
    call = scene.bring()  # to a leader that is dead
    scene.leader = None
    second = scene.bring()
    await asyncio.sleep(0)
    assert not call.done()
    await follower.serve("header", answer)  # it writes itself now
    assert await call == await second == b"taken"

    async def deposed(_caller: PublicKey, _request: bytes) -> bytes:
        raise Busy("this operator does not write any more")

    await follower.serve("header", deposed)
    third = scene.bring()
    following = await scene.switch_of(NEXT)
    await following.serve("header", answer)
    follower.forget()
    scene.leader = NEXT
    follower.another_writes()
    assert await third == b"taken"


async def test_nobody_is_held_for_ever() -> None:
    scene = Scene()
    scene.leader = None
    await scene.switch_of(FOLLOWER)
    with pytest.raises(Unreachable, match="busy"):
        await scene.bring()


async def test_who_is_cut_off_from_the_others_holds_nobody() -> None:
    scene = Scene()
    scene.leader = None
    await scene.switch_of(FOLLOWER)
    call = scene.bring()
    await asyncio.sleep(0)
    assert not call.done()
    scene.is_cut_off = True
    with pytest.raises(Refused, match=r"^ask another operator: no operator"):
        await call


@pytest.mark.parametrize(
    ("is_cut_off", "error", "words"), [(True, Refused, "^ask another operator: the operator that"), (False, Unreachable, "busy")]
)
async def test_what_is_on_its_way_to_a_leader_that_is_not_heard_any_more_is_not_waited_for(
    is_cut_off: bool, error: type[Exception], words: str
) -> None:
    scene = Scene()
    _, leader = [await scene.switch_of(key) for key in (FOLLOWER, LEADER)]
    call = await scene.brought_to_one_that_stands_still(leader)
    scene.is_cut_off = is_cut_off
    scene.leader = LEADER if is_cut_off else None
    async with asyncio.timeout(DEADLINE_S / 2):  # the call itself waits longer
        with pytest.raises(error, match=words):
            await call


async def test_what_the_leader_refuses_is_refused_at_once() -> None:
    scene = Scene()
    await scene.switch_of(FOLLOWER)
    leader = await scene.switch_of(LEADER)

    async def refuse(_caller: PublicKey, _request: bytes) -> bytes:
        raise NotTaken("too many")

    await leader.serve("header", refuse)
    with pytest.raises(Refused, match="too many"):
        await scene.bring()
