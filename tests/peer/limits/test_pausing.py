"""A peer that is paused and goes on, over a network in memory, with a worker in its own process."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.protocol.rounds import PeerStage
from tests.memory_log import MICROBATCH, MICROBATCHES, SMALL_EXCHANGE, until
from tests.peer.scene import Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")

STEPS = 3
STEPPED = replace(SMALL_EXCHANGE, local_steps=STEPS, max_claim_samples=STEPS * MICROBATCH, weight_cap=STEPS * MICROBATCH)


async def test_what_is_done_by_then_is_handed_in_and_no_further_microbatch_is_started_until_it_resumes(scene: Scene) -> None:
    member = await scene.held(0)
    await member.loop.pause()
    member.worker.may_go_on.set()
    await scene.log.wait_for(1)
    assert scene.log.headers[0].claims[0].open().microbatches == 1
    scene.log.commit()
    await member.reaches(1)
    other = scene.join(1)
    for round_ in (2, 3):  # it follows the run
        await scene.log.wait_for(1)
        scene.log.commit()
        await member.reaches(round_)
    written = json.loads((member.store.directory / "status.json").read_text())
    assert (written["paused"], written["workers"]) == (True, 0)
    assert len(member.worker.microbatches) == 1
    await scene.log.wait_for(1)
    await other.leaves()  # what it has in this round stays
    await member.loop.resume()
    await scene.log.wait_for(2)
    scene.log.commit()
    await member.reaches(4)
    assert (member.status.paused, member.status.workers) == (False, 1)
    assert (member.status.samples_counted, member.status.samples_lost) == (MICROBATCH + MICROBATCHES * MICROBATCH, 0)


async def test_steps_that_were_begun_wait_for_the_end_of_the_pause_and_count_then(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=STEPPED) as scene:
        member = await scene.held(0)
        await member.loop.pause()
        member.worker.may_go_on.set()
        await until(lambda: member.loop.machine.samples == MICROBATCH)
        other = scene.join(1)
        await scene.log.wait_for(1)
        scene.log.commit()
        await other.reaches(1)
        await member.loop.resume()
        await scene.log.wait_for(2)
        scene.log.commit()
        await member.reaches(2)
        assert [microbatch.step for microbatch in member.worker.microbatches[:STEPS]] == [0, 1, 2]
        assert (member.status.samples_counted, member.status.samples_lost) == (STEPS * MICROBATCH, 0)


async def test_who_leaves_during_a_pause_leaves_at_once_though_its_steps_are_not_done(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=STEPPED) as scene:
        member = await scene.held(0)
        await member.loop.pause()
        member.worker.may_go_on.set()
        await until(lambda: member.loop.machine.samples == MICROBATCH)
        await member.leaves()
        assert (member.status.samples_counted, member.status.samples_lost) == (0, MICROBATCH)


async def test_who_begins_paused_trains_nothing_and_leaves_when_told(scene: Scene) -> None:
    member = scene.join(0)
    await member.loop.pause()
    await until(lambda: member.stage is PeerStage.WORKING)
    await member.leaves()
    assert member.worker.microbatches == []
