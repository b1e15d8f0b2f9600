"""A peer under its person's limits, over a network in memory: paused and let go on by the state of a computer that the test sets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network import timeouts
from manta_swarm.peer.limits.limiter import Absences, Limiter
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.protocol.rounds import PeerStage
from tests.memory_log import MICROBATCH, MICROBATCHES, SMALL_EXCHANGE, until
from tests.peer.computer import Computer
from tests.peer.scene import Member, Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")

STEPS = 3
STEPPED = replace(SMALL_EXCHANGE, local_steps=STEPS, max_claim_samples=STEPS * MICROBATCH, weight_cap=STEPS * MICROBATCH)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LOOK_AT_COMPUTER_S", 0.01)


@asynccontextmanager
async def limited(member: Member, limits: Limits, computer: Computer) -> AsyncIterator[Limiter]:
    """Yield the limiter of a peer, which looks at the computer again and again."""
    limiter = Limiter(limits, member.store.directory, computer.sensors, member.live_status)
    await limiter.attach(member.limited)
    watching = asyncio.create_task(limiter.watch())
    try:
        yield limiter
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


CALM: dict[str, Any] = {"minute": 12 * 60, "on_battery": False, "idle_s": 1000.0, "celsius": 50.0}
AT_NIGHT = {"minute": 23 * 60}


def calm() -> Computer:
    computer = Computer()
    vars(computer).update(CALM)
    return computer


CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"schedule": "08:00-18:00"}, AT_NIGHT, "it is 23:00, outside of 08:00-18:00"),
    ({"when_idle": 60}, {"idle_s": 3.0}, "this computer is in use"),
    ({"on_ac": True}, {"on_battery": True}, "on battery"),
    ({"max_temperature": 80}, {"celsius": 91.0}, "hot: 91 of 80 degrees"),
]


@pytest.mark.parametrize(("settings", "changes", "words"), CASES, ids=[next(iter(settings)) for settings, _, _ in CASES])
async def test_what_a_limit_asks_for_pauses_the_peer_and_its_end_lets_it_go_on_and_nothing_is_lost(
    scene: Scene, settings: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    computer = calm()
    member = scene.join(0, prepare=lambda member: member.worker.may_go_on.clear())
    async with limited(member, Limits(**settings), computer):
        await until(lambda: len(member.worker.microbatches) == 1)
        vars(computer).update(changes)
        await until(lambda: member.status.paused)
        assert list(member.status.pauses.items()) == [(next(iter(settings)), words)]
        member.worker.may_go_on.set()
        await scene.log.wait_for(1)  # what was done is handed in
        scene.log.commit()
        await member.reaches(1)
        written = json.loads((member.store.directory / "status.json").read_text())
        assert (written["paused"], written["pauses"]) == (True, {next(iter(settings)): words})
        assert len(member.worker.microbatches) == 1
        vars(computer).update(CALM)
        await until(lambda: not member.status.paused)
        await scene.rounds(1, 1, member)
        assert (member.status.samples_counted, member.status.samples_lost) == (MICROBATCH + MICROBATCHES * MICROBATCH, 0)


async def test_the_person_s_word_and_a_limit_both_hold_until_both_are_over(scene: Scene) -> None:
    computer = calm()
    member = scene.join(0)
    async with limited(member, Limits(on_ac=True), computer) as limiter:
        await limiter.pause()
        computer.on_battery = True
        await until(lambda: set(member.status.pauses) == {"you", "on_ac"})
        assert "all the same: on battery" in await limiter.resume()
        assert set(member.status.pauses) == {"on_ac"}
        assert "nothing is computed now: on battery" in await limiter.limit({})
        assert await limiter.limit({"on_ac": "none"}) == "no limits"
        assert (member.status.paused, member.status.pauses) == (False, {})


async def test_who_starts_outside_of_its_hours_trains_nothing_until_they_come(scene: Scene) -> None:
    computer = calm()
    vars(computer).update(AT_NIGHT)
    member = scene.join(0)
    async with limited(member, Limits(schedule="08:00-18:00"), computer):  # type: ignore[arg-type]
        await until(lambda: member.stage is PeerStage.WORKING)
        assert (member.worker.microbatches, member.status.paused) == ([], True)
        computer.minute = 9 * 60
        await scene.log.wait_for(1)
        assert member.worker.microbatches


async def test_duty_threads_and_rates_act_at_once_and_are_shown(scene: Scene) -> None:
    member = scene.join(0)
    async with limited(member, Limits(), calm()) as limiter:
        told = {"duty": "50%", "cpu_threads": "1", "max_upload": "1MB", "max_download": "8Mbit"}
        said = await limiter.limit(told)
        assert said == "duty 50%, cpu-threads 1, max-upload 1MB, max-download 1MB"
        assert member.status.limits == {"duty": "50%", "cpu_threads": "1", "max_upload": "1MB", "max_download": "1MB"}
        traffic = member.limited._traffic
        assert (traffic.sent.limit, traffic.received.limit) == (1_000_000, 1_000_000)
        await scene.rounds(2)
        await limiter.limit({"duty": "none", "max_upload": "none"})
        assert traffic.sent.limit is None
        assert set(json.loads((member.store.directory / "status.json").read_text())["limits"]) == {"cpu_threads", "max_download"}


async def test_a_peer_that_rests_takes_all_local_steps_and_says_that_its_microbatches_take_longer(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=STEPPED) as scene:
        member = scene.join(0, prepare=lambda member: setattr(member.worker, "takes_s", 0.02))
        async with limited(member, Limits(duty=20), calm()):
            await scene.rounds(2, 1, member)
            assert [microbatch.step for microbatch in member.worker.microbatches[: 2 * STEPS]] == [*range(STEPS), *range(STEPS)]
            assert (member.status.samples_counted, member.status.samples_lost) == (2 * STEPS * MICROBATCH, 0)
            assert scene.log.headers[-1].claims[0].open().microbatch_ms >= 100  # 20 ms, and the rest that a fifth of the time asks for


async def test_what_is_done_by_then_is_handed_in_and_no_further_microbatch_is_started_until_it_resumes(scene: Scene) -> None:
    member = await scene.held(0)
    await member.loop.pause()
    member.worker.may_go_on.set()
    await scene.log.wait_for(1)
    assert scene.log.headers[0].claims[0].open().microbatches == 1
    scene.log.commit()
    await member.reaches(1)
    other = scene.join(1)
    await scene.rounds(2, 1, member)  # it follows the run
    written = json.loads((member.store.directory / "status.json").read_text())
    assert (written["paused"], written["workers"]) == (True, 0)
    assert len(member.worker.microbatches) == 1
    await scene.log.wait_for(1)
    await other.leaves()  # what it has in this round stays
    await member.loop.resume()
    await scene.rounds(1, 2, member)
    assert (member.status.paused, member.status.workers) == (False, 1)
    assert (member.status.samples_counted, member.status.samples_lost) == (MICROBATCH + MICROBATCHES * MICROBATCH, 0)


async def test_steps_that_were_begun_wait_for_the_end_of_the_pause_and_count_then(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=STEPPED) as scene:
        member = await scene.held(0)
        await member.loop.pause()
        member.worker.may_go_on.set()
        await until(lambda: member.loop.machine.samples == MICROBATCH)
        other = scene.join(1)
        await scene.rounds(1, 1, other)
        await member.loop.resume()
        await scene.rounds(1, 2, member)
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


def test_an_absence_is_told_once_with_its_length() -> None:
    absences = Absences(100.0)
    assert [absences.look(2.0, now_s) for now_s in (102.1, 107.0, 160.0, 162.0)] == [0.0, 0.0, 51.0, 0.0]


def test_a_busy_machine_and_a_clock_that_is_set_back_are_no_absence() -> None:
    absences = Absences(100.0)
    assert not any(absences.look(2.0, now_s) for now_s in (108.0, 50.0, 52.0))
