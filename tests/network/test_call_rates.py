"""How many calls a node answers of a key and of an address: the rule by a clock that is told, then between real nodes."""

import asyncio
import re
from pathlib import Path

import pytest

from manta_swarm.network.node import Node
from manta_swarm.network.rates import AT_ONCE_S, COSTS, RELAYED, CallLimits, CallRates, network_of
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import Identity, PublicKey, peer_id, sha256
from tests.clocks import ManualClock
from tests.network.nodes import DEADLINE_S, LARGE, SMALL, echo, own_processes, remember_processes, start
from tests.network.processes import are_gone

LIMITS = CallLimits(of_key=2, of_address=6)
TOLD = r"too many calls from this key: come back in \d+ s"
OF_KEY, OF_ADDRESS = 2 * AT_ONCE_S, 6 * AT_ONCE_S  # at once


class Callers:
    """Keys at addresses, who call by a clock of their own."""

    def __init__(self, limits: CallLimits = LIMITS) -> None:
        self.clock = ManualClock()
        self.looks = 0
        self.hosts: dict[PublicKey, list[str]] = {}
        self.rates = CallRates(limits, self, self.clock)

    async def connected(self) -> dict[PublicKey, list[str]]:
        self.looks += 1
        return dict(self.hosts)

    def at(self, host: str, number: int) -> PublicKey:
        """Return the key of a new caller."""
        key = Identity(sha256(f"{host} {number}".encode())).public_key
        self.hosts[key] = [host] if host else []
        return key

    async def answered(self, key: PublicKey, calls: int, name: str = "manta.listing") -> int:
        """Return how many of so many calls are answered."""
        return sum([await self.rates.refusal(peer_id(key), name) is None for _ in range(calls)])


async def test_a_key_has_so_many_calls_at_once_and_hears_when_it_may_come_back() -> None:
    callers = Callers()
    one, other = callers.at("192.0.2.1", 1), callers.at("192.0.2.2", 1)
    assert await callers.answered(one, OF_KEY + 5) == OF_KEY
    assert await callers.rates.refusal(peer_id(one), "manta.listing") == "too many calls from this key: come back in 1 s"
    assert await callers.answered(other, OF_KEY) == OF_KEY
    callers.clock.advance(1.0)
    assert await callers.answered(one, 5) == 2
    callers.clock.advance(AT_ONCE_S)
    header = await callers.rates.refusal(peer_id(one), "manta.header.stream")
    assert header is None
    assert await callers.answered(one, OF_KEY) == OF_KEY - COSTS["header"]  # which is worth many others


@pytest.mark.parametrize(
    ("hosts", "answered"),
    [
        (["192.0.2.1"] * 20, OF_ADDRESS),  # behind one NAT
        ([f"192.0.2.{number}" for number in range(20)], 20 * OF_KEY),
        ([f"2001:db8::{number:x}:1" for number in range(20)], OF_ADDRESS),  # one /64
        ([f"2001:db8:0:{number:x}::1" for number in range(20)], 20 * OF_KEY),
        (["::ffff:192.0.2.1", "192.0.2.1"] * 10, OF_ADDRESS),
        ([""] * 20, OF_ADDRESS),  # by way of relays
        (["127.0.0.1", "::1"] * 10, 20 * OF_KEY),  # this computer
    ],
)
async def test_keys_of_one_address_have_its_calls_together(hosts: list[str], answered: int) -> None:
    callers = Callers()
    keys = [callers.at(host, number) for number, host in enumerate(hosts)]
    assert sum([await callers.answered(key, OF_KEY) for key in keys]) == answered
    assert callers.looks == 1  # at who is connected, whoever calls


@pytest.mark.virtual_time
async def test_few_callers_of_one_address_take_nothing_from_each_other() -> None:
    callers = Callers()
    keys = [callers.at("192.0.2.1", number) for number in range(3)]
    assert [await callers.answered(key, OF_KEY) for key in keys] == [OF_KEY] * 3
    assert (await callers.rates.refusal(peer_id(callers.at("192.0.2.1", 9)), "manta.listing") or "").startswith(
        "too many calls from this address: come back in "
    )
    assert callers.rates.address_of(keys[0]) == "192.0.2.1"


async def test_a_crowd_of_new_keys_has_the_daemon_asked_once_for_all_who_wait() -> None:
    callers = Callers()
    keys = [callers.at("192.0.2.1", number) for number in range(50)]
    await asyncio.gather(*(callers.answered(key, 1) for key in keys))
    assert callers.looks == 1


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", ""),
        ("::1", ""),
        ("nonsense", ""),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::5", "2001:db8::/64"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
    ],
)
def test_an_address_counts_by_its_network(host: str, network: str) -> None:
    assert network_of(host) == network
    assert network != RELAYED


async def refused_at_last(node: Node, key: PublicKey, request: bytes) -> str:
    """Return how a node is refused that calls until it is."""
    async with asyncio.timeout(DEADLINE_S / 2):
        while True:
            try:
                await node.call(key, "header", request, timeout_s=DEADLINE_S / 2)
            except Unreachable as error:
                return "told" if re.search(TOLD, str(error)) else "hung up"


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
async def test_a_real_node_tells_who_calls_too_often_when_to_come_back_and_answers_the_others(tmp_path: Path) -> None:
    remember_processes()
    nodes: list[Node] = []
    try:
        nodes.append(await start(tmp_path, 0, limits=CallLimits(of_key=2)))
        for number in (1, 2):
            nodes.append(await start(tmp_path, number, (await nodes[0].addresses())[:1]))
        log, often, seldom = nodes
        await log.serve("echo", echo)
        await log.serve("header", echo)
        for request in (SMALL, LARGE):
            assert await refused_at_last(often, log.key, request) in ("told", "hung up")
        with pytest.raises(Unreachable, match=TOLD):
            await often.call(log.key, "header", SMALL, timeout_s=DEADLINE_S / 2, large_answer=True)
        assert await seldom.call(log.key, "echo", SMALL, timeout_s=10) == seldom.key + SMALL
        assert log.rates.refused["key"] >= 3
    finally:
        processes = own_processes()
        for node in nodes:
            await node.close()
        assert are_gone(processes)
