"""What a peer does before it takes part: where the shards of its run travel, it gets them first, and says so."""

import asyncio
from pathlib import Path

import pytest

from peer.config import PeerConfig
from peer.dashboard.picture import Sitter
from peer.limits.limiter import Before, Limiter
from peer.limits.limits import Limits
from peer.shards.session import data_here
from protocol.manifest import Manifest, SignedManifest
from protocol.signing import PublicKey
from swarm.memory import MemoryEndpoint
from swarm.traffic import Traffic
from swarm.voice import Voice
from tests.memory_log import until
from tests.peer.computer import Computer
from tests.peer.shards.test_download import OPERATOR, Swarm
from tests.runs import manifest_of


def of_the_run(manifest: Manifest, node: MemoryEndpoint, directory: Path, limiter: Limiter) -> "asyncio.Task[Path | None]":
    """Let a peer get the data of a run; return the task, which returns where they lie."""
    config = PeerConfig(dir=directory)

    async def come() -> Path | None:
        signed = SignedManifest.sign(manifest, OPERATOR)
        async with data_here(config, node, Traffic(), signed, limiter, Sitter(Voice())) as held:
            assert limiter.before is Before.STARTS
            return held.root

    return asyncio.create_task(come())


@pytest.mark.parametrize("travels", [True, False])
def test_its_person_is_told_what_it_does(tmp_path: Path, travels: bool) -> None:
    async def scenario() -> None:
        swarm, limiter = Swarm(tmp_path), Limiter(Limits(), tmp_path, Computer().sensors)
        assert limiter.before.name == "LOOKS"
        coming = of_the_run(swarm.manifest() if travels else manifest_of(OPERATOR), swarm.here, tmp_path / "peer", limiter)
        if travels:
            await until(lambda: coming.done() or limiter.before is Before.GETS)
            await swarm.serve(PublicKey(OPERATOR.public_key))
        assert await coming == (tmp_path / "peer" / "data" if travels else None)

    asyncio.run(scenario())
