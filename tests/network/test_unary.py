"""Small calls of real nodes: how many a stranger may have open, and what it may not send."""

import asyncio
from pathlib import Path

import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PHandlerError, PeerID
from hivemind.proto import dht_pb2

import manta_swarm.network.unary
from manta_swarm.network.node import Node
from manta_swarm.network.streams import MIN_REQUEST_BYTES
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import peer_id
from tests.network.nodes import SMALL, Holding, echo, until, with_nodes

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]


def test_one_peer_can_have_only_so_many_calls_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.network.unary, "MAX_CALLS_EACH", 2)

    async def work(a: Node, b: Node, c: Node) -> None:
        hold = Holding()
        await a.serve("hold", hold)
        calls = [asyncio.create_task(node.call(a.key, "hold", SMALL, timeout_s=30)) for node in (b, b, c)]
        await until(lambda: len(hold.waiting) == 3)
        with pytest.raises(Unreachable, match="busy"):
            await b.call(a.key, "hold", SMALL, timeout_s=30)
        hold.go_on.set()
        assert await asyncio.gather(*calls) == [b"done"] * 3
        assert await b.call(a.key, "hold", SMALL, timeout_s=30) == b"done"

    with_nodes(tmp_path, 3, work)


def test_strangers_that_fill_all_places_do_not_keep_another_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.network.unary, "MAX_CALLS", 4)

    async def work(a: Node, b: Node, honest: Node) -> None:
        hold = Holding()
        await a.serve("hold", hold)
        await a.serve("echo", echo)
        calls = []
        for _ in range(4):
            calls.append(asyncio.create_task(b.call(a.key, "hold", SMALL, timeout_s=50)))
            await until(lambda: len(hold.waiting) == len(calls))
        assert await honest.call(a.key, "echo", SMALL, timeout_s=50) == honest.key + SMALL
        with pytest.raises(Unreachable, match="busy"):
            await calls[-1]
        assert hold.cancelled == [b.key]
        await honest.publish("members", b"of another", ttl_s=30)  # hivemind's own calls have places, too
        assert await b.lookup("members") == {honest.key: b"of another"}
        hold.go_on.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers.count(b"done") >= 2

    with_nodes(tmp_path, 3, work)


def test_a_small_call_with_a_large_request_is_not_answered(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        for size in (MIN_REQUEST_BYTES + 1, 3 * 1024 * 1024):
            with pytest.raises(P2PHandlerError, match="too large"):
                await b._unary.call(PeerID(peer_id(a.key)), "manta.echo", bytes(size))

    with_nodes(tmp_path, 2, work)


def test_a_search_for_more_names_than_anybody_looks_for_is_not_answered(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        stub = b.dht.protocol.get_stub(PeerID(peer_id(a.key)))
        for count in (16, 40):
            request = dht_pb2.FindRequest(keys=[DHTID.generate().to_bytes() for _ in range(count)], peer=b.dht.protocol.node_info)
            assert len((await stub.rpc_find(request, timeout=10)).results) == count
        with pytest.raises(P2PHandlerError, match="too large"):
            await stub.rpc_find(dht_pb2.FindRequest(keys=[bytes(20)] * 1000), timeout=10)

    with_nodes(tmp_path, 2, work)


def test_a_call_of_what_is_not_served_any_more_is_told_so(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        del a.p2p._client.control.unary_handlers["manta.echo"]
        with pytest.raises(Unreachable, match="not served"):
            await b.call(a.key, "echo", SMALL, timeout_s=30)

    with_nodes(tmp_path, 2, work)
