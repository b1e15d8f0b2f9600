"""Real nodes: a peer that came by one operator finds the others, and leaves one whose process is killed, or that stands still."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.distances import serve_pings
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import PublicKey
from tests.network.nodes import DEADLINE_S, daemon_of, nodes_of, run, start

pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]
METHOD = "what"


def test_an_operator_that_is_killed_and_one_that_stands_still_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "OPERATOR_LOOK_S", 0.5)
    monkeypatch.setattr(timeouts, "OPERATOR_AWAY_S", 2.0)

    async def story() -> None:
        async with nodes_of(tmp_path, 3) as nodes:
            for node in nodes:
                await serve_pings(node)

                async def answer(_caller: PublicKey, _request: bytes, key: PublicKey = node.key) -> bytes:
                    return key

                await node.serve(METHOD, answer)
            peer = await start(tmp_path, 3, [(await nodes[0].addresses())[0]], listen=[])
            try:
                line = OperatorLine(peer, Operators(bytes(32), tuple(node.key for node in nodes), 2))
                daemons = {node.key: daemon_of(node) for node in nodes}
                killed, *others = line.in_turn

                async def ask() -> bytes:
                    return await line.call(METHOD, b"", timeout_s=DEADLINE_S)

                async with asyncio.timeout(DEADLINE_S / 2):  # so none of these waits as long as a call may
                    assert await ask() == killed
                    daemons[killed].kill()
                    stopped = PublicKey(await ask())  # whichever answers first
                    assert stopped in others
                    daemons[stopped].suspend()
                    try:
                        assert await ask() == next(key for key in others if key != stopped)
                        await line.meet(peer)
                    finally:
                        daemons[stopped].resume()
            finally:
                await peer.close()

    run(story())
