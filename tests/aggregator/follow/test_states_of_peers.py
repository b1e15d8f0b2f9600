"""States that a folder lacks come from peers, by the digests that its log names."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.operators.joining import lacking, take_states
from manta_swarm.automl.training.update import state_pieces
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.real_run import PEERS, opened, play


def test_a_state_is_taken_from_whoever_has_it_and_from_nobody_who_has_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "FETCH_S", 5.0)
    directory = tmp_path / "run"
    run = opened(directory)
    with run.log:
        play(run, 2)
        ledger, state = run.log.ledger, run.follower.state
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
        loaded = run.follower.snapshots.load(2, ledger.state)
        assert loaded.round == 2
