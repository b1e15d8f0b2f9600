"""A peer's rounds over a network in memory: against a log that answers, is away, is late, refuses, or does not keep its word."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

from manta_swarm.automl.training.update import state_digest
from manta_swarm.network.rpc import OwnNode
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.store import KeptContribution
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import OwnFault, StorageError
from manta_swarm.protocol.manifest import Recipe
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.rounds import PeerStage
from manta_swarm.protocol.signing import PublicKey
from tests.memory_log import MICROBATCH, MICROBATCHES, SMALL_EXCHANGE, until
from tests.peer.scene import Member, Scene, scene_in
from tests.peer.test_leaving import working_ahead

pytestmark = pytest.mark.usefixtures("quick_pauses")


def has_gone_well(scene: Scene, member: Member, rounds: int) -> bool:
    """Whether all that a peer trained in so many rounds counts, and it stands where the log does."""
    status = member.status
    counted = (status.rounds_counted, status.samples_counted, status.samples_lost, status.promises_broken, dict(status.dropped))
    return counted == (rounds, rounds * MICROBATCHES * MICROBATCH, 0, 0, {}) and status.state == scene.log.ledger.state.hex()


# A run without faults.


@pytest.mark.parametrize("is_plain", [False, True], ids=["with its features", "plain"])
async def test_peers_train_and_hand_in_and_end_with_the_run_on_the_logs_state(tmp_path: Path, is_plain: bool) -> None:
    async with scene_in(tmp_path, num_rounds=3) as scene:
        members = [scene.join(number, is_plain=is_plain) for number in range(2)]
        assert is_plain is not bool(list(members[0].loop.features))
        await scene.rounds(3, 2)
        for member in members:
            await member.ends()
            assert has_gone_well(scene, member, 3)
            assert member.status.finished
            assert (member.status.stage, member.status.waiting_for) == ("finished", "")


async def test_a_peer_that_trains_nothing_follows_the_run_and_stays_beyond_its_end_until_it_is_told_to_leave(tmp_path: Path) -> None:
    async with scene_in(tmp_path, num_rounds=3) as scene:
        trainer, auditor = scene.join(0), scene.join(1, trains=False)
        for round_ in range(1, 4):
            await auditor.reaches(round_ - 1)
            await scene.rounds(1)
        await trainer.ends()
        await auditor.reaches(3)
        assert auditor.status.state == scene.log.ledger.state.hex()
        assert (auditor.loop.progress.newest_round, auditor.loop.is_finished()) == (3, True)
        assert not auditor.task.done()
        assert (auditor.worker.microbatches, auditor.status.rounds_counted) == ([], 0)
        await auditor.leaves()
        assert auditor.status.finished


async def test_a_newcomer_gets_the_newest_state_and_goes_on_from_there(scene: Scene) -> None:
    first = scene.join(0)
    await scene.rounds(3, 1, first)
    written = json.loads((first.store.directory / "status.json").read_text())
    assert (written["round"], written["stage"]) == (3, "working")
    late = scene.join(1)
    await scene.rounds(1, 2, late)
    await until(lambda: late.status.rounds_counted == 1)
    assert late.status.joined_at_round == 3
    assert has_gone_well(scene, late, 1)
    assert late.worker.microbatches[0].base == scene.log.ledger.commit_at(3)


async def test_microbatches_are_trained_on_the_state_that_is_held_with_the_schedules_teacher(tmp_path: Path) -> None:
    async with scene_in(tmp_path, schedule="shrinking", num_rounds=7) as scene:
        member, log = scene.join(0), scene.log
        states = [log.state]
        for round_ in range(1, 5):
            await log.wait_for(1)
            assert member.worker.loaded is not None
            assert torch.equal(member.worker.loaded, states[-1].parameters)
            assert (member.worker.teacher is not None) == log.plan.phase(round_).distils
            log.commit()
            states.append(log.state)
        assert log.plan.teacher_round is not None
        assert member.worker.teacher is not None
        assert torch.equal(member.worker.teacher, states[log.plan.teacher_round].parameters)


async def test_microbatches_of_a_taught_round_have_the_state_that_is_held_as_their_teacher(tmp_path: Path) -> None:
    async with scene_in(tmp_path, num_rounds=3, recipe=Recipe(taught_percent=67)) as scene:
        member, log = scene.join(0), scene.log
        for round_ in range(1, 4):
            await log.wait_for(1)
            taught = log.plan.phase(round_).teaches_itself
            assert taught == (round_ > 1)
            assert (member.worker.teacher is not None) == taught
            if member.worker.teacher is not None:
                assert torch.equal(member.worker.teacher, log.state.parameters)
                assert member.status.teacher == state_digest(log.state).hex()
            log.commit()


async def test_a_header_leaves_only_once_header_and_body_are_on_the_disk(scene: Scene) -> None:
    answer, stored = scene.log.endpoint.handlers["header"], []

    async def look(caller: PublicKey, request: bytes) -> bytes:
        kept = member.store.signed(scene.log.ledger.run).load(KeptContribution)
        stored.append(kept is not None and pack(kept.header) == request)
        return await answer(caller, request)

    await scene.log.endpoint.serve("header", look)
    member = scene.join(0)
    await scene.log.wait_for(1)
    assert stored == [True]


async def test_the_last_commit_may_overtake_the_inclusion_promise_and_nothing_is_said_to_be_lost(tmp_path: Path) -> None:
    async with scene_in(tmp_path, num_rounds=1) as scene:
        answer, may_answer = scene.log.endpoint.handlers["body"], asyncio.Event()

        async def hold_back(caller: PublicKey, request: bytes) -> bytes:
            inclusion_promise = await answer(caller, request)
            await may_answer.wait()
            return inclusion_promise

        await scene.log.endpoint.serve("body", hold_back)
        member = scene.join(0)
        await scene.rounds(1)
        await until(lambda: member.status.rounds_counted == 1)
        may_answer.set()
        await member.ends()
        assert has_gone_well(scene, member, 1)


async def test_a_microbatch_that_makes_no_sense_is_in_no_contribution(scene: Scene) -> None:
    member = scene.join(0, prepare=lambda member: setattr(member.worker, "makes_no_sense", True))
    await until(lambda: len(member.worker.microbatches) >= 3)
    member.worker.makes_no_sense = False
    await scene.log.wait_for(1)
    ((header, _),) = scene.log.handed.values()
    assert header.claims[0].open().microbatches == MICROBATCHES
    assert member.status.samples_lost == 0
    await member.leaves()


async def test_microbatches_whose_sum_makes_no_sense_are_lost_and_it_goes_on(scene: Scene) -> None:
    def too_much(member: Member) -> None:
        member.worker.adds = 3e38  # a float32, and twice of it is none

    member = scene.join(0, prepare=too_much)
    await until(lambda: member.status.samples_lost >= MICROBATCHES * MICROBATCH)
    member.worker.adds = 0.0
    await scene.log.wait_for(1)


# What comes too late.


async def test_what_comes_too_late_for_its_round_counts_in_the_next(scene: Scene) -> None:
    slow, quick = await scene.held(0), scene.join(1)
    await scene.rounds(1)
    await until(lambda: slow.loop.machine.newest.round == 1)
    slow.worker.may_go_on.set()
    await scene.log.wait_for(2)
    assert scene.log.commit().contributions == 2
    await slow.reaches(2)
    await until(lambda: slow.status.rounds_counted == 1)
    listed = {one.founder: one.weighing.age for one in scene.log.ledger.table_at(2) or ()}
    assert listed == {slow.key: 1, quick.key: 0}
    assert slow.status.samples_lost == 0


async def test_a_microbatch_begun_ahead_is_signed_after_the_commit_of_the_one_before(tmp_path: Path) -> None:
    async with scene_in(tmp_path, exchange=replace(SMALL_EXCHANGE, first_open_ms=100)) as scene:
        slow = await working_ahead(scene)
        assert slow.worker.microbatches[-1].base == scene.log.ledger.last_commit
        assert slow.loop.machine.inclusion_promise is not None
        await scene.rounds(1, 2)
        await until(lambda: any((self_of(each), base_of(each)) == (slow.key, 2) for each in scene.log.headers))
        await until(lambda: slow.status.rounds_counted == 1)
        assert [member.status.samples_lost for member in scene.members] == [0, 0]


def self_of(header: Header) -> bytes:
    return header.contribution.open().founder


def base_of(header: Header) -> int:
    return header.contribution.open().round


async def test_what_is_too_old_for_every_round_is_lost_and_said(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    slow, quick = await scene.held(0), scene.join(1)
    await scene.rounds(5, 1, quick)
    await until(lambda: slow.loop.machine.newest.round == 5)
    slow.worker.may_go_on.set()
    await scene.log.wait_for(2)
    assert slow.status.samples_lost == MICROBATCH
    assert not slow.status.dropped  # it never became a contribution


# A log that fails.


async def test_a_log_that_is_away_is_waited_for_and_nothing_is_lost(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    member = await scene.held(0)
    scene.log.go_away()
    member.worker.may_go_on.set()
    await until(lambda: member.stage is PeerStage.SIGNED and bool(member.status.waiting_for))
    assert "the run's log, which cannot be reached" in member.status.waiting_for
    scene.log.come_back()
    await scene.rounds(1)
    await until(lambda: has_gone_well(scene, member, 1))
    assert member.status.waiting_for == ""
    assert member.endpoint.met[scene.log.endpoint.key] >= 1
    assert capsys.readouterr().out.count("waiting for the run's log, which cannot be reached; nothing is lost") == 1


async def test_a_log_that_goes_away_with_the_inclusion_promise_given_is_said_too(scene: Scene) -> None:
    member = scene.join(0)
    await until(lambda: member.stage is PeerStage.PROMISED)
    scene.log.go_away()
    await until(lambda: "the run's log" in member.status.waiting_for)
    scene.log.come_back()
    await until(lambda: member.status.waiting_for == "")


async def test_an_inclusion_promise_that_was_lost_on_its_way_is_asked_for_again(scene: Scene) -> None:
    answer, lost = scene.log.endpoint.handlers["body"], []

    async def lose(caller: PublicKey, request: bytes) -> bytes:
        inclusion_promise = await answer(caller, request)
        if not lost:
            lost.append(inclusion_promise)
            scene.log.go_away()
            asyncio.get_running_loop().call_later(0.05, scene.log.come_back)
        return inclusion_promise

    await scene.log.endpoint.serve("body", lose)
    member = scene.join(0)
    await until(lambda: len(lost) == 1)
    await scene.log.wait_for(1)
    await until(lambda: member.stage is PeerStage.PROMISED)
    scene.log.commit()
    await until(lambda: has_gone_well(scene, member, 1))


async def test_a_round_that_counted_a_peer_is_not_told_as_one_without_it_at_the_next_start(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    member = scene.join(0)
    await scene.rounds(1)
    await until(lambda: has_gone_well(scene, member, 1))
    member.task.cancel()
    await asyncio.wait({member.task})
    capsys.readouterr()
    await scene.join(0).reaches(1)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "round committed round=1" in line]
    assert "without this peer" not in line


async def test_a_contribution_that_is_listed_while_its_inclusion_promise_is_lost_counts_in_the_round_that_the_log_names(
    scene: Scene,
) -> None:
    quick = scene.join(1)
    await scene.log.wait_for(1)
    member = await scene.held(0)
    scene.log.commit()
    await until(lambda: member.loop.machine.newest.round == 1)
    scene.network.lost = lambda sender, _receiver, method: sender == member.key and method == "header" and len(sent) == 1
    sent: list[bytes] = []
    answer = scene.log.endpoint.handlers["body"]

    async def lose(caller: PublicKey, request: bytes) -> bytes:
        inclusion_promise = await answer(caller, request)
        if caller != member.key or sent:
            return inclusion_promise
        sent.append(inclusion_promise)
        raise StorageError("its answer does not arrive")

    await scene.log.endpoint.serve("body", lose)
    member.worker.may_go_on.set()
    await until(lambda: len(sent) == 1)
    await scene.log.wait_for(2)
    scene.log.commit()  # round 2 has what was made for round 1
    await until(lambda: member.loop.machine.newest.round == 2)
    sent.append(b"now headers arrive again")
    await until(lambda: member.status.rounds_counted == 1)
    assert (member.status.samples_counted, member.status.promises_broken, member.status.samples_lost) == (MICROBATCH, 0, 0)
    assert quick.status.promises_broken == 0


async def test_what_the_log_refuses_for_good_is_dropped_and_said_with_its_reason(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.log.refuses = "of another run"
    member = scene.join(0)
    await until(lambda: bool(member.status.dropped))
    scene.log.refuses = None
    assert member.status.dropped == {"refused by the log": 1}
    assert member.status.samples_lost == MICROBATCHES * MICROBATCH
    await scene.log.wait_for(1)  # it goes on
    assert f"{MICROBATCHES * MICROBATCH} samples do not count: the log refuses them (of another run)" in capsys.readouterr().out


async def test_an_inclusion_promise_that_is_not_kept_is_said(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    cheated, other = scene.join(0), scene.join(1)
    await scene.log.wait_for(2)
    scene.log.loses = {each for each in scene.log.handed if self_of(scene.log.handed[each][0]) == cheated.key}
    await until(lambda: cheated.stage is PeerStage.PROMISED)
    scene.log.commit()
    await until(lambda: cheated.status.promises_broken == 1)
    await until(lambda: other.status.rounds_counted == 1)
    assert (cheated.status.rounds_counted, other.status.promises_broken) == (0, 0)
    assert (
        f"the log gave an inclusion promise for round 1 and did not keep it: {MICROBATCHES * MICROBATCH} samples are not in its table"
        in capsys.readouterr().out
    )


async def test_a_neighbour_may_tell_of_a_commit_before_the_log_does(scene: Scene) -> None:
    member = scene.join(0)
    await until(lambda: member.stage is PeerStage.PROMISED)
    silent = asyncio.Event()
    answer = scene.log.endpoint.handlers["commit-after"]

    async def hold(caller: PublicKey, request: bytes) -> bytes:
        await silent.wait()
        return await answer(caller, request)

    scene.log.network.delay_s = lambda _caller, receiver, method: 0.2 if method == "commit-after" else 0.0
    scene.log.endpoint.handlers["commit-after"] = hold
    scene.log.commit()
    neighbour = scene.network.endpoint(PublicKey(b"\x07" * 32))
    await neighbour.call(member.key, "commit", pack(scene.log.receipt()), timeout_s=5)
    assert member.loop.machine.newest.round == 1
    await member.reaches(1)
    silent.set()
    await until(lambda: has_gone_well(scene, member, 1))


# Its own machine.


async def test_a_disk_that_is_full_ends_the_peer_with_its_reason(scene: Scene) -> None:
    def refuse(member: Member) -> None:
        member.store.signed(scene.log.ledger.run).path.with_name("signed.part").mkdir(parents=True)  # in the way, also of root

    member = scene.join(0, prepare=refuse)
    with pytest.raises(BaseExceptionGroup) as caught:
        await member.ends()
    assert isinstance(caught.value.exceptions[0], StorageError)
    assert not scene.log.headers  # nothing was promised of what is not kept


@pytest.mark.parametrize("when", ["waiting for the log", "in a round"])
async def test_the_end_of_its_daemon_ends_the_peer(scene: Scene, when: str) -> None:
    if when == "waiting for the log":
        scene.log.go_away()
    member = scene.join(0)
    await until(lambda: bool(member.status.waiting_for) if when == "waiting for the log" else member.stage is PeerStage.PROMISED)
    member.endpoint.broken.set()
    with pytest.raises(BaseExceptionGroup) as caught:
        await member.ends()
    assert isinstance(caught.value.exceptions[0], OwnFault)


def test_the_loop_needs_no_more_of_a_node_than_its_twin_has() -> None:
    assert get_type_hints(RunContext)["node"] is OwnNode
