"""Rounds of peers that are a cohort, over a network in memory: one contribution for all, and alone whenever that fails."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.protocol.records import Header
from tests.memory_log import DEADLINE_S, MICROBATCH, SMALL_EXCHANGE, until
from tests.peer.scene import Member, Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")

TOKEN = bytes(range(32))
STEPS = 3
DENSE = SMALL_EXCHANGE
THIN = replace(
    SMALL_EXCHANGE,
    codec="topk-256-4",
    local_steps=STEPS,
    max_claim_samples=STEPS * MICROBATCH,
    weight_cap=STEPS * MICROBATCH,
    first_min_exponent=-24,
)
BOTH = pytest.mark.parametrize("exchange", [DENSE, THIN], ids=["dense", "thin"])


async def three(scene: Scene) -> list[Member]:
    """Return three members of a cohort who know each other, the founder first, in rounds that are open for some seconds."""
    scene.log.left_ms = 10_000
    members = [scene.join(number, token=TOKEN) for number in range(3)]
    await met(*members)
    return sorted(members, key=lambda member: member.key)


async def met(*members: Member) -> None:
    """Return once all of these have proven the cohort's token to each other."""
    await until(lambda: all(len(member.loop.cohort.cohort_peers()) == len(members) - 1 for member in members))


def stands_still(member: Member, step: int) -> tuple[threading.Event, threading.Event]:
    """Let a member's worker stand still in a step; return what is set once it does, and what lets it go on."""
    train, is_stuck, may_end = member.worker.train, threading.Event(), threading.Event()

    def stuck(microbatch: Microbatch) -> MicrobatchResult:
        if microbatch.step == step:
            is_stuck.set()
            may_end.wait(DEADLINE_S)
        return train(microbatch)

    member.worker.train = stuck  # type: ignore[method-assign]
    return is_stuck, may_end


def kill(scene: Scene, member: Member) -> None:
    """Let a member be gone, from one moment to the next."""
    scene.network.endpoints.pop(member.key)
    member.task.cancel()


def newest(scene: Scene) -> list[Header]:
    """Return what the newest table has."""
    table = scene.log.ledger.table_at(scene.log.ledger.round)
    assert table is not None
    return [scene.log.handed[one.contribution][0] for one in table]


def num_claims(scene: Scene) -> int:
    """Return how many claims the open round has."""
    return sum(len(scene.log.handed[each][0].claims) for each in scene.log.in_round())


def cohort_is_in(scene: Scene, count: int) -> bool:
    """Whether the open round has a contribution of so many members."""
    return any(len(scene.log.handed[each][0].claims) == count for each in scene.log.in_round())


async def until_together(scene: Scene, count: int) -> None:
    """Commit rounds until one contribution has the claims of so many members, and leave that one open."""
    async with asyncio.timeout(60):
        while True:
            await until(lambda: num_claims(scene) >= count)
            if cohort_is_in(scene, count):
                return
            scene.log.commit()


@BOTH
async def test_a_cohort_hands_in_one_contribution_each_member_s_claim_counts_and_all_go_on_from_one_residual(
    tmp_path: Path, exchange: object
) -> None:
    async with scene_in(tmp_path, exchange=exchange) as scene:
        members = await three(scene)
        await until_together(scene, 3)
        scene.log.commit()
        (header,) = newest(scene)
        assert [claim.open().key for claim in header.claims] == [member.key for member in members]
        assert {claim.open().founder for claim in header.claims} == {header.contribution.open().founder}
        round_ = scene.log.ledger.round
        for member in members:
            await member.reaches(round_)
            await until(lambda member=member: member.status.rounds_counted == round_)
            assert (member.status.samples_lost, member.status.promises_broken) == (0, 0)
            assert member.status.state == scene.log.ledger.state.hex()
        left = header.contribution.open().residual
        assert len(left) == (32 if exchange is THIN else 0)
        await until(lambda: num_claims(scene) >= 3)
        scene.log.commit()
        assert {claim.open().residual for header in newest(scene) for claim in header.claims} == {left}


@BOTH
async def test_when_the_founder_dies_the_others_hand_in_without_it_in_the_same_round(tmp_path: Path, exchange: object) -> None:
    async with scene_in(tmp_path, exchange=exchange) as scene:
        founder, *others = members = await three(scene)
        await until_together(scene, 3)
        for member in members:
            member.worker.may_go_on.clear()
        scene.log.commit()
        round_ = scene.log.ledger.round
        await until(lambda: all(member.status.round == round_ for member in members))
        kill(scene, founder)
        for member in others:
            member.worker.may_go_on.set()
        await until(lambda: num_claims(scene) >= 2)
        scene.log.commit()
        keys = {claim.open().key for header in newest(scene) for claim in header.claims}
        assert keys == {member.key for member in others}
        for member in others:
            await member.reaches(round_ + 1)
            assert member.status.samples_lost == 0


async def test_a_member_whose_claim_cannot_stand_is_left_out_and_the_others_count(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=DENSE) as scene:
        *_, liar = members = await three(scene)
        await until_together(scene, 3)
        for member in members:
            member.worker.may_go_on.clear()
        scene.log.commit()
        round_ = scene.log.ledger.round
        scene.log.blames = liar.key
        for member in members:
            await member.reaches(round_)
            member.worker.may_go_on.set()
        while not cohort_is_in(scene, 2):  # a round may find the liar with one of the others only
            await until(lambda: num_claims(scene) >= 2)
            if not cohort_is_in(scene, 2):
                scene.log.commit()
        (header,) = [scene.log.handed[each][0] for each in scene.log.in_round() if len(scene.log.handed[each][0].claims) == 2]
        assert liar.key not in [claim.open().key for claim in header.claims]
