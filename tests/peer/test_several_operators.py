"""A peer of a run with several operators goes on when the one it talks to is killed, or falls silent, and waits when all are away."""

from pathlib import Path

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.shutdown_notices import METHOD, ShutdownNotice
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.signing import Identity, peer_name
from tests.memory_log import DEADLINE_S, OPERATOR, until
from tests.peer.scene import scene_in

OPERATORS = [OPERATOR, *(Identity(bytes([seed]) * 32) for seed in (2, 3))]


async def test_rounds_go_on_when_operators_are_killed_and_a_new_peer_finds_those_that_are_left(tmp_path: Path) -> None:
    async with scene_in(tmp_path, operators=OPERATORS) as scene:
        member = scene.join(0)
        for killed in range(2):
            await scene.rounds(1, 1, member)
            first = member.loop.context.log.operator
            scene.log.go_away(first)  # while the peer waits for a commit there
            await scene.rounds(1, 1, member)
            await until(lambda first=first: member.loop.context.log.operator != first)
            assert member.status.operator == peer_name(member.loop.context.log.operator)[-8:]
            assert member.status.waiting_for == ""
            assert scene.log.ledger.round == 2 * killed + 2
        assert member.status.rounds_counted >= 3
        assert member.status.samples_lost == 0
        late = scene.join(1)
        await scene.rounds(1, 2, late)
        await member.reaches(5)
        (left,) = set(scene.log.endpoints) & set(scene.network.endpoints)
        assert member.loop.context.log.operator == late.loop.context.log.operator == left
        scene.log.go_away(left)
        await until(lambda: "cannot be reached" in member.status.waiting_for)
        scene.log.come_back(left)
        await until(lambda: member.status.waiting_for == "")
        await scene.rounds(1, 1, member)


async def test_an_operator_that_falls_silent_is_left_while_a_commit_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPERATOR_LOOK_S", "OPERATOR_AWAY_S", "OPERATOR_BUSY_S"):
        monkeypatch.setattr(timeouts, name, 0.3)
    async with scene_in(tmp_path, operators=OPERATORS) as scene:
        member = scene.join(0)
        await scene.rounds(1, 1, member)
        silent = member.loop.context.log.operator
        scene.network.delay_s = lambda _, receiver, __: 2 * DEADLINE_S if receiver == silent else 0.0
        await scene.rounds(1, 1, member)
        assert member.loop.context.log.operator != silent


async def test_a_run_is_over_when_enough_operators_say_so_and_one_alone_ends_nothing(tmp_path: Path) -> None:
    async with scene_in(tmp_path, operators=OPERATORS) as scene:
        member = scene.join(0)
        await scene.rounds(1, 1, member)
        stops = member.loop.context.log.operator
        others = [key for key in scene.log.endpoints if key != stops]
        for is_over in (0, 1):
            shutdown_notice = pack(ShutdownNotice(scene.log.ledger.run, is_over, "as I say"))
            await scene.log.endpoints[stops].call(member.key, METHOD, shutdown_notice, timeout_s=DEADLINE_S)
        assert member.loop.context.log.operator in others
        assert member.loop.ended == ""
        await scene.rounds(1, 1, member)
        await scene.log.endpoints[others[0]].call(member.key, METHOD, shutdown_notice, timeout_s=DEADLINE_S)
        assert member.loop.ended == "the operators ended this run for good: as I say"
        await member.ends()
