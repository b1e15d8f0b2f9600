"""An operator whose disk was lost begins anew under its key; states that a folder lacks come from peers, by digests of its log."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.operators.joining import POSITION, lacking, take_states
from manta_swarm.automl.training.update import state_pieces
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.errors import Unreachable, UserError
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.features.operators.four import FOUR, Four, ended, of_four
from tests.aggregator.real_run import PEERS, opened, play
from tests.memory_log import until


@of_four()
async def test_an_operator_that_lost_its_disk_takes_part_some_rounds_after_all_others_answered_it(four: Four) -> None:
    leader, _ = await four.write(0, 1)
    await four.round(leader, 0)
    await four.until_all_have(1, range(4))
    await four.lose(3)
    own_operator = four.own_operators[3]
    assert not own_operator.coming.takes_part
    four.lost = lambda _sender, receiver, method: (method, receiver) == (POSITION, FOUR[2].public_key)
    coming = asyncio.create_task(own_operator.coming.take_part())
    await until(lambda: own_operator.coming.waits_for()[0] == [FOUR[2].public_key])
    while four.runs[0].log.ledger.round < own_operator.coming.waits_for()[1]:
        await four.round(leader, 0)
    newest = four.runs[0].log.ledger.round
    await four.until_all_have(newest, range(4))
    await four.kill(3)  # and it remembers what it heard
    await ended(coming)
    own_operator = await four.start(3)
    assert own_operator.coming.waits_for() == ([FOUR[2].public_key], newest)
    four.lost = lambda *_: False
    coming = asyncio.create_task(own_operator.coming.take_part())
    await until(lambda: not own_operator.coming.waits_for()[0])
    assert not coming.done()
    assert not own_operator.store.memory.accepted
    with pytest.raises(Unreachable, match="begun anew"):
        await own_operator.promise(leader.ballot)
    asking = four.network.endpoints[FOUR[1].public_key].call(PublicKey(FOUR[3].public_key), POSITION, b"", timeout_s=60)
    with pytest.raises(Unreachable):  # it has nothing to say to another newcomer
        await asking
    last = own_operator.coming.waits_for()[1]
    assert last == 5 + 4  # the third was heard after the fifth round
    for round_ in range(6, last + 1):
        assert not coming.done()
        await four.round(leader, 0)
        await four.until_all_have(round_, range(4))
    async with asyncio.timeout(60):
        await coming
    assert own_operator.coming.takes_part
    assert own_operator.store.memory.promised == leader.ballot
    await four.kill(1)
    await four.round(leader, 0)  # not without its vote
    await four.until_all_have(last + 1, (0, 2, 3))
    assert four.heads((0, 2, 3)) == {(four.runs[3].log.head.size, four.runs[3].log.head.root, four.runs[3].log.ledger.state)}


def test_a_state_is_taken_from_whoever_has_it_and_from_nobody_who_has_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "FETCH_S", 5.0)
    directory = tmp_path / "run"
    run = opened(directory)
    with run.log:
        play(run, 2)
        ledger, state = run.log.ledger, run.state_keeper.state
        assert state is not None
        for path in (directory / "snapshots").glob("round-00000002.*"):
            path.unlink()
        assert lacking(directory, ledger) == [2]

        async def story() -> None:
            network = MemoryNetwork()
            own, peer, other = (network.endpoint(PublicKey(each.public_key)) for each in PEERS)
            await BlobStore(max_bytes=2**28).serve(other)
            with pytest.raises(UserError, match="no peer gave the state of round 2"):
                await take_states(own, directory, ledger, [other.key])
            blob_store = BlobStore(max_bytes=2**28)
            blob_store.put(Blob.of(state_pieces(state)), "state")
            await blob_store.serve(peer)
            assert await take_states(own, directory, ledger, [other.key, peer.key]) == [2]

        asyncio.run(story())
        assert lacking(directory, ledger) == []
        loaded = run.state_keeper.snapshots.load(2, ledger.state)
        assert loaded.round == 2
