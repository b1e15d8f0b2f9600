"""Rounds of a cohort where audits compute local steps again: what was learnt together is handed in together, or not at all."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network.log_client import HandedIn
from manta_swarm.protocol.auditing import vectors_of
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.records import Header
from tests.audited import RULES
from tests.memory_log import until
from tests.peer.cohort.test_cohort_rounds import STEPS, THIN, cohort_is_in, kill, stands_still, three, until_together
from tests.peer.scene import Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")

AUDITS = (replace(RULES, kept_rounds=60, pending_rounds=120),)


def handed_in_alone(scene: Scene) -> list[Header]:
    """Return contributions of one claim some of whose steps its key has not taken alone."""
    alone = [header for header, _ in scene.log.handed.values() if len(header.claims) == 1]
    return [header for header in alone if means_of(header) != [step.vector for step in header.claims[0].open().steps]]


def means_of(header: Header) -> list[bytes]:
    return [step.mean for step in header.contribution.open().steps]


async def test_members_whose_founder_dies_in_the_midst_of_a_round_lose_that_round_and_go_on(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=THIN, audits=AUDITS) as scene:
        founder, *others = await three(scene)
        await until_together(scene, 3)
        assert not handed_in_alone(scene)
        is_stuck, may_end = stands_still(founder, STEPS - 1)
        scene.log.commit()
        await until(is_stuck.is_set)
        kill(scene, founder)
        may_end.set()
        await until(lambda: all(member.status.dropped.get("its cohort fell apart") for member in others))
        assert all(member.status.samples_lost > 0 for member in others)
        await until_together(scene, 2)
        assert not handed_in_alone(scene)


async def test_work_that_was_given_up_and_is_handed_in_by_its_founder_after_all_counts_and_its_vectors_are_kept(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=THIN, audits=AUDITS) as scene:
        founder, *others = members = await three(scene)
        await until_together(scene, 3)
        hand_in, late, may_go_on = founder.loop.context.log.hand_in, list[Header](), asyncio.Event()

        async def hand_in_late(header: Header, *arguments: Any) -> HandedIn:
            if len(header.claims) == 3 and not late:
                late.append(header)
                for member in others:
                    member.worker.may_go_on.clear()
                await may_go_on.wait()
            return await hand_in(header, *arguments)

        founder.loop.context.log.hand_in = hand_in_late  # type: ignore[method-assign]
        scene.log.left_ms = 3_000
        scene.log.commit()
        await until(lambda: all(member.status.dropped.get("its cohort fell apart") for member in others))
        lost = [member.status.samples_lost for member in others]
        assert min(lost) > 0
        may_go_on.set()
        await until(lambda: cohort_is_in(scene, 3))
        assert scene.log.in_round() == [late[0].contribution.digest]
        scene.log.commit()
        table = scene.log.ledger.round
        await until(lambda: all(member.status.last_round == table for member in others))
        assert [member.status.samples_lost for member in others] == [0, 0]

        scene.log.left_ms = 10_000
        for member in others:
            member.worker.may_go_on.set()
        for _ in range(MAX_AGE + 4):  # what comes to nothing is forgotten by then
            await scene.rounds(1)
            for member in members:
                await member.reaches(scene.log.ledger.round)
        contribution = late[0].contribution.open()
        for member in members:
            claim = next(signed.open() for signed in late[0].claims if signed.open().key == member.key)
            asked = vectors_of(contribution, (claim,), failed=tuple(range(STEPS)))
            assert len(asked) >= 2 * STEPS
            assert member.evidence is not None
            assert all(member.evidence._folder.has(contribution.base, digest) for digest in asked)


async def test_a_member_that_dies_in_its_second_step_is_listed_with_the_first_and_the_others_hand_in_all(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=THIN, audits=AUDITS) as scene:
        *_, lost = members = await three(scene)
        await until_together(scene, 3)
        is_stuck, may_end = stands_still(lost, 1)
        scene.log.left_ms = 3_000
        scene.log.commit()
        await until(is_stuck.is_set)
        kill(scene, lost)
        may_end.set()
        await until(lambda: cohort_is_in(scene, 3))
        (digest,) = scene.log.in_round()
        header, _ = scene.log.handed[digest]
        steps = {claim.open().key: len(claim.open().steps) for claim in header.claims}
        assert steps == {member.key: 1 if member is lost else STEPS for member in members}
        scene.log.commit()
        (listed,) = scene.log.ledger.table_at(scene.log.ledger.round) or ()
        assert dict(zip(listed.keys, listed.weights, strict=True))[lost.key] > 0
        assert [claim.open().key for claim in header.claims if claim.digest not in header.contribution.open().in_body] == [lost.key]
        await until_together(scene, 2)  # the others go on with what it left them
