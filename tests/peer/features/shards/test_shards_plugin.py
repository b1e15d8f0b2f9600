"""What a peer does before it takes part: where the shards of its run travel, it gets them first, and says so."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.memory import MemoryEndpoint
from manta_swarm.network.peer_status import FETCHING
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.plugged_in import PLUGGED_IN
from manta_swarm.peer.features.plugin import Arrival
from manta_swarm.peer.limits.limiter import Limiter
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.status import LiveStatus
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.signing import PublicKey
from tests.memory_log import until
from tests.peer.computer import Computer, live_status_in
from tests.peer.features.shards.test_download import OPERATOR, Swarm
from tests.runs import manifest_of


def of_the_run(manifest: Manifest, node: MemoryEndpoint, directory: Path, live_status: LiveStatus) -> "asyncio.Task[Path | None]":
    """Let a peer get the data of a run; return the task, which returns where they lie."""
    config, limiter = PeerConfig(dir=directory), Limiter(Limits(), directory, Computer().sensors, live_status)

    async def come() -> Path | None:
        signed = SignedManifest.sign(manifest, OPERATOR)
        async with PLUGGED_IN.bring(Arrival(config, node, Traffic(), signed, BlobStore(max_bytes=2**25), limiter, live_status)) as held:
            return held.root

    return asyncio.create_task(come())


@pytest.mark.parametrize("travels", [True, False])
async def test_its_person_is_told_what_it_does(tmp_path: Path, travels: bool) -> None:
    swarm, live_status = Swarm(tmp_path), live_status_in(tmp_path / "status")
    coming = of_the_run(swarm.manifest() if travels else manifest_of(OPERATOR), swarm.here, tmp_path / "peer", live_status)
    if travels:
        await until(lambda: coming.done() or live_status.status.stage == FETCHING)
        await swarm.serve(PublicKey(OPERATOR.public_key))
    assert await coming == (tmp_path / "peer" / "data" if travels else None)
