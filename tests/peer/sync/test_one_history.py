"""Peers that are shown two histories find out: a log in memory that lies, and whole peers, each of which follows what it is shown."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.network import neighbours, timeouts
from manta_swarm.network.log_client import AskRound
from manta_swarm.network.log_proofs import look_up_newest, name_of, publish_newest
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.sync.split_view_monitor import SplitViewMonitor
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.histories import Departure, Histories
from manta_swarm.protocol.notes import sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name
from tests.memory_log import OPERATOR, PEERS, MemoryLog, until
from tests.peer.scene import Member, Scene, scene_in
from tests.peer.sync.test_consistency_checker import end_of, kept, with_rounds


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "HEADS_S", 0.05)
    monkeypatch.setattr(neighbours, "_period_s", lambda _known: 0.05)


async def second_history(scene: Scene, members: Collection[int]) -> MemoryLog:
    """Let the scene's log show these peers another history from now on, signed by the same keys."""
    other = await MemoryLog(MemoryNetwork(), scene.log.operators).start()
    theirs = {PEERS[number].public_key for number in members}
    for key, endpoint in scene.log.endpoints.items():
        handlers, others = endpoint.handlers, other.endpoints[key].handlers
        for method, handler in list(handlers.items()):

            async def answer(caller: PublicKey, request: bytes, theirs_=others[method], handler=handler) -> bytes:  # type: ignore[no-untyped-def]
                return await (theirs_ if caller in theirs else handler)(caller, request)

            handlers[method] = answer
    return other


async def commits(log: MemoryLog, member: Member, rounds: int) -> None:
    for _ in range(rounds):
        await log.wait_for(1)
        log.commit()
        await member.reaches(log.ledger.round)


@pytest.mark.parametrize(("one", "other", "liars"), [([0], [0], [0]), ([0, 1, 2], [0, 1, 3], [0, 1])])
async def test_two_groups_shown_two_histories_find_out_by_comparing_and_name_who_signed_both(
    tmp_path: Path, one: list[int], other: list[int], liars: list[int]
) -> None:
    operators = [OPERATOR, *(Identity(bytes([seed]) * 32) for seed in (2, 3, 4))][: max(*one, *other) + 1]
    signers, others = ([operators[place] for place in places] for places in (one, other))
    async with scene_in(tmp_path, operators=operators) as scene:
        scene.network.lost = lambda _sender, _receiver, method: method in ("commit", "histories")  # nobody passes anything on
        other = await second_history(scene, [1])
        scene.log.signers, other.signers = signers, others
        one, two = scene.join(0), scene.join(1)
        for log in (scene.log, other):
            await log.wait_for(1)
        for log in (scene.log, other):
            log.commit()
        ended = await asyncio.gather(end_of(one), end_of(two))
        assert all("goes two ways" in str(error) for error in ended)
    for number in (0, 1):
        proofs = list((tmp_path / f"peer-{number}" / "proofs").iterdir())
        assert proofs
        for proof in proofs:
            result = CliRunner().invoke(main, ["ledger", "check-proof", str(proof)])
            assert (result.exit_code, "proven: the log has two histories" in result.output) == (0, True), result.output
            named = {line for line in result.output.splitlines() if line.startswith("operator ")}
            assert named == {f"operator {key.hex()} {peer_name(key)}" for key in (operators[place].public_key for place in liars)}


async def test_a_peer_that_is_told_of_a_round_far_ahead_of_another_history_finds_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    other = await second_history(scene, [1])
    one = scene.join(0)
    await commits(scene.log, one, 2)
    await until(lambda: one.loop._split_view_monitor.agreed is not None)
    monkeypatch.setattr(timeouts, "HEADS_S", 600.0)
    scene.network.lost = lambda _sender, _receiver, method: method == "commit"
    two = scene.join(1)
    await commits(other, two, 4)
    scene.network.lost = lambda *_: False
    await until(lambda: two.key in one.loop._others.neighbours.members())
    await two.endpoint.call(one.key, "commit", pack(other.receipt()), timeout_s=30)
    assert "goes two ways" in str(await end_of(one))
    assert {shown.departure for shown in kept(one.store.directory)} == {Departure.FORKED}


async def test_the_head_in_the_dht_is_compared_too(scene: Scene) -> None:
    other = await second_history(scene, [1])
    with_rounds(scene.log)
    assert await publish_newest(scene.log.endpoint, scene.log.signed.run, scene.log.receipt())
    two = scene.join(1)
    await other.wait_for(1)
    other.commit()
    assert "goes two ways" in str(await end_of(two))
    assert {shown.departure for shown in kept(two.store.directory)} == {Departure.FORKED}


async def test_of_an_honest_log_all_heads_agree_and_that_is_remembered(scene: Scene) -> None:
    one, two = scene.join(0), scene.join(1)
    for round_ in (1, 2, 3):
        await scene.log.wait_for(2)
        scene.log.commit()
        await asyncio.gather(one.reaches(round_), two.reaches(round_))
        await publish_newest(scene.log.endpoint, scene.log.signed.run, scene.log.receipt(max(1, round_ - 1)))
    for member in (one, two):
        history = member.loop._split_view_monitor
        await until(lambda history=history: history.agreed is not None and history.agreed.proven.round.round == 3)
        await history.look()  # nobody complains
        assert not kept(member.store.directory)
    await one.leaves()
    again = scene.join(0)
    assert again.loop._split_view_monitor.agreed == one.loop._split_view_monitor.agreed


async def test_a_proof_is_told_checked_and_passed_on_and_what_proves_nothing_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "HEADS_S", 600.0)
    one = scene.join(0)
    await commits(scene.log, one, 2)
    other = with_rounds(MemoryLog(MemoryNetwork()))
    signed, receipt = scene.log.signed, scene.log.receipt(2)
    stranger = scene.network.endpoint(PEERS[2].public_key)

    async def tell(data: bytes) -> bytes:
        return await stranger.call(one.key, "histories", data, timeout_s=30)

    went_back = Histories.shown_after(signed, receipt, other.receipt(1).tree_head, ())
    nothing = Histories.shown_after(signed, receipt, receipt.tree_head, ())
    older = scene.log.receipt(1)
    of_one_log = [
        Histories.shown_after(signed, receipt, older.tree_head, ()),
        Histories.shown_after(signed, older, receipt.tree_head, ()),
        Histories.of_rounds(signed, older, receipt),
    ]
    elsewhere = with_rounds(MemoryLog(MemoryNetwork(), num_rounds=99))
    of_another = Histories.shown_after(elsewhere.signed, elsewhere.receipt(2), elsewhere.receipt(1).tree_head, ())
    for wrong in (*map(pack, (went_back, nothing, of_another, *of_one_log)), b"\x80", b"\x80" * 400_000):
        with pytest.raises(Refused):
            await tell(wrong)
    assert not one.task.done()
    assert await stranger.call(one.key, "commit-at", pack(AskRound(1)), timeout_s=30) == pack(scene.log.receipt(1))
    with pytest.raises(Refused):
        await stranger.call(one.key, "commit-at", pack(AskRound(9)), timeout_s=30)
    await tell(pack(Histories.of_rounds(signed, receipt, other.receipt(2))))
    assert "goes two ways" in str(await end_of(one))


async def test_two_heads_of_one_size_that_count_end_a_peer_that_is_told_them_without_rounds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "HEADS_S", 600.0)
    one = scene.join(0)
    await commits(scene.log, one, 1)
    note = scene.log.receipt(1).tree_head
    head = open_round_receipt(scene.log.receipt(1), Operators.of_signed(scene.log.signed)).tree_head
    other = sign_tree_head(replace(head, root=bytes(32)), head.origin, OPERATOR)
    stranger = scene.network.endpoint(PEERS[2].public_key)
    await stranger.call(one.key, "histories", pack(Histories(scene.log.signed, (note, other))), timeout_s=30)
    assert f"another history beside that of {head.size} entries" in str(await end_of(one))


async def test_one_operator_of_several_that_signs_a_second_head_alone_ends_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "HEADS_S", 600.0)
    operators = [OPERATOR, *(Identity(bytes([seed]) * 32) for seed in (2, 3))]
    async with scene_in(tmp_path, operators=operators) as scene:
        one = scene.join(0)
        await commits(scene.log, one, 2)
        receipt, liar = scene.log.receipt(2), operators[1]
        head = open_round_receipt(receipt, Operators.of_signed(scene.log.signed)).tree_head
        alone = sign_tree_head(replace(head, root=bytes(32)), head.origin, liar)
        lie = Histories.shown_after(scene.log.signed, receipt, alone, ())
        assert (lie.check().operators, lie.check().departure) == ((liar.public_key,), Departure.FORKED)
        stranger = scene.network.endpoint(PEERS[2].public_key)
        with pytest.raises(Refused, match="does not count"):
            await stranger.call(one.key, "histories", pack(lie), timeout_s=30)
        await commits(scene.log, one, 1)
        assert not one.task.done()
        assert not kept(one.store.directory)


async def test_what_is_no_head_of_the_log_in_the_dht_is_passed_over(scene: Scene) -> None:
    one = scene.join(0)
    await commits(scene.log, one, 1)
    run = scene.log.signed.run
    stranger = scene.network.endpoint(PEERS[2].public_key)
    for data in (b"", b"\x80", pack(scene.log.receipt())[:-1], bytes(5000)):
        await scene.log.endpoint.publish(name_of(run), data, ttl_s=60)
        await stranger.publish(name_of(run), pack(scene.log.receipt()), ttl_s=60)  # under its own key
        assert await look_up_newest(one.endpoint, run, one.loop.context.log) == []
        await one.loop._split_view_monitor.look()
    assert not kept(one.store.directory)


async def test_a_log_that_never_proves_that_it_goes_on_is_given_up(scene: Scene) -> None:
    async def refuse(_caller: PublicKey, _request: bytes) -> bytes:
        raise Refused("not today")

    one = scene.join(0)
    await commits(scene.log, one, 1)
    history: SplitViewMonitor = one.loop._split_view_monitor
    await until(lambda: history.agreed is not None)
    scene.log.endpoint.handlers["consistency"] = refuse
    await scene.log.wait_for(1)
    scene.log.commit()
    assert "does not prove" in str(await end_of(one))
    (shown,) = kept(one.store.directory)
    assert shown.departure is Departure.UNPROVEN
