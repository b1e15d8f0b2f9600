"""Ctrl-C in every stage of a round, a second one, and the peer's next life."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.shutdown_notices import METHOD, ShutdownNotice
from manta_swarm.peer.store import KeptContribution
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.rounds import PeerStage
from tests.memory_log import MICROBATCH, MICROBATCHES, SMALL_EXCHANGE, until
from tests.peer.contexts import never
from tests.peer.scene import Member, Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")


async def ends_at_once(member: Member) -> None:
    """Let it leave: it waits for nothing."""
    member.loop.leave()
    async with asyncio.timeout(5):  # no wait for anybody is as short as that
        await member.task


async def at(scene: Scene, stage: str) -> Member:
    """Return a peer that stays in a stage."""
    method = {"looking": "commit-after", "behind": "blob", "signed": "header"}.get(stage)
    if method is not None:
        await scene.log.endpoint.serve(method, never)
    member = await scene.held(0) if stage == "working" else scene.join(0)
    if stage not in ("working", "looking"):
        await until(lambda: member.status.stage == stage)
    return member


async def left_with_a_promise(scene: Scene) -> Member:
    """Return a peer that left once it had an inclusion promise."""
    member = scene.join(0)
    await until(lambda: member.stage is PeerStage.PROMISED)
    await member.leaves()
    return member


# The first one.


@pytest.mark.parametrize("stage", ["looking", "behind", "promised"])
async def test_who_waits_for_the_log_fetches_a_state_or_has_an_inclusion_promise_leaves_at_once(scene: Scene, stage: str) -> None:
    member = await at(scene, stage)
    await asyncio.sleep(0)
    await ends_at_once(member)
    assert len(scene.log.in_round()) == (stage == "promised")


async def test_who_waits_for_the_teacher_leaves_at_once(tmp_path: Path) -> None:
    async with scene_in(tmp_path, schedule="shrinking", num_rounds=7) as scene:
        first = scene.join(0)
        await scene.rounds(4)
        await first.reaches(4)
        await first.leaves()
        del scene.network.endpoints[first.key]
        items = scene.log.blob_store._items
        for root in [root for root in items if root != scene.log.ledger.state]:  # the log has lost the teacher
            del items[root]
        late = scene.join(1)
        await until(lambda: "the teacher" in late.status.waiting_for)
        await ends_at_once(late)


async def test_who_is_in_a_microbatch_finishes_it_and_hands_it_in(scene: Scene) -> None:
    member = await scene.held(0)
    member.loop.leave()
    member.worker.may_go_on.set()
    await member.ends()
    ((header, _),) = scene.log.handed.values()
    assert header.claims[0].open().microbatches == 1
    assert member.status.stage == "promised"


async def test_who_has_no_place_in_the_round_waits_for_one(scene: Scene) -> None:
    scene.log.says_later = True
    member = scene.join(0)
    await until(lambda: len(scene.log.headers) == 1)
    member.loop.leave()
    await until(lambda: len(scene.log.headers) >= 3)
    assert not member.task.done()
    scene.log.says_later = False
    await member.ends()
    assert len(scene.log.in_round()) == 1
    assert not member.status.dropped


@pytest.mark.parametrize("comes", [True, False])
async def test_who_works_ahead_waits_for_the_commit_before_hands_that_in_too_and_leaves_without_it_where_it_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    async with scene_in(tmp_path, exchange=replace(SMALL_EXCHANGE, first_open_ms=100)) as scene:
        slow = await working_ahead(scene)
        if not comes:
            monkeypatch.setattr(timeouts, "feed_s", lambda *_: 0.1)
        slow.loop.leave()
        if comes:
            await scene.rounds(1, 2)
        await slow.ends()
        assert [base for base, _ in handed_by(scene, slow)] == ([1, 2] if comes else [1])
        assert slow.status.samples_lost == (0 if comes else MICROBATCH)


async def working_ahead(scene: Scene) -> Member:
    """Return a peer that has trained on the newest state and waits with it, for its contribution before counts in this round."""
    slow, _ = await scene.held(0), scene.join(1)
    slow.worker.takes_s = 0.15  # a round has no time for two of them
    await scene.log.wait_for(1)
    scene.log.left_ms = 1
    first = scene.log.commit()
    assert 2 * 1000 * slow.worker.takes_s > first.open_ms
    await until(lambda: slow.loop.machine.newest.round == 1)
    slow.worker.may_go_on.set()
    await until(lambda: slow.loop.machine.samples > 0 and slow.loop.machine.signed is not None)
    return slow


def handed_by(scene: Scene, member: Member) -> list[tuple[int, int]]:
    """Return of each contribution of a peer the round after its base, and the round that it counts in."""
    opened = [(header.contribution.open(), scene.log.rounds[digest]) for digest, (header, _) in scene.log.handed.items()]
    return [(one.round, round_) for one, round_ in opened if one.founder == member.key]


async def test_without_the_log_what_is_trained_is_kept_and_handed_in_by_the_next_life(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    first = await scene.held(0)
    scene.log.go_away()
    first.worker.may_go_on.set()
    await until(lambda: first.stage is PeerStage.SIGNED)
    await first.leaves()
    kept = first.store.signed(scene.log.ledger.run).load(KeptContribution)
    assert kept is not None
    scene.log.come_back()
    again = scene.join(0)
    await scene.log.wait_for(1)
    assert list(scene.log.handed) == [kept.header.contribution.digest]
    scene.log.commit()
    await until(lambda: again.status.rounds_counted == 1)
    assert again.status.samples_counted == MICROBATCHES * MICROBATCH
    assert not any(microbatch.base == scene.log.ledger.run for microbatch in again.worker.microbatches)  # its work on that base was done
    assert "the log cannot be reached: what is trained is kept, and is handed in at the next start" in capsys.readouterr().out


async def test_who_is_told_that_the_run_is_over_leaves_and_hears_nothing_of_a_log_that_is_away(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    member = await scene.held(0)
    shutdown_notice = ShutdownNotice(scene.log.ledger.run, 1, "all is learnt")
    await scene.log.endpoint.call(member.key, METHOD, pack(shutdown_notice), timeout_s=timeouts.PUSH_S)
    scene.log.go_away()
    member.worker.may_go_on.set()
    await member.ends()
    assert member.loop.ended == "the operator ended this run for good: all is learnt"
    assert member.status.waiting_for == ""
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "the operator ended this run for good: all is learnt"
    assert "cannot be reached" not in said


# The second one.


@pytest.mark.parametrize("stage", ["looking", "behind", "working", "signed", "promised"])
async def test_a_second_ctrl_c_ends_it_at_once_and_leaves_nothing_running(scene: Scene, stage: str) -> None:
    member = await at(scene, stage)
    member.loop.leave()
    member.task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait([member.task])
    assert member.task.cancelled() or (stage in ("looking", "behind", "promised") and member.task.exception() is None)
    member.worker.may_go_on.set()


# The next life.


async def test_what_was_listed_meanwhile_is_counted_and_not_made_again(scene: Scene) -> None:
    await left_with_a_promise(scene)
    scene.log.commit()
    again = scene.join(0)
    await until(lambda: again.status.rounds_counted == 1)
    assert (again.status.samples_counted, again.status.samples_lost, again.status.promises_broken) == (MICROBATCHES * MICROBATCH, 0, 0)
    await scene.log.wait_for(1)
    assert all(microbatch.base == scene.log.ledger.last_commit for microbatch in again.worker.microbatches)


async def test_an_inclusion_promise_from_before_holds_in_the_next_life(scene: Scene) -> None:
    await left_with_a_promise(scene)
    again = scene.join(0)
    await until(lambda: again.stage is PeerStage.PROMISED)
    assert again.worker.microbatches == []
    scene.log.commit()
    await until(lambda: again.status.rounds_counted == 1)


async def test_what_is_long_past_is_nobodys_loss(scene: Scene) -> None:
    first = scene.join(0)
    other = scene.join(1)
    await scene.log.wait_for(2)
    await until(lambda: first.stage is PeerStage.PROMISED)
    await first.leaves()
    await scene.rounds(6, 1, other)
    again = scene.join(0)
    await scene.log.wait_for(2)
    assert (again.status.samples_lost, again.status.dropped, again.status.promises_broken) == (0, {}, 0)


async def test_signed_work_of_another_identity_is_left_alone(scene: Scene) -> None:
    first = await left_with_a_promise(scene)
    kept = first.store.signed(scene.log.ledger.run).load(KeptContribution)
    assert kept is not None

    def change(member: Member) -> None:
        member.store.signed(scene.log.ledger.run).save(kept)

    second = scene.join(1, prepare=change)
    await scene.log.wait_for(2)
    assert self_keys(scene) == {first.key, second.key}


def self_keys(scene: Scene) -> set[bytes]:
    return {header.contribution.open().founder for header, _ in scene.log.handed.values()}


async def test_damaged_signed_work_ends_the_peer_before_it_trains(scene: Scene) -> None:
    first = await left_with_a_promise(scene)
    (path,) = first.store.directory.glob("runs/*/signed")
    path.write_bytes(path.read_bytes()[:-1])
    again = scene.join(0)
    with pytest.raises(BaseExceptionGroup) as caught:
        await again.ends()
    assert isinstance(caught.value.exceptions[0], StorageError)
    assert again.worker.microbatches == []
