"""A cohort in one event loop: places in rosters, steps, the contribution at the end; and whatever may go wrong, which hurts nobody else."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.codec import residuals
from manta_swarm.codec.residuals import near_mean
from manta_swarm.network import links
from manta_swarm.network.links import LIBP2P, TLS, UNIX, Links
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.cohort import all_reduce, cohort_session, messages
from manta_swarm.peer.cohort.cohort import Accepted, Cohort, CohortSession, Gathered
from manta_swarm.peer.cohort.cohort_membership import Choice, FirstCohort
from manta_swarm.peer.cohort.cohort_session import GONE
from manta_swarm.peer.cohort.coordinator import LATE, NO_VECTOR
from manta_swarm.peer.cohort.founder import NOT_FINITE, TOO_LARGE
from manta_swarm.protocol.cohorts import OwnCohort
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import MAX_LOCAL_STEPS
from manta_swarm.protocol.records import Claim, Contribution
from manta_swarm.protocol.rosters import SILENT_ROUNDS
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.runtime import tasks
from manta_swarm.runtime.child import Child
from tests.network.virtual_time import now
from tests.peer import cohorts
from tests.peer.cohorts import COUNT, OPERATOR, PEERS, TOKEN, Band, CohortPeer, all_of, band_with, base_of, so_far, vector_of
from tests.peer.contexts import never
from tests.runtime.forked_child import forked_program

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=["owners", "founder"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let each member own a part of the vectors, or the founder add them alone, as it does small ones."""
    if request.param == "owners":
        small_parts(monkeypatch)
    return str(request.param)


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the vectors of these tests have many parts, each of several chunks."""
    for module in (residuals, all_reduce, cohort_session):
        monkeypatch.setattr(module, "PART_VALUES", 64)
    monkeypatch.setattr(all_reduce, "CHUNK_VALUES", 16)
    monkeypatch.setattr(links, "_LIBP2P_CHUNK_BYTES", 4 * 32)


async def convened(band: Band, count: int) -> list[CohortPeer]:
    """Return cohort peers who have their places in one roster."""
    peers = await band.gather_round(count)
    await all_of(*(peer.convene() for peer in peers))
    assert peers[0].members == tuple(peer.key for peer in peers)
    assert {peer.founder for peer in peers} == {peers[0].key}
    return peers


def same(*vectors: Any) -> bool:
    return len({vector.tobytes() for vector in vectors}) == 1


async def all_average(peers: list[CohortPeer], step: int = 0) -> None:
    """Have these give their vectors in a step, and each get their mean in the same bytes."""
    means = await all_of(*(peer.average(step) for peer in peers))
    assert same(*means, mean_of(peers, step))


def mean_of(peers: list[CohortPeer], step: int, samples: list[int] | None = None) -> Any:
    """Return what has to come of the vectors of these."""
    return near_mean([vector_of(peer.number, step) for peer in peers], samples or [16] * len(peers))


# A place in a roster.


async def test_cohort_peers_take_their_places_under_the_smallest_key(stepped_band: Band) -> None:
    peers = await convened(stepped_band, 4)
    assert [peer.cohort_session.is_founder for peer in peers] == [True, False, False, False]
    assert not any(peer.is_alone for peer in peers)
    assert now() == 0.0  # nobody is waited for who is not there
    assert len({peer.cohort_session.step_ends(0) for peer in peers}) == 1


@pytest.mark.parametrize("settings", [{"token": None}, {"token": sha256(b"another")}, {"name": "there"}])
async def test_who_has_no_token_or_another_one_or_another_cohort_is_alone(band: Band, settings: dict[str, Any]) -> None:
    peers = [await band.join(0), await band.join(1, **settings), await band.join(2)]
    for _ in range(2):
        await band.meet()
    await all_of(*(peer.convene() for peer in peers))
    assert peers[0].members == (peers[0].key, peers[2].key)
    assert peers[1].is_alone
    assert peers[1].founder == peers[1].key
    assert bool(peers[1].endpoint.handlers) == (settings != {"token": None})  # who has none answers nobody


async def test_a_stranger_that_claims_the_cohort_s_name_is_not_listened_to(stepped_band: Band) -> None:
    peers = await convened(stepped_band, 2)
    stranger = CohortPeer(stepped_band, 5, token=None)
    await stranger.neighbours.announce(cohort="here", round_=0)
    for peer in peers:
        await peer.meet()
        assert not peer.cohort._context or stranger.key not in peer.cohort.cohort_peers()
    requests = {
        messages.JOIN: messages.Join(base_of(0).commit, 1, 1, 1000, "here"),
        messages.GIVE: messages.Give(base_of(0).commit, 0, so_far(PEERS[1], PEERS[0].public_key, vector_of(1)), SAID),
        messages.HAND_OVER: messages.HandOver(base_of(0).commit, stranger.claim(), SAID),
    }
    for method, request in requests.items():
        with pytest.raises(Refused, match="token"):
            await stranger.endpoint.call(peers[0].key, method, pack(request), timeout_s=1.0)


async def test_a_founder_waits_for_nobody_while_there_is_work(stepped_band: Band) -> None:
    peers = await stepped_band.gather_round(3)
    await peers[0].convene()
    assert now() == 0.0
    assert peers[0].cohort_session.is_founder
    assert peers[0].is_alone
    await peers[1].convene(after_s=10.0)
    assert peers[0].members == (peers[0].key, peers[1].key)
    await all_average(peers[:2])


async def test_a_founder_that_is_late_is_waited_for_a_bounded_time(band: Band) -> None:
    peers = await band.gather_round(3)
    await all_of(peers[0].convene(after_s=1.5), peers[1].convene(), peers[2].convene())
    assert now() == 1.5
    assert len(peers[0].members) == 3


@pytest.mark.parametrize("left_ms", [60_000.0, 4_000.0])
async def test_no_place_is_looked_for_longer_than_an_eighth_of_the_time_or_two_seconds(band: Band, left_ms: float) -> None:
    peers = await band.gather_round(3)
    await all_of(peers[1].convene(left_ms=left_ms), peers[2].convene(left_ms=left_ms))  # the founder never comes
    assert now() <= min(left_ms / 8000, 2.0) + 0.01
    assert peers[1].is_alone
    assert peers[2].is_alone


async def test_who_is_expected_is_waited_for_at_the_end_of_the_first_step(stepped_band: Band) -> None:
    """A first step may be short; who needs longer to get the state is waited for as long as a place is looked for."""
    peers = await stepped_band.gather_round(3)

    async def early(peer: CohortPeer) -> Any:
        await peer.convene()
        return await peer.average(0, after_s=0.0)

    async def late(peer: CohortPeer) -> Any:
        await peer.convene(after_s=1.5)
        return await peer.average(0, after_s=0.0)

    means = await all_of(early(peers[0]), early(peers[1]), late(peers[2]))
    assert same(*means, mean_of(peers, 0))
    assert now() == 1.5


async def test_who_comes_after_the_first_step_is_over_is_alone(stepped_band: Band) -> None:
    peers = await stepped_band.gather_round(3)
    await all_of(peers[0].convene(), peers[1].convene())
    await all_of(peers[0].average(0, after_s=3.0), peers[1].average(0, after_s=3.0))
    assert (await peers[2].convene()).is_alone
    await all_average(peers[:2], 1)


async def test_who_was_absent_once_is_not_waited_for_for_a_while_but_is_welcome(stepped_band: Band) -> None:
    peers = await stepped_band.gather_round(3)
    times = []
    for round_ in range(1, SILENT_ROUNDS + 3):
        await stepped_band.meet()
        began = now()
        await all_of(peers[0].convene(round_), peers[1].convene(round_))
        await all_of(peers[0].average(0, after_s=0.0), peers[1].average(0, after_s=0.0))
        times.append(now() - began)
    assert times == pytest.approx([2.0] + [0.0] * SILENT_ROUNDS + [2.0])
    await all_of(*(peer.convene(SILENT_ROUNDS + 3) for peer in peers))
    assert len(peers[0].members) == 3


async def test_a_founder_that_is_behind_is_passed_over_for_a_round_and_then_asked_again(band: Band) -> None:
    peers = await band.gather_round(3)
    await all_of(peers[1].convene(), peers[2].convene())
    assert peers[1].is_alone
    await all_of(*(peer.convene(2) for peer in peers))
    assert [peer.founder for peer in peers] == [peers[0].key, peers[1].key, peers[1].key]
    await all_of(*(peer.convene(3) for peer in peers))
    assert {peer.founder for peer in peers} == {peers[0].key}


async def test_a_founder_that_says_nothing_is_passed_over_in_the_next_rounds(band: Band) -> None:
    peers = await band.gather_round(3)
    await peers[0].endpoint.serve(messages.JOIN, never)
    await all_of(peers[1].convene(), peers[2].convene())
    assert peers[1].is_alone
    for round_ in range(2, 2 + SILENT_ROUNDS):
        await all_of(peers[1].convene(round_), peers[2].convene(round_))
        assert peers[1].cohort_session.is_founder
        assert peers[2].founder == peers[1].key


async def test_a_founder_that_is_dead_is_passed_over_at_once(band: Band) -> None:
    peers = await band.gather_round(3)
    peers[0].die()
    await all_of(peers[1].convene(), peers[2].convene())
    assert peers[1].cohort_session.is_founder
    assert peers[2].founder == peers[1].key
    assert peers[2].members == (peers[1].key, peers[2].key)


@pytest.mark.parametrize("settings", [{"microbatch_ms": 9_000}, {"after_s": 19.0}], ids=["slow", "late"])
async def test_who_is_slow_or_comes_after_the_first_step_was_due_takes_no_place(stepped_band: Band, settings: dict[str, Any]) -> None:
    peers = await stepped_band.gather_round(3)
    await all_of(peers[0].convene(), peers[1].convene(), peers[2].convene(**settings))  # steps take 20 s
    assert peers[0].members == (peers[0].key, peers[1].key)
    assert peers[2].is_alone
    assert now() == settings.get("after_s", 0.0)


async def test_who_is_slow_founds_nothing_and_the_next_one_does(stepped_band: Band) -> None:
    peers = await stepped_band.gather_round(3)
    for round_ in (1, 2):
        await all_of(peers[0].convene(round_, microbatch_ms=9_000), peers[1].convene(round_), peers[2].convene(round_))
        assert peers[0].is_alone
        assert {peer.founder for peer in peers[1:]} == {peers[1].key}
        assert peers[1].members == (peers[1].key, peers[2].key)


async def test_who_asks_the_wrong_one_is_sent_on(band: Band) -> None:
    """The last one has not met the first one yet but for a hello, and thinks it silent."""
    peers = await band.gather_round(3)
    assert peers[2].cohort._context is not None
    peers[2].cohort._context.silent.note(peers[0].key, 1)
    await all_of(*(peer.convene() for peer in peers))
    assert {peer.founder for peer in peers} == {peers[0].key}
    assert len(peers[0].members) == 3


@pytest.mark.parametrize("place", [5, 1], ids=["to a stranger", "in circles"])
async def test_who_is_sent_on_to_a_stranger_or_in_circles_is_alone(band: Band, place: int) -> None:
    peers = await band.gather_round(3)
    asked = []
    for number, peer in enumerate(peers[:2]):

        async def send_on(caller: PublicKey, _request: bytes, other: int = place - number) -> bytes:
            asked.append(caller)
            return pack(messages.JoinAnswer(int(messages.PlaceAnswer.ELSEWHERE), (PEERS[other].public_key,)))

        await peer.endpoint.serve(messages.JOIN, send_on)
    assert (await peers[2].convene()).is_alone
    assert len(asked) == (1 if place == 5 else 3)


async def test_a_roster_is_of_one_cohort_and_who_is_of_another_looks_for_one_of_its_own(stepped_band: Band) -> None:
    """Where joined may change, peers may see them differently for a moment: the second one believes that the first is of its own."""
    peers = await stepped_band.gather_round(4)
    first, second, third, fourth = peers
    everybody = frozenset(peer.key for peer in peers)
    first.own_cohort = OwnCohort("elsewhere", everybody - {first.key})
    for peer in (second, third, fourth):
        peer.own_cohort = OwnCohort("here", everybody - {peer.key})
    cohort_sessions = await all_of(*(peer.convene() for peer in peers))
    assert [cohort_session.founder for cohort_session in cohort_sessions] == [first.key, *[second.key] * 3]
    await all_of(*(peer.average(0) for peer in peers))
    assert cohort_sessions[0].is_alone
    assert cohort_sessions[1].members == tuple(peer.key for peer in (second, third, fourth))


async def test_only_those_of_the_own_cohort_are_cohort_peers_though_others_proved_as_much(stepped_band: Band) -> None:
    peers = await stepped_band.gather_round(3)
    for peer, others in zip(peers, (peers[1:2], peers[:1], ()), strict=True):
        peer.own_cohort = OwnCohort("lone" if peer is peers[2] else "here", frozenset(other.key for other in others))
    assert [peer.cohort.cohort_peers() for peer in peers] == [(peers[1].key,), (peers[0].key,), ()]
    assert not any(peer.neighbours.is_near(peers[2].key) for peer in peers)
    cohort_sessions = await all_of(*(peer.convene() for peer in peers))
    await all_of(*(peer.average(0) for peer in peers))
    assert [cohort_session.is_alone for cohort_session in cohort_sessions] == [False, False, True]


async def test_a_cohort_keeps_its_name_for_all_of_the_work_on_a_base(stepped_band: Band) -> None:
    first, second = await stepped_band.gather_round(2)
    await all_of(first.convene(), second.convene())
    await all_of(first.average(0), second.average(0))
    first.own_cohort = OwnCohort("another", frozenset())  # from the next base on
    gathered, accepted = await all_of(first.found(), second.hand_over())
    assert gathered is not None and accepted is not None  # noqa: PT018
    assert [claim.open().cohort for claim in gathered.claims] == ["here", "here"]
    cohort_sessions = await all_of(first.convene(2), second.convene(2))
    assert [cohort_session.founder for cohort_session in cohort_sessions] == [first.key, second.key]


async def test_a_cohort_that_is_cut_in_halves_makes_two_rosters(stepped_band: Band) -> None:
    peers = await stepped_band.gather_round(4)
    halves = [{peers[0].key, peers[1].key}, {peers[2].key, peers[3].key}]
    stepped_band.network.lost = lambda sender, receiver, _: any((sender in half) != (receiver in half) for half in halves)
    await all_of(*(peer.convene() for peer in peers))
    assert [peer.founder for peer in peers] == [peers[0].key] * 2 + [peers[2].key] * 2
    means = await all_of(*(peer.average(0) for peer in peers))
    assert same(means[0], means[1], mean_of(peers[:2], 0))
    assert same(means[2], means[3], mean_of(peers[2:], 0))


async def test_two_who_do_not_know_each_other_both_found_and_nobody_is_hurt(stepped_band: Band) -> None:
    peers = [await stepped_band.join(number) for number in range(4)]
    first, second = (peers[0].key, peers[1].key)
    stepped_band.network.lost = lambda sender, receiver, _: {sender, receiver} == {first, second}
    for _ in range(2):
        await stepped_band.meet()
    await all_of(*(peer.convene() for peer in peers))
    assert [peer.founder for peer in peers] == [first, second, first, first]
    assert peers[1].is_alone  # those whom it expected asked the other one
    means = await all_of(*(peer.average(0) for peer in peers))
    assert same(*(means[0], means[2], means[3]), mean_of([peers[0], peers[2], peers[3]], 0))


async def test_a_roster_has_no_more_members_than_a_contribution_has_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.protocol.rosters.MAX_COHORT", 3)
    async with band_with() as band:
        peers = await band.gather_round(5)
        await all_of(*(peer.convene() for peer in peers))
        assert len(peers[0].members) == 3
        assert sum(peer.is_alone for peer in peers) == 2


async def test_cohort_peers_on_other_bases_are_not_waited_for_without_end(band: Band) -> None:
    peers = await band.gather_round(3)
    await all_of(peers[0].convene(2), peers[1].convene(2), peers[2].convene(1))
    assert peers[0].members == (peers[0].key, peers[1].key)
    assert peers[2].is_alone
    assert now() == 0.0
    await peers[2].convene(2)
    assert len(peers[0].members) == 3


async def test_a_place_is_given_up_with_the_next_one(stepped_band: Band) -> None:
    peers = await convened(stepped_band, 3)
    giving = asyncio.create_task(peers[1].average(0, after_s=0.0))
    await asyncio.sleep(0.1)
    await all_of(peers[0].convene(2), peers[2].convene(2))
    assert (await giving).tobytes() == vector_of(1).tobytes()
    assert peers[1].is_alone
    assert peers[1].founder == peers[1].key


async def test_a_place_that_is_looked_for_too_long_is_not_taken_any_more(stepped_band: Band) -> None:
    """A commit came in the meantime, and the next place was found first."""
    peers = await stepped_band.gather_round(3)
    peers[0].die()
    slow = asyncio.create_task(peers[2].cohort.convene(base_of(0), cohorts.MICROBATCH_MS, cohorts.LEFT_MS))
    await asyncio.sleep(0)
    await all_of(peers[1].convene(2), peers[2].convene(2))
    assert (await slow).is_alone
    await all_average(peers[1:])


async def test_who_stopped_looking_for_a_place_says_so_at_once(band: Band) -> None:
    peers = await band.gather_round(3)
    await peers[0].endpoint.serve(messages.JOIN, never)
    looking = asyncio.create_task(peers[1].cohort.convene(base_of(0), cohorts.MICROBATCH_MS, cohorts.LEFT_MS))
    await asyncio.sleep(0.1)
    looking.cancel()
    await asyncio.sleep(0)
    assert peers[2].cohort._context is not None
    peers[2].cohort._context.silent.note(peers[0].key, 1)
    assert (await peers[2].convene()).is_alone
    assert now() == pytest.approx(0.1)


async def test_who_ends_leaves_the_others_to_themselves(stepped_band: Band, way: str) -> None:
    peers = await convened(stepped_band, 3)
    giving = [asyncio.create_task(peer.average(0, after_s=0.0)) for peer in peers[1:]]
    await asyncio.sleep(0.1)
    await peers[0].cohort.close()
    assert [mean.tobytes() for mean in await all_of(*giving)] == [vector_of(peer.number).tobytes() for peer in peers[1:]]
    assert now() < 1.0


# Steps.


async def test_all_get_the_weighted_mean_in_the_same_bytes(stepped_band: Band, way: str) -> None:
    peers = await convened(stepped_band, 4)
    samples = [16, 32, 48, 208]  # of which 80 count
    for step in range(3):
        means = await all_of(*(peer.average(step, samples=each) for peer, each in zip(peers, samples, strict=True)))
        assert same(*means, mean_of(peers, step, [16, 32, 48, 80]))
        assert all(mean.flags.writeable for mean in means)
    assert not any(peer.is_alone for peer in peers)


async def test_large_vectors_are_worked_on_in_threads_with_the_same_bytes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "INLINE_VALUES", 100)

    band = Band(local_steps=2)
    peers = await convened(band, 3)
    means = await all_of(*(peer.average(0, after_s=0.0) for peer in peers))
    assert same(*means, mean_of(peers, 0))
    await band.end()


async def test_steps_are_due_one_after_the_other_within_the_time() -> None:
    async with band_with(local_steps=4) as band:
        peers = await convened(band, 2)
        due = []
        for step in range(4):
            due.append(peers[1].cohort_session.step_ends(step))
            await all_of(*(peer.average(step) for peer in peers))
        assert due == pytest.approx([15_000 - 937.5, 30_000 - 1875, 45_000 - 2812.5, 60_000 - 3750], abs=1)


async def test_who_is_lost_in_a_step_is_waited_for_once_and_the_others_go_on() -> None:
    async with band_with(local_steps=4) as band:
        peers = await convened(band, 4)
        await all_average(peers)
        peers[1].die()
        left = [peers[0], *peers[2:]]
        due_s = (peers[0].cohort_session.step_ends(1) or 0.0) / 1000
        await all_average(left, 1)
        assert due_s < now() <= due_s + 60 / 4 / 3  # a third of a step
        assert peers[0].members == tuple(peer.key for peer in left)
        due_s = (peers[0].cohort_session.step_ends(2) or 0.0) / 1000
        await all_average(left, 2)
        assert now() == pytest.approx(due_s, abs=0.01)


@pytest.mark.parametrize("step", [0, 1])
async def test_a_founder_that_is_lost_in_a_step_leaves_its_members_alone(stepped_band: Band, step: int) -> None:
    peers = await convened(stepped_band, 3)
    for earlier in range(step):
        await all_average(peers, earlier)
    peers[0].die()
    means = await all_of(*(peer.average(step) for peer in peers[1:]))
    for peer, mean in zip(peers[1:], means, strict=True):
        assert same(mean, vector_of(peer.number, step))
        assert peer.is_alone
        assert peer.founder == peer.key
        assert peer.members == (peer.key,)
        assert peer.cohort_session.step_ends(step + 1) is None
        vector = vector_of(9)
        assert await peer.average(step + 1, vector, after_s=0.0) is vector
        assert await peer.hand_over() is None
        assert not peer.cohort_session.is_founder
    await all_of(peers[1].convene(2), peers[2].convene(2))
    assert peers[2].founder == peers[1].key


async def test_a_founder_that_hangs_is_waited_for_a_bounded_time(stepped_band: Band) -> None:
    peers = await convened(stepped_band, 3)
    due_s = (peers[1].cohort_session.step_ends(0) or 0.0) / 1000
    means = await all_of(*(peer.average(0) for peer in peers[1:]))
    assert same(means[0], vector_of(1, 0))
    assert now() <= due_s + 2 * 20 + 1  # two steps


async def test_a_slow_member_is_left_out_told_so_and_goes_on_alone(stepped_band: Band, way: str) -> None:
    peers = await convened(stepped_band, 3)
    means = await all_of(peers[0].average(0), peers[1].average(0), peers[2].average(0, after_s=40.0))
    assert same(means[0], means[1], mean_of(peers[:2], 0))
    assert same(means[2], vector_of(2, 0))
    assert peers[2].is_alone
    await all_average(peers[:2], 1)


async def test_when_all_are_gone_the_founder_is_alone_without_waiting_any_more(stepped_band: Band) -> None:
    peers = await convened(stepped_band, 2)
    vector = vector_of(0)
    assert await peers[0].average(0, vector) is vector
    assert peers[0].is_alone
    assert peers[0].founder == peers[0].key
    assert peers[0].cohort_session.step_ends(1) is None
    began = now()
    assert await peers[0].average(1, vector, after_s=0.0) is vector
    assert await peers[0].found() is None
    assert now() == began


BAD: dict[str, tuple[Any, str]] = {
    "nan": (np.where(np.arange(COUNT) == 7, np.float32(np.nan), vector_of(9)), NOT_FINITE),
    "infinite": (np.where(np.arange(COUNT) == 7, np.float32(np.inf), vector_of(9)), NOT_FINITE),
    "overflowing": (np.full(COUNT, 3e38, np.float32), NOT_FINITE),
    "huge": (vector_of(9) * np.float32(1e6), TOO_LARGE),
    "noise": (vector_of(9) * np.float32(10), TOO_LARGE),
    "short": (vector_of(9)[:-1], NO_VECTOR),
    "long": (np.concatenate([vector_of(9), vector_of(9)]), NO_VECTOR),
    "empty": (vector_of(9)[:0], NO_VECTOR),
}


@pytest.mark.parametrize(("vector", "reason"), BAD.values(), ids=BAD)
async def test_a_vector_that_cannot_be_averaged_costs_only_who_gave_it_who_is_told_why(
    vector: Any, reason: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "manta.cohort")
    async with band_with(local_steps=3) as band:
        *good, bad = await convened(band, 4)
        *means, own = await all_of(*(peer.average(0) for peer in good), bad.average(0, vector))
        assert same(*means, mean_of(good, 0))
        assert own is vector
        assert bad.is_alone
        assert now() == pytest.approx(18.75)  # nobody waited
        assert f"alone round=1 reason=left out: {reason}" in caplog.messages
        await all_average(good, 1)


@pytest.mark.parametrize("what", ["nan", "infinite", "overflowing", "huge"])
async def test_a_founder_whose_own_vector_is_bad_spoils_nobody_s(stepped_band: Band, what: str, way: str) -> None:
    peers = await convened(stepped_band, 3)
    means = await all_of(peers[0].average(0, BAD[what][0]), peers[1].average(0), peers[2].average(0))
    assert same(means[1], vector_of(1, 0))
    assert same(means[2], vector_of(2, 0))
    assert all(peer.is_alone for peer in peers)


async def test_a_mean_that_is_not_finite_is_not_taken_from_a_founder(stepped_band: Band) -> None:
    peers = await convened(stepped_band, 2)
    context = peers[0].cohort._context
    assert context is not None
    bad, _ = BAD["nan"]

    async def lie(caller: PublicKey, request: bytes) -> bytes:
        give = unpack(messages.Give, request, max_bytes=4096)
        plan = messages.Plan(give.base, 0, 0, 60_000, (peers[0].key,), tuple(sorted([peers[0].key, caller])))
        await context.links.call(caller, messages.PLAN, pack(plan), timeout_s=1.0)
        return pack(messages.GiveAnswer(residuals.part_digests(bad), 1, "", 1000))

    async def show(_caller: PublicKey, _request: bytes) -> bytes:
        return bytes(bad.tobytes())

    await context.links.serve(messages.GIVE, lie)
    await context.links.serve(messages.SUM, show)
    assert same(await peers[1].average(0), vector_of(1, 0))
    assert peers[1].is_alone


async def test_a_vector_is_given_once_and_for_the_step_that_is_under_way(stepped_band: Band) -> None:
    peers = await convened(stepped_band, 2)
    said = await all_reduce.described(vector_of(1), ())

    async def give(step: int, base: bytes) -> messages.GiveAnswer:
        request = pack(messages.Give(base, step, so_far(PEERS[1], peers[0].key, *(step + 1) * [vector_of(1)]), said))
        return unpack(
            messages.GiveAnswer, await peers[1].endpoint.call(peers[0].key, messages.GIVE, request, timeout_s=60.0), max_bytes=4096
        )

    commit = base_of(0).commit
    assert (await give(1, commit)).reason == LATE
    assert (await give(0, base_of(7).commit)).reason == GONE
    first = asyncio.create_task(peers[1].average(0, vector_of(1), after_s=0.0))
    await asyncio.sleep(0.1)
    assert (await give(0, commit)).reason == LATE
    mean = await peers[0].average(0)
    assert same(mean, await first, near_mean([vector_of(0, 0), vector_of(1)], [16, 16]))


# The contribution.


async def test_all_claims_come_into_one_contribution_and_weigh_their_samples_up_to_the_cap(band: Band, way: str) -> None:
    peers = await convened(band, 3)
    gathered, *accepted = await all_of(peers[0].found(), peers[1].hand_over(), peers[2].hand_over(microbatches=10))
    assert isinstance(gathered, Gathered)
    assert [claim.open().key for claim in gathered.claims] == [peer.key for peer in peers]
    assert gathered.weights == (32, 32, 80)
    assert same(gathered.mean, near_mean([vector_of(peer.number, 100) for peer in peers], [32, 32, 80]))
    for peer, each in zip(peers[1:], accepted, strict=True):
        assert isinstance(each, Accepted)
        assert peer.claim().digest in each.contribution.open().claims
        assert each.inclusion_promise.open_by([OPERATOR.public_key]).contribution == each.contribution.digest
        assert each.mean is None  # a dense codec leaves no residual


async def test_of_the_same_vectors_none_travels_and_the_mean_follows_the_order_of_the_keys_whoever_comes_first() -> None:
    """A weighted mean of equal vectors is not that vector, in its last bits, and depends on the order."""
    async with band_with(local_steps=2, codec="topk-256-4") as band:
        peers = await convened(band, 4)
        band.network.lost = lambda _sender, _receiver, method: method == links.CHUNK
        common = vector_of(50)

        async def hand_over(number: int) -> Accepted | None:
            await asyncio.sleep(4 - number)
            return await peers[number].hand_over(common, microbatches=number + 1)

        gathered, *accepted = await all_of(peers[0].found(common, with_mean=True), *(hand_over(number) for number in (1, 2, 3)))
        expected = near_mean([common] * 4, [32, 32, 48, 64])
        assert not same(expected, near_mean([common] * 4, [64, 48, 32, 32]))
        assert same(gathered.mean, expected, *(each.mean for each in accepted))


async def test_who_gives_another_vector_than_the_others_is_asked_for_it_and_all_get_what_is_coded(way: str) -> None:
    async with band_with(local_steps=2, codec="topk-256-4") as band:
        peers = await convened(band, 3)
        common, other = vector_of(50), vector_of(51)
        gathered, *accepted = await all_of(peers[0].found(common, with_mean=True), peers[1].hand_over(common), peers[2].hand_over(other))
        assert same(gathered.mean, *(each.mean for each in accepted), near_mean([common, common, other], [32] * 3))


async def test_who_is_lost_before_the_end_is_not_waited_for_long(band: Band) -> None:
    peers = await convened(band, 3)
    due_s = (peers[0].cohort_session.step_ends(0) or 0.0) / 1000
    peers[2].die()
    gathered, accepted = await all_of(peers[0].found(), peers[1].hand_over(until_s=70.0))
    assert gathered.keys == (peers[0].key, peers[1].key)
    assert accepted is not None
    assert due_s < now() <= 60


@pytest.mark.parametrize("when", ["before", "while it gathers", "after the header"])
async def test_a_founder_that_is_lost_at_the_end_costs_its_members_nothing(band: Band, when: str) -> None:
    peers = await convened(band, 3)
    if when == "before":
        peers[0].die()
    handing = [asyncio.create_task(peer.hand_over(until_s=70.0)) for peer in peers[1:]]
    founding = asyncio.create_task(peers[0].cohort_session.gather(peers[0].claim(), vector_of(0, 100), 32))
    if when == "after the header":
        assert await founding is not None
    else:
        await asyncio.sleep(0.1)
    peers[0].die()
    founding.cancel()
    assert await all_of(*handing) == [None, None]
    assert now() <= 70.0
    assert all(peer.is_alone and peer.founder == peer.key for peer in peers[1:])
    await all_of(peers[1].meet(), peers[2].meet())
    await all_of(peers[1].convene(2), peers[2].convene(2))  # it is passed over
    assert peers[2].founder == peers[1].key


async def test_a_founder_that_hands_in_nothing_says_so(band: Band, way: str) -> None:
    peers = await convened(band, 3)

    async def give_up() -> None:
        await peers[0].cohort_session.gather(peers[0].claim(), vector_of(0, 100), 32)
        await peers[0].cohort_session.tell(None)

    _, *accepted = await all_of(give_up(), peers[1].hand_over(), peers[2].hand_over())
    assert accepted == [None, None]
    assert now() < 1.0


async def test_whom_the_log_does_not_take_hands_in_alone_and_the_others_do_not_notice(way: str) -> None:
    async with band_with(codec="topk-256-4") as band:
        peers = await convened(band, 4)
        gathered, *accepted = await all_of(peers[0].found(with_mean=True, leave_out=[peers[2]]), *(peer.hand_over() for peer in peers[1:]))
        left = [peers[0], peers[1], peers[3]]
        assert gathered.keys == tuple(peer.key for peer in left)
        assert same(gathered.mean, near_mean([vector_of(peer.number, 100) for peer in left], [32] * 3))
        assert accepted[1] is None
        assert same(gathered.mean, accepted[0].mean, accepted[2].mean)
        assert peers[2].is_alone


async def test_of_those_left_who_all_gave_the_same_each_can_tell_the_mean() -> None:
    async with band_with(local_steps=2, codec="topk-256-4") as band:
        peers = await convened(band, 3)
        common = vector_of(50)
        gathered, *accepted = await all_of(
            peers[0].found(common, with_mean=True, leave_out=[peers[2]]), peers[1].hand_over(common), peers[2].hand_over(vector_of(51))
        )
        assert same(gathered.mean, accepted[0].mean, near_mean([common] * 2, [32] * 2))
        assert accepted[1] is None


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_vector_at_the_end_costs_only_who_gave_it(band: Band, what: str, way: str) -> None:
    peers = await convened(band, 3)
    gathered, first, second = await all_of(peers[0].found(), peers[1].hand_over(), peers[2].hand_over(BAD[what][0]))
    assert gathered.keys == (peers[0].key, peers[1].key)
    assert first is not None
    assert second is None
    assert now() == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 2},
        {"base": sha256(b"another")},
        {"key": PEERS[5].public_key},
        {"founder": PEERS[5].public_key},
        {"cohort": "there"},
        {"run": sha256(b"another")},
        {"microbatches": 41},
        None,  # it is not signed
    ],
)
async def test_a_claim_that_does_not_fit_is_left_out(band: Band, changes: dict[str, Any] | None) -> None:
    peers = await convened(band, 3)
    claim = peers[2].claim(**changes or {})
    given = claim if changes else Signed(Claim, claim.payload, bytes(64))
    handing = peers[2].cohort_session.hand_over(given, vector_of(2, 100), 32, 60_000.0)
    gathered, first, second = await all_of(peers[0].found(), peers[1].hand_over(), handing)
    assert gathered.keys == (peers[0].key, peers[1].key)
    assert first is not None
    assert second is None


def other_words(peers: list[CohortPeer], accepted: Accepted) -> dict[str, Accepted]:
    """Return what a founder may say that is not true."""
    opened = accepted.contribution.open()

    def contribution(signer: CohortPeer = peers[0], **changes: Any) -> Accepted:
        signed = Signed.sign(replace(opened, **changes), signer.identity)
        return replace(accepted, contribution=signed, inclusion_promise=cohorts.inclusion_promise_for(signed))

    own = peers[1].claim().digest
    return {
        "an inclusion promise that it signed itself": replace(
            accepted, inclusion_promise=cohorts.inclusion_promise_for(accepted.contribution, peers[0].identity)
        ),
        "an inclusion promise for something else": replace(
            accepted, inclusion_promise=cohorts.inclusion_promise_for(accepted.contribution, contribution=sha256(b"other"))
        ),
        "an inclusion promise of another run": replace(
            accepted, inclusion_promise=cohorts.inclusion_promise_for(accepted.contribution, run=sha256(b"other"))
        ),
        "a contribution of another's": contribution(peers[2], founder=peers[2].key),
        "a contribution of another base": contribution(base=sha256(b"other")),
        "a contribution of another round": contribution(round=2),
        "a contribution of another run": contribution(run=sha256(b"other")),
        "a contribution without its claim": contribution(claims=tuple(claim for claim in opened.claims if claim != own), included=3),
        "a contribution that is not signed": replace(accepted, contribution=Signed(Contribution, accepted.contribution.payload, bytes(64))),
    }


@pytest.mark.parametrize("lie", range(9))
async def test_a_member_believes_only_what_the_log_signed(band: Band, lie: int) -> None:
    peers = await convened(band, 3)

    async def found() -> None:
        gathered = await peers[0].cohort_session.gather(peers[0].claim(), vector_of(0, 100), 32)
        assert gathered is not None
        words = other_words(peers, peers[0].accepted(gathered))
        assert len(words) == 9
        cohort_session: Any = peers[0].cohort_session
        true = peers[0].accepted(gathered)
        taken = cohort_session._word_of(list(words.values())[lie], cohort_session._handed.gifts)
        await cohort_session.tell(true)
        cohort_session._handed.taken.update({peers[1].key: taken[peers[1].key]})

    _, deceived, other = await all_of(found(), peers[1].hand_over(), peers[2].hand_over())
    assert deceived is None
    assert peers[1].is_alone
    assert other is not None


async def test_a_member_without_time_hands_in_alone_at_once(band: Band, way: str) -> None:
    peers = await convened(band, 2)
    assert await peers[1].hand_over(until_s=0.0) is None
    assert now() == 0.0


async def test_a_mean_that_cannot_be_had_costs_the_residual_and_not_the_work() -> None:
    async with band_with(codec="topk-256-4") as band:
        peers = await convened(band, 3)
        founder, first = peers[0].key, peers[1].key
        ways = {(founder, first, links.CHUNK), (first, founder, messages.SUM)}
        band.network.lost = lambda *call: call in ways
        _, unlucky, lucky = await all_of(peers[0].found(with_mean=True), peers[1].hand_over(), peers[2].hand_over())
        assert unlucky is not None
        assert unlucky.mean is None
        assert lucky.mean is not None


async def test_a_whole_round_after_the_other_with_a_death_in_the_middle(stepped_band: Band, way: str) -> None:
    peers = await stepped_band.gather_round(4)
    for round_ in range(1, 6):
        if round_ == 3:
            peers[3].die()
            await peers[3].cohort.close()
            peers = peers[:3]
        for peer in peers:
            await peer.meet()
        await all_of(*(peer.convene(round_) for peer in peers))
        await all_average(peers)


@pytest.mark.skipif(sys.platform != "linux", reason="files are counted in /proc")
async def test_rounds_leave_no_files_open() -> None:
    def open_files() -> int:
        gc.collect()  # what is mapped goes with the vectors that are views of it
        return len(os.listdir("/proc/self/fd"))

    async with band_with(local_steps=2, codec="topk-256-4") as band:
        peers = await band.gather_round(3)
        counts = []
        for round_ in range(1, 13):
            await band.meet()
            await all_of(*(peer.convene(round_) for peer in peers))
            await all_of(*(peer.average(0, after_s=0.0) for peer in peers))
            handing = (peer.hand_over(round_=round_) for peer in peers[1:])
            _, *accepted = await all_of(peers[0].found(round_=round_, with_mean=True), *handing)
            assert None not in accepted
            counts.append(open_files())
        assert max(counts[5:]) <= max(counts[:5])


# What strangers send.

SAID = messages.VectorSummary(1, b"d" * 32, b"n" * 8, ())
SIGNED = so_far(PEERS[1], PEERS[0].public_key, vector_of(1))
EACH: list[Any] = [
    messages.Join(b"b" * 32, 1, 1, 1, "here"),
    messages.JoinAnswer(int(messages.PlaceAnswer.TAKEN), (), (b"k" * 32,), 10, 10),
    messages.Give(b"b" * 32, 0, SIGNED, SAID),
    messages.GiveAnswer(b"", 0, "too late", 0),
    messages.Word((), "too late"),
    messages.Plan(b"b" * 32, 1, 1, 10, (b"k" * 32,), (b"j" * 32, b"k" * 32)),
    messages.PlanAnswer((messages.PartReport(b"k" * 32, b"d" * 32, b"n" * 8),)),
    messages.Add(b"b" * 32, 1, 1, 3, (b"k" * 32,), (16,), (b"k" * 32,)),
    messages.AddAnswer(b"d" * 64),
    messages.AskSum(b"b" * 32, 1, 3, 7),
]


@given(st.sampled_from(EACH), st.data())
@settings(max_examples=100)
def test_a_message_has_one_form(message: Any, data: st.DataObject) -> None:
    packed = pack(message)
    assert unpack(type(message), packed, max_bytes=4096) == message
    place = data.draw(st.integers(0, len(packed) - 1))
    changed = packed[:place] + bytes([data.draw(st.integers(0, 255))]) + packed[place + 1 :]
    try:
        other = unpack(type(message), changed, max_bytes=4096)
    except EncodingError:
        return
    assert pack(other) == changed


@pytest.mark.parametrize(
    "make",
    [
        lambda: messages.Join(b"b", 1, 1, 1, "here"),
        lambda: messages.Join(b"b" * 32, 0, 1, 1, "here"),
        lambda: messages.Join(b"b" * 32, 1, -1, 1, "here"),
        lambda: messages.Join(b"b" * 32, 1, 1, 2**40, "here"),
        lambda: messages.Join(b"b" * 32, 1, 1, 1, "Two words"),
        lambda: messages.JoinAnswer(9),
        lambda: messages.JoinAnswer(int(messages.PlaceAnswer.ELSEWHERE)),
        lambda: messages.JoinAnswer(int(messages.PlaceAnswer.TAKEN), (), (b"b" * 32, b"a" * 32)),
        lambda: messages.JoinAnswer(int(messages.PlaceAnswer.TAKEN), (), tuple(bytes([number]) * 32 for number in range(33))),
        lambda: messages.JoinAnswer(int(messages.PlaceAnswer.TAKEN), (), (), -1),
        lambda: messages.Give(b"b", 0, SIGNED, SAID),
        lambda: messages.Give(b"b" * 32, -1, SIGNED, SAID),
        lambda: messages.Give(b"b" * 32, MAX_LOCAL_STEPS, SIGNED, SAID),
        lambda: messages.VectorSummary(1, b"d" * 31, b"n" * 8, ()),
        lambda: messages.VectorSummary(1, b"d" * 32, b"n" * 16, ()),
        lambda: messages.VectorSummary(1, b"", b"", ()),
        lambda: messages.VectorSummary(-1, b"d" * 32, b"n" * 8, ()),
        lambda: messages.VectorSummary(1, b"d" * 32, b"n" * 8, (b"k" * 32, b"j" * 32)),
        lambda: messages.Plan(b"b" * 32, 0, 0, 1, (), (b"k" * 32,)),
        lambda: messages.Plan(b"b" * 32, 0, 0, 1, (b"j" * 32,), (b"k" * 32,)),
        lambda: messages.Plan(b"b" * 32, 0, 2, 1, (b"k" * 32,), (b"k" * 32,)),
        lambda: messages.Add(b"b" * 32, 0, 0, 1, (b"k" * 32,), (), ()),
        lambda: messages.Add(b"b" * 32, 0, 0, 1, (b"k" * 32,), (0,), ()),
        lambda: messages.AddAnswer(b"d" * 33),
        lambda: messages.AskSum(b"b" * 32, 0, 1, -1),
        lambda: messages.AskSum(b"b" * 32, 0, 2**16, 0),
        lambda: messages.GiveAnswer(b"", 2**16, "", 0),
        lambda: messages.GiveAnswer(b"", 0, "x" * 101, 0),
        lambda: messages.GiveAnswer(b"", 0, "\x1b[31m", 0),
        lambda: messages.Word((), "\n"),
    ],
)
def test_a_message_that_means_nothing_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


# Real nodes.


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", [(UNIX, TLS), (TLS,), ()])
def test_a_cohort_of_real_nodes_averages_and_hands_over(tmp_path: Path, way: tuple[str, ...]) -> None:
    from manta_swarm.network.node import Node
    from tests.network.nodes import PEERS as IDENTITIES
    from tests.network.nodes import until, with_nodes

    async def work(*nodes: Node) -> None:
        manifest = Band(local_steps=2).manifest
        joined = []
        for node, identity in zip(nodes, IDENTITIES, strict=False):
            neighbours = Neighbours(node, cohorts.RUN)
            first_cohort = FirstCohort(Choice.LABEL, "here", TOKEN)
            cohort = Cohort(
                cohorts.context_in(node, identity, manifest), first_cohort, neighbours, links=Links(node, cohorts.RUN, ways=way)
            )
            await cohort.start()
            joined.append(cohort)
            await neighbours.announce(cohort="here", round_=0)
            await neighbours.look()
            await cohort.meet()
        assert all(len(cohort.cohort_peers()) == 2 for cohort in joined)
        used = LIBP2P if not way else UNIX if UNIX in way and sys.platform == "linux" else TLS
        await until(lambda: all(set(cohort.ways().values()) == {used} for cohort in joined))
        cohort_sessions: list[CohortSession] = await all_of(*(cohort.convene(base_of(0), 1, cohorts.LEFT_MS) for cohort in joined))
        assert sum(cohort_session.is_founder for cohort_session in cohort_sessions) == 1
        vectors = [vector_of(number, 0, 700_000) for number in range(3)]
        claims = [
            so_far(each, cohort_session.founder, vector)
            for each, cohort_session, vector in zip(IDENTITIES, cohort_sessions, vectors, strict=False)
        ]
        means = await all_of(
            *(
                cohort_session.average(0, vector, claim)
                for cohort_session, vector, claim in zip(cohort_sessions, vectors, claims, strict=True)
            )
        )
        order = sorted(range(3), key=lambda number: nodes[number].key)
        assert same(*means, near_mean([vectors[number] for number in order], [16] * 3))
        for cohort in joined:
            await cohort.close()

    with_nodes(tmp_path, 3, work)


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
@pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets that show who calls")
def test_a_founder_s_process_that_is_killed_is_noticed_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    from manta_swarm.network.node import Node
    from tests.network.nodes import run, until
    from tests.network.processes import are_gone

    async def killed_in_the_second_step(node: Node, founder: Child) -> "list[psutil.Process]":
        neighbours = Neighbours(node, cohorts.RUN)
        context = cohorts.context_in(node, PEERS[1], Band(local_steps=3).manifest)
        cohort = Cohort(context, FirstCohort(Choice.LABEL, "here", TOKEN), neighbours, links=Links(node, cohorts.RUN))
        await cohort.start()
        while cohort.ways().get(PEERS[0].public_key) != UNIX:
            await neighbours.announce(cohort="here", round_=0)
            await neighbours.look()
            await cohort.meet()
        cohort_session = await cohort.convene(base_of(0), 1, 3_600_000.0)
        assert cohort_session.founder == PEERS[0].public_key
        mean = await cohort_session.average(0, vector_of(1), so_far(PEERS[1], cohort_session.founder, vector_of(1)))
        assert same(mean, near_mean([vector_of(0), vector_of(1)], [16, 16]))
        await until(lambda: "averaged" in founder.last_lines())
        processes: list[psutil.Process] = psutil.Process(founder.pid).children(recursive=True)
        giving = asyncio.create_task(
            cohort_session.average(1, vector_of(1, 1), so_far(PEERS[1], cohort_session.founder, vector_of(1), vector_of(1, 1)))
        )
        await asyncio.sleep(0)
        founder.process.kill()
        assert same(await giving, vector_of(1, 1))
        assert cohort_session.is_alone
        await cohort.close()
        return processes

    async def story() -> None:
        (tmp_path / "member.key").write_bytes(PEERS[1].to_libp2p())
        node = await Node.start(PEERS[1], tmp_path / "member.key", listen=["/ip4/127.0.0.1/tcp/0"])
        founder = forked_program(tmp_path / "log", "tests.peer.cohort.killed_founder", str(tmp_path), (await node.addresses())[0])
        try:
            children = await killed_in_the_second_step(node, founder)
        finally:
            founder.process.kill()
            await asyncio.to_thread(founder.process.wait)
        await node.close()
        await until(lambda: are_gone(children))

    run(story())
