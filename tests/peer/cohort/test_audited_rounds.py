"""Rounds of a cohort where audits compute local steps again: what was learnt together is handed in together, or not at all."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from protocol.audits import AUDITED, PATIENCE, Trust
from protocol.exchange import MAX_AGE
from protocol.records import Header
from protocol.signing import PublicKey
from protocol.vectors import vectors_asked
from swarm.log_client import HandedIn
from tests.memory_log import DEADLINE_S, until
from tests.peer.cohort.test_cohort_rounds import STEPS, THIN, cohort_is_in, three, until_together
from tests.peer.scene import Member, Scene, play

pytestmark = pytest.mark.usefixtures("quick_pauses")

AUDITS = Trust(AUDITED)


def handed_in_alone(scene: Scene, members: list[Member]) -> list[Header]:
    """Return contributions of one claim some of whose steps its key has not taken alone."""
    found = []
    for header, _ in scene.log.handed.values():
        for member in members if len(header.claims) == 1 else ():
            records = member.loop._records.folder.records(header.claims[0]) if member.loop._records is not None else None
            if records is not None and any(step.mean != step.vector for step in records.steps):
                found.append(header)
    return found


def test_members_whose_founder_dies_in_the_midst_of_a_round_lose_that_round_and_go_on(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        members = await three(scene)
        await until_together(scene, 3)
        assert not handed_in_alone(scene, members)
        founder = min(members, key=lambda member: member.identity.public_key)
        others = [member for member in members if member is not founder]
        train, is_stuck, may_end = founder.worker.train, threading.Event(), threading.Event()

        def stuck(lot: object) -> object:
            if lot.step == STEPS - 1:  # type: ignore[attr-defined]
                is_stuck.set()
                may_end.wait(DEADLINE_S)
            return train(lot)  # type: ignore[arg-type]

        founder.worker.train = stuck  # type: ignore[assignment, method-assign]
        scene.log.commit()
        await until(is_stuck.is_set)
        scene.network.endpoints.pop(PublicKey(founder.identity.public_key))
        founder.task.cancel()
        may_end.set()
        await until(lambda: all(member.status.dropped.get("its cohort fell apart") for member in others))
        assert all(member.status.samples_lost > 0 for member in others)
        await until_together(scene, 2)
        assert not handed_in_alone(scene, members)

    play(tmp_path, story, exchange=THIN, trust=AUDITS)


def test_work_that_was_given_up_and_is_handed_in_by_its_founder_after_all_counts_and_its_vectors_are_kept(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        members = await three(scene)
        await until_together(scene, 3)
        founder = min(members, key=lambda member: member.identity.public_key)
        others = [member for member in members if member is not founder]
        hand_in, late, may_go_on = founder.loop.log.hand_in, list[Header](), asyncio.Event()

        async def hand_in_late(header: Header, *arguments: Any) -> HandedIn:
            if len(header.claims) == 3 and not late:
                late.append(header)
                for member in others:
                    member.worker.may_go_on.clear()
                await may_go_on.wait()
            return await hand_in(header, *arguments)

        founder.loop.log.hand_in = hand_in_late  # type: ignore[method-assign]
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
        for _ in range(MAX_AGE + PATIENCE + 2):  # what comes to nothing is forgotten by then
            await scene.log.wait_for(1)
            scene.log.commit()
            for member in members:
                await member.reaches(scene.log.ledger.round)
        beacon = scene.log.ledger.commit_at(table + 1)
        for claim in late[0].claims:
            member = next(each for each in members if each.identity.public_key == claim.open().key)
            assert member.loop._records is not None
            assert member.loop._vectors is not None
            records = member.loop._records.folder.records(claim)
            assert records is not None
            asked = vectors_asked(AUDITS, beacon, claim.digest, claim.open(), records)
            assert asked
            assert all(member.loop._vectors._folder.has(claim.digest, digest) for digest in asked)

    play(tmp_path, story, exchange=THIN, trust=AUDITS)


def test_a_member_that_dies_in_its_second_step_is_listed_with_the_first_and_the_others_hand_in_all(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        members = await three(scene)
        await until_together(scene, 3)
        lost = max(members, key=lambda member: member.identity.public_key)
        train, is_stuck, may_end = lost.worker.train, threading.Event(), threading.Event()

        def stuck(lot: object) -> object:
            if lot.step == 1:  # type: ignore[attr-defined]
                is_stuck.set()
                may_end.wait(DEADLINE_S)
            return train(lot)  # type: ignore[arg-type]

        lost.worker.train = stuck  # type: ignore[assignment, method-assign]
        scene.log.commit()
        await until(is_stuck.is_set)
        scene.network.endpoints.pop(PublicKey(lost.identity.public_key))
        lost.task.cancel()
        may_end.set()
        await until(lambda: cohort_is_in(scene, 3))
        (digest,) = scene.log.in_round()
        header, _ = scene.log.handed[digest]
        steps = {claim.open().key: len(claim.open().steps) for claim in header.claims}
        assert steps == {member.identity.public_key: 1 if member is lost else STEPS for member in members}
        scene.log.commit()
        (listed,) = scene.log.ledger.table_at(scene.log.ledger.round) or ()
        assert dict(listed.rewards)[lost.identity.public_key] > 0
        assert [claim.open().key for claim in header.claims if claim.digest not in header.contribution.open().in_body] == [
            lost.identity.public_key
        ]
        await until_together(scene, 2)  # the others go on with what it left them

    play(tmp_path, story, exchange=THIN, trust=AUDITS)
