"""Rounds of a cohort where audits compute local steps again: what was learnt together is handed in together, or not at all."""

import threading
from pathlib import Path

import pytest

from protocol.audits import AUDITED, Trust
from protocol.records import Header
from protocol.signing import PublicKey
from tests.memory_log import DEADLINE_S, until
from tests.peer.cohort.test_cohort_rounds import STEPS, THIN, three, until_together
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
