"""Members that own a part of the vectors each: what goes wrong with one costs nobody else anything, and all end with the same bytes."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.codec.residuals import PART_VALUES, digest_of_parts, near_mean, part_digests, vector_digest
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.peer.cohort import all_reduce
from manta_swarm.peer.cohort.all_reduce import AllReduce, owned
from manta_swarm.peer.cohort.coordinator import Coordinator
from manta_swarm.peer.cohort.messages import Add, AskSum, Plan
from manta_swarm.protocol.cohorts import AFFINITY
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.rosters import SILENT_ROUNDS
from manta_swarm.protocol.signing import PublicKey
from tests.peer.cohort.test_cohort import all_average, convened, mean_of, same, small_parts
from tests.peer.cohorts import PEERS, Band, CohortPeer, LinksInMemory, all_of, band_with, base_of, vector_of

pytestmark = pytest.mark.virtual_time

STEPS = 3


@pytest.fixture(autouse=True)
def _many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)


@pytest.fixture
def band() -> AbstractAsyncContextManager[Band]:
    return band_with(local_steps=STEPS)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Return the plans that founders carry out from now on."""
    found: list[Plan] = []
    carry_out = Coordinator._carry_out

    async def noted(self: Coordinator, plan: Plan) -> set[PublicKey] | None:
        found.append(plan)
        return await carry_out(self, plan)

    monkeypatch.setattr(Coordinator, "_carry_out", noted)
    return found


def sends(peer: CohortPeer, change: Callable[[PublicKey, int, Any], Any]) -> None:
    """Let what a cohort peer sends be changed: given whom it goes to, the turn and the values; None is not sent."""
    own: Any = peer.cohort._links
    true = own.send

    async def send(key: PublicKey, tag: bytes, turn: int, first: int, data: memoryview, *, timeout_s: float) -> None:
        changed = change(key, turn, np.frombuffer(data, "<f4").copy())
        if changed is not None:
            await true(key, tag, turn, first, changed.data.cast("B"), timeout_s=timeout_s)

    own.send = send


async def test_who_is_not_linked_to_all_owns_nothing_and_counts_all_the_same(band: Band, plans: list[Plan]) -> None:
    peers = await convened(band, 4)
    own: Any = peers[2].cohort._links
    own.known.discard(peers[3].key)
    await all_average(peers)
    assert [plan.owners for plan in plans] == [(peers[0].key, peers[1].key, peers[3].key)]


async def test_a_small_vector_is_the_founder_s_alone_to_add(band: Band, plans: list[Plan]) -> None:
    peers = await convened(band, 3)
    vectors = [vector_of(peer.number, 0, 3 * 64) for peer in peers]
    means = await all_of(*(peer.average(0, vector) for peer, vector in zip(peers, vectors, strict=True)))
    assert same(*means, near_mean(vectors, [16] * 3))
    assert [plan.owners for plan in plans] == [(peers[0].key,)]


@pytest.mark.parametrize(("name", "is_audited", "is_shared"), [(AFFINITY, True, False), (AFFINITY, False, True), ("here", True, True)])
async def test_where_strangers_are_audited_the_founder_adds_alone(name: str, is_audited: bool, is_shared: bool, plans: list[Plan]) -> None:
    async with band_with(local_steps=STEPS, is_audited=is_audited) as band:
        peers = [await band.join(number, name=name) for number in range(3)]
        await band.meet()
        await all_of(*(peer.convene() for peer in peers))
        await all_average(peers)
        assert [len(plan.owners) for plan in plans] == [3 if is_shared else 1]


async def test_an_owner_that_is_killed_while_all_send_costs_the_others_nothing(band: Band, plans: list[Plan]) -> None:
    peers = await convened(band, 4)

    def die(_key: PublicKey, _turn: int, _values: Any) -> None:
        peers[2].die()

    sends(peers[2], die)
    *means, _ = await all_of(*(peers[number].average(0) for number in (0, 1, 3)), peers[2].average(0))
    left = [peers[0], peers[1], peers[3]]
    assert same(*means, mean_of(left, 0))
    assert [len(plan.owners) for plan in plans] == [4, 1]
    await all_average(left, 1)
    assert [len(plan.owners) for plan in plans] == [4, 1, 3]


async def test_an_owner_that_sends_no_sums_is_done_without_and_is_none_for_some_rounds(band: Band, plans: list[Plan]) -> None:
    peers = await convened(band, 3)
    sends(peers[1], lambda _key, turn, values: None if turn else values)
    await all_average(peers)
    assert [peer.is_alone for peer in peers] == [False] * 3
    for round_ in range(2, SILENT_ROUNDS + 4):
        await band.meet()
        await all_of(*(peer.convene(round_) for peer in peers))
        await all_average(peers)
    by_round = [sorted(peer.number for peer in peers if peer.key in plan.owners) for plan in plans]
    assert by_round == [[0, 1, 2], [0], *SILENT_ROUNDS * [[0, 2]], [0, 1, 2], [0], [0, 2]]


@pytest.mark.parametrize("lie", ["other sums than it says", "no numbers", "much larger sums"])
async def test_an_owner_that_lies_of_its_sums_is_done_without(
    band: Band, lie: str, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = await convened(band, 3)
    if lie == "other sums than it says":
        sends(peers[1], lambda _key, turn, values: values + 1 if turn else values)
    else:
        true = near_mean

        def lying(vectors: Any, weights: Any) -> Any:
            return true(vectors, weights) * np.float32(np.nan if lie == "no numbers" else 5)

        own: Any = peers[1]
        add = AllReduce.add

        async def adds(self: AllReduce, message: Add) -> bytes:
            with pytest.MonkeyPatch.context() as patch:
                if self._links.key == own.key:
                    patch.setattr(all_reduce, "near_mean", lying)
                return await add(self, message)

        monkeypatch.setattr(AllReduce, "add", adds)
    await all_average(peers)
    assert [len(plan.owners) for plan in plans] == [3, 1]


async def test_an_owner_that_says_others_sent_something_else_is_done_without(
    band: Band, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = await convened(band, 3)
    true = AllReduce.follow

    async def follow(self: AllReduce, plan: Plan) -> Any:
        reports = await true(self, plan)
        return reports[1:] if self._links.key == peers[1].key else reports

    monkeypatch.setattr(AllReduce, "follow", follow)
    await all_average(peers)
    assert [len(plan.owners) for plan in plans] == [3, 1]


@pytest.mark.parametrize("to", ["all", "an owner", "the founder"])
async def test_a_member_that_sends_something_else_than_it_said_costs_only_itself(band: Band, to: str, plans: list[Plan]) -> None:
    peers = await convened(band, 4)
    victims = {"all": {peer.key for peer in peers}, "an owner": {peers[1].key}, "the founder": {peers[0].key}}[to]
    sends(peers[3], lambda key, turn, values: values + 1 if key in victims and not turn else values)
    *means, own = await all_of(*(peer.average(0) for peer in peers))
    if to == "an owner":  # which of the two lies nobody knows: the founder adds what it got itself, and that is true
        assert same(*means, own, mean_of(peers, 0))
        assert [len(plan.owners) for plan in plans] == [4, 1]
    else:
        assert same(*means, mean_of(peers[:3], 0))
        assert same(own, vector_of(3, 0))
        assert peers[3].is_alone


async def test_where_audits_look_at_it_not_a_sign_of_what_was_said_may_differ(plans: list[Plan]) -> None:
    async with band_with(local_steps=STEPS, is_audited=True) as band:
        peers = await convened(band, 4)
        sends(peers[3], lambda _key, turn, values: values if turn else -values)  # as long as what it said
        *means, own = await all_of(*(peer.average(0) for peer in peers))
        assert same(*means, mean_of(peers[:3], 0))
        assert same(own, vector_of(3, 0))


async def test_a_sum_that_does_not_reach_a_member_is_had_from_the_founder(band: Band, plans: list[Plan]) -> None:
    peers = await convened(band, 3)
    sends(peers[1], lambda key, turn, values: None if turn and key == peers[2].key else values)
    await all_average(peers)
    assert [len(plan.owners) for plan in plans] == [3]


async def test_only_the_founder_says_what_is_added(band: Band) -> None:
    peers = await convened(band, 3)
    averaging = asyncio.create_task(peers[1].average(0, after_s=0.0))
    await asyncio.sleep(0.1)
    cohort_session: Any = peers[1].cohort_session
    keys = tuple(peer.key for peer in peers)
    with pytest.raises(EncodingError):
        await cohort_session.on_plan(peers[2].key, Plan(base_of(0).commit, 0, 0, 1000, keys, keys))
    with pytest.raises(EncodingError):
        await cohort_session.on_plan(peers[0].key, Plan(base_of(1).commit, 0, 0, 1000, keys, keys))
    with pytest.raises(EncodingError):
        await cohort_session.on_add(peers[2].key, Add(base_of(0).commit, 0, 0, 1, keys, (1, 1, 1), keys))
    with pytest.raises(EncodingError, match="no parts"):
        await cohort_session.on_add(peers[0].key, Add(base_of(0).commit, 0, 0, 1, keys, (1, 1, 1), keys))
    with pytest.raises(Unreachable):
        await peers[0].cohort._on_sum(PEERS[5].public_key, pack(AskSum(base_of(0).commit, 0, 1, 0)))
    averaging.cancel()
    await asyncio.gather(averaging, return_exceptions=True)


# One side of it, and what comes over its links.


def side(number: int) -> AllReduce:
    endpoint = MemoryNetwork().endpoint(PEERS[number].public_key)
    return AllReduce(LinksInMemory(endpoint), PEERS[0].public_key, base_of(0).commit, 0, vector_of(number), is_audited=False)


@pytest.mark.parametrize(
    ("sender", "turn", "first", "count"),
    [
        (5, 0, 320, 16),  # from nobody in the roster
        (2, 0, 0, 16),  # of the founder's part
        (2, 0, 321, 16),
        (2, 0, 320, 15),
        (2, 0, 624, 32),  # beyond its part
        (2, 0, 336, 16),  # twice
        (3, 1, 0, 16),  # a sum from nobody who adds it
        (2, 1, 320, 16),  # a sum of somebody else's part
    ],
)
async def test_a_chunk_that_may_not_come_is_refused(sender: int, turn: int, first: int, count: int) -> None:
    member = side(1)
    keys = tuple(peer.public_key for peer in PEERS[:3])
    following = asyncio.create_task(member.follow(Plan(base_of(0).commit, 0, 0, 60_000, keys, (*keys, PEERS[3].public_key))))
    await asyncio.sleep(0)
    assert owned(1000, keys, keys[1]) == slice(320, 640)
    assert member.buffer(keys[2], 0, 336, 64) is not None
    with pytest.raises(EncodingError):
        member.buffer(PEERS[sender].public_key, turn, first, 4 * count)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    member.close()
    assert member.buffer(keys[2], 0, 320, 64) is None  # what is over is dropped


async def test_a_plan_is_followed_once_and_by_its_members() -> None:
    member = side(1)
    keys = tuple(peer.public_key for peer in PEERS[:2])
    plan = Plan(base_of(0).commit, 0, 0, 10, keys[:1], keys)
    await member.follow(plan)
    with pytest.raises(EncodingError, match="older"):
        await member.follow(plan)
    with pytest.raises(EncodingError, match="without whom"):
        await side(2).follow(plan)
    member.close()


@given(st.integers(1, 5000), st.integers(1, 16))
def test_owners_share_all_values_among_them(num_values: int, num_owners: int) -> None:
    owners = [bytes([number]) for number in range(num_owners)]
    parts = [owned(num_values, owners, owner) for owner in owners]
    assert [value for part in parts for value in range(part.start, part.stop)] == list(range(num_values))


def test_the_digest_of_a_vector_is_that_of_its_parts() -> None:
    for count in (0, 1, PART_VALUES, PART_VALUES + 1, 3 * PART_VALUES):
        vector = vector_of(0, 0, count)
        assert digest_of_parts(part_digests(vector)) == vector_digest(vector)
