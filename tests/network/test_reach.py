"""Whether others can call a node: who asks, what is dialled, and what the answers come to."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.network.connections import host_of, tcp_port_of
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.node import Node
from manta_swarm.network.reach import (
    MAX_DIALLING,
    METHOD,
    AskDialBack,
    DialBackService,
    DialledBack,
    Reach,
    Reachable,
    judged,
    measure,
)
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import PublicKey
from tests.network.nodes import PEERS, nodes_of, reached_at_last, start, until, with_nodes

OUTSIDE, OTHER_OUTSIDE, INSIDE = "5.5.5.2", "5.5.5.3", "192.168.1.7"
PORTS = (31000,)
KEYS = [identity.public_key for identity in PEERS]


def answer(host: str, *ports: int) -> DialledBack:
    return DialledBack(((host, ports),))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], Reachable.UNKNOWN),
        ([answer(OUTSIDE, 31000)], Reachable.PUBLIC),
        ([answer(OUTSIDE)], Reachable.OUTBOUND),
        ([answer(OUTSIDE, 31000), answer(OUTSIDE)], Reachable.PUBLIC),  # one of them may be at fault itself
        ([answer(OUTSIDE, 31000), answer(OUTSIDE), answer(OTHER_OUTSIDE)], Reachable.OUTBOUND),
        ([answer(INSIDE, 31000)], Reachable.LOCAL),
        ([answer("127.0.0.1", 31000), answer(INSIDE)], Reachable.LOCAL),
        (
            [answer(INSIDE, 31000), answer(OUTSIDE)],
            Reachable.OUTBOUND,
        ),  # a cohort peer behind the same router reaches it; that says nothing
        ([DialledBack(((OUTSIDE, ()), ("2a01::7", (31000,))))], Reachable.PUBLIC),
        ([answer("100.64.3.1", 31000)], Reachable.LOCAL),  # a provider's own network (RFC 6598)
    ],
)
def test_the_answers_are_judged(answers: list[DialledBack], expected: Reachable) -> None:
    reach = judged(answers, PORTS)
    assert reach.reachable is expected
    assert reach.serves_others == (expected in (Reachable.PUBLIC, Reachable.LOCAL))


def test_each_finding_has_words_that_say_what_to_do_if_there_is_something() -> None:
    assert "others can call this peer at 5.5.5.2, port 31000" in judged([answer(OUTSIDE, 31000)], PORTS).words
    blocked = judged([answer(OUTSIDE)], PORTS).words
    assert "only calls out" in blocked
    assert "--listen /ip4/0.0.0.0/tcp/31000" in blocked
    assert "as it was told to" in Reach(Reachable.OUTBOUND).words
    assert "not known" in Reach().words


@pytest.mark.parametrize("ports", [(), (0,), (65536,), (1, 1), (1, 2, 3, 4, 5)])
def test_a_request_names_a_few_ports(ports: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ports"):
        AskDialBack(ports)


@pytest.mark.parametrize("hosts", [(), (("nowhere", ()),), (("1.2.3.4", ()),) * 3, (("1" * 46, ()),)])
def test_an_answer_names_a_host_or_two(hosts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    with pytest.raises(ValueError, match=r"host|address"):
        DialledBack(hosts)


@pytest.mark.parametrize(
    ("maddr", "host", "port"),
    [
        ("/ip4/5.5.5.2/tcp/31000/p2p/12D3KooW", "5.5.5.2", 31000),
        ("/ip6/2a01::7/tcp/1", "2a01::7", 1),
        ("/ip4/5.5.5.2/udp/31000/quic-v1", "5.5.5.2", None),
        ("/dns4/example.org/tcp/31000", None, None),
        ("/ip4/5.5.5.2/tcp/1/p2p/12D3KooW/p2p-circuit", None, None),
        ("", None, None),
    ],
)
def test_a_multiaddress_has_a_host_and_a_port(maddr: str, host: str | None, port: int | None) -> None:
    assert (host_of(maddr), tcp_port_of(maddr)) == (host, port)


async def test_a_node_that_is_told_to_listen_nowhere_asks_nobody() -> None:
    assert await measure(MemoryNetwork().endpoint(KEYS[0]), KEYS[1:]) == Reach(Reachable.OUTBOUND)


async def test_who_cannot_be_asked_says_nothing() -> None:
    node = MemoryNetwork().endpoint(KEYS[0])
    node.listens_at = ["/ip4/5.5.5.2/tcp/31000"]
    assert await measure(node, KEYS[1:]) == Reach(ports=PORTS)


async def test_only_so_many_are_dialled_back_at_a_time_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, dialled = MemoryNetwork(), asyncio.Event()
    service, keys = network.endpoint(KEYS[0]), [PublicKey(bytes([number]) * 32) for number in range(MAX_DIALLING + 1)]
    await DialBackService(service).start()
    dialling: list[tuple[PublicKey, str]] = []

    async def is_there(key: PublicKey, host: str, _port: int) -> bool:
        dialling.append((key, host))
        await dialled.wait()
        return True

    monkeypatch.setattr("manta_swarm.network.reach.is_there", is_there)
    asks = []
    for key in keys:
        network.endpoint(key).hosts = [OUTSIDE]
    for key in keys[:MAX_DIALLING]:
        asks.append(asyncio.create_task(network.endpoints[key].call(service.key, METHOD, pack(AskDialBack(PORTS)), timeout_s=30)))
    await until(lambda: len(dialling) == MAX_DIALLING)
    for key in (keys[0], keys[-1]):
        with pytest.raises(Refused, match="too many"):
            await network.endpoints[key].call(service.key, METHOD, pack(AskDialBack(PORTS)), timeout_s=30)
    dialled.set()
    for ask in asks:
        assert unpack(DialledBack, await ask, max_bytes=256) == answer(OUTSIDE, *PORTS)
    await network.endpoints[keys[-1]].call(service.key, METHOD, pack(AskDialBack(PORTS)), timeout_s=30)
    assert dialling == [(key, OUTSIDE) for key in keys]


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
async def test_nodes_on_one_computer_find_that_they_can_be_called_and_serve_the_dht_from_then_on(tmp_path: Path) -> None:
    async with nodes_of(tmp_path, 1) as (log,):
        await DialBackService(log).start()
        peer = await start(tmp_path, 1, await log.addresses(), serves_dht=False)
        third = None
        try:
            assert log.dht.protocol.routing_table.peer_id_to_uid == {}
            reach = await measure(peer, [log.key])
            assert reach.reachable is Reachable.LOCAL
            await peer.serve_dht(reach.serves_others)
            await until(lambda: peer.dht.peer_id in log.dht.protocol.routing_table.peer_id_to_uid)
            third = await start(tmp_path, 2, await peer.addresses())  # by the peer alone
            await third.publish("name", b"value", ttl_s=60)
            assert await peer.lookup("name") == {third.key: b"value"}
            await peer.serve_dht(False)
            assert len(peer.dht.protocol.node_info.node_id) == 0
            await peer.serve_dht(True)
            assert await reached_at_last(lambda: third.lookup("name")) == {third.key: b"value"}
        finally:
            for node in (peer, third):
                if node is not None:
                    await node.close()


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_the_log_says_where_a_caller_calls_from_and_finds_nobody_at_other_ports(tmp_path: Path) -> None:
    async def look(log: Node, peer: Node) -> None:
        await DialBackService(log).start()
        assert await log.remote_hosts(peer.key) == ["127.0.0.1"]
        assert (await log.connected())[peer.key] == ["127.0.0.1"]
        found = await peer.call(log.key, METHOD, pack(AskDialBack((tcp_port_of((await log.addresses())[0]) or 0,))), timeout_s=30)
        assert unpack(DialledBack, found, max_bytes=256) == answer("127.0.0.1")  # a port of another node than the caller

    with_nodes(tmp_path, 2, look)
