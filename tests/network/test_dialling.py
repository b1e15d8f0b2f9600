"""Whom a node connects to: those who are there, by what others say of them, and nobody again and again by what a stranger says."""

import contextlib
import functools
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hivemind.p2p import PeerID

from manta_swarm.network.addresses import is_dialable
from manta_swarm.network.dialling import MAX_MESSAGE_BYTES, MAX_PLACES, FailedDials, ListenPlaces, maddr_of, places_of
from manta_swarm.network.node import Node
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import peer_id
from tests.faults.strangers import Target
from tests.faults.strangers.foreign_addresses import OTHER_HOST, OWN_HOST, Victims, stranger
from tests.network.nodes import PEERS, SMALL, echo, reached_at_last, run, start, with_nodes

KEY = PEERS[0].public_key
GLOBAL, HOME, THIS = "198.41.0.4", "192.168.1.7", "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "seen_at", "may"),
    [
        # A global address: whoever names it.
        ("9.9.9.9", [GLOBAL], True),
        ("2620:fe::fe", [GLOBAL], True),
        ("9.9.9.9", [], True),
        ("1.1.1.1", [THIS], True),
        # A private one: from inside only.
        ("192.168.1.9", [GLOBAL], False),
        ("192.168.1.9", [], False),
        ("192.168.1.9", [HOME], True),
        ("192.168.1.9", [GLOBAL, HOME], True),
        ("192.168.1.9", [THIS], True),
        ("10.0.0.1", [HOME], False),
        ("10.200.0.1", ["10.1.0.1"], True),
        ("172.31.0.1", ["172.16.0.1"], True),
        ("172.32.0.1", [GLOBAL], True),
        ("100.64.0.1", [GLOBAL], False),
        ("100.127.0.1", ["100.64.0.1"], True),
        ("fd00::1", [GLOBAL], False),
        ("fd00::1", ["fd00::2"], True),
        # This computer: at the address that the other one calls from.
        ("127.0.0.1", [THIS], True),
        ("127.0.0.9", [THIS], False),
        ("127.0.0.1", [GLOBAL], False),
        ("127.0.0.1", [HOME], False),
        ("::1", ["::1"], True),
        ("::1", [THIS], False),
        # Nothing else, from anybody.
        ("0.0.0.0", [THIS], False),
        ("0.1.2.3", [THIS], False),
        ("::", ["::1"], False),
        ("169.254.169.254", ["169.254.0.1"], False),
        ("fe80::1", ["fe80::2"], False),
        ("fe80::1%1", ["fe80::2"], False),
        ("fd00::1%eth0", ["fd00::2"], False),
        ("fec0::1", ["fec0::2"], False),
        ("224.0.0.1", [THIS], False),
        ("224.0.1.1", [GLOBAL], False),
        ("239.1.2.3", [GLOBAL], False),
        ("ff0e::1", [GLOBAL], False),
        ("255.255.255.255", [THIS], False),
        ("240.0.0.1", [GLOBAL], False),
        ("192.0.2.1", [GLOBAL], False),
        ("198.18.0.1", [GLOBAL], False),
        ("2001:db8::1", [GLOBAL], False),
        # An IPv4 address in disguise.
        ("::ffff:127.0.0.1", [THIS], False),
        ("::ffff:10.0.0.1", [GLOBAL], False),
        ("::ffff:9.9.9.9", [GLOBAL], False),
        ("::127.0.0.1", [GLOBAL], False),
        ("::ffff:0:10.0.0.1", [GLOBAL], False),
        ("64:ff9b::10.0.0.1", [GLOBAL], False),
        ("64:ff9b:1::10.0.0.1", [GLOBAL], False),
        ("2002:a00:1::1", [GLOBAL], False),
        ("2002:909:909::1", [GLOBAL], False),
        ("2001:0:a00:1::1", [GLOBAL], False),
        ("192.88.99.1", [GLOBAL], False),
        ("5f00::1", [GLOBAL], False),
        # No address.
        ("", [THIS], False),
        ("localhost", [THIS], False),
        ("127.1", [THIS], False),
        ("2130706433", [THIS], False),
        ("0177.0.0.1", [THIS], False),
        ("010.0.0.1", ["10.0.0.2"], False),
    ],
)
def test_what_another_node_names_is_dialled_only_if_it_is_global_or_where_that_node_stands(
    host: str, seen_at: list[str], may: bool
) -> None:
    assert is_dialable(host, seen_at) == may


def test_places_are_plain_tcp_and_no_names_relays_or_other_protocols() -> None:
    ours = ["/ip4/9.9.9.9/tcp/4000", maddr_of(("2620:fe::fe", 4001), KEY)]
    others = [
        "/dns4/example.org/tcp/4000",
        "/dnsaddr/example.org",
        "/ip4/9.9.9.9/udp/4000/quic-v1",
        "/ip4/9.9.9.9/tcp/4000/ws",
        "/ip4/9.9.9.9/tcp/4000/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo/p2p-circuit",
        "/ip4/9.9.9.9",
        "/ip4/9.9.9.9/tcp/port",
        "/ip6zone/1/ip6/fe80::1/tcp/4000",
        "",
    ]
    assert places_of([*ours, *others]) == [("9.9.9.9", 4000), ("2620:fe::fe", 4001)]


@pytest.mark.parametrize(
    "places", [((THIS, 0),), ((THIS, 65536),), (("example.org", 1),), (("fe80::1%1", 1),), ((THIS, 1),) * (MAX_PLACES + 1)]
)
def test_what_is_no_place_is_none(places: tuple[tuple[str, int], ...]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - as each says it
        ListenPlaces(places)


def test_as_many_places_as_there_may_be_fit_in_an_answer() -> None:
    places = ListenPlaces((("2620:fe:ffff:ffff:ffff:ffff:ffff:fffe", 65535),) * MAX_PLACES)
    assert unpack(ListenPlaces, pack(places), max_bytes=MAX_MESSAGE_BYTES) == places


def test_a_place_where_nobody_is_is_dialled_ever_more_seldom() -> None:
    failed, now_s, dials = FailedDials(), 0.0, []
    while now_s < 24 * 3600:
        if failed.may_dial((GLOBAL, 1), now_s):
            failed.begin((GLOBAL, 1), now_s)
            dials.append(now_s)
        now_s += 10
    pauses = [after - before for before, after in itertools.pairwise(dials)]
    assert pauses == [30.0 * 2**times for times in range(7)] + [3600.0] * (len(pauses) - 7)
    assert len(dials) < 32


def test_a_place_that_answers_may_be_dialled_again_at_once() -> None:
    failed = FailedDials()
    for now_s in range(1000):
        assert failed.may_dial((GLOBAL, 1), now_s)
        failed.begin((GLOBAL, 1), now_s)
        assert not failed.may_dial((GLOBAL, 1), now_s)
        failed.answered((GLOBAL, 1))


def test_of_a_host_and_in_all_only_so_many_dials_fail_in_a_minute_whatever_their_ports() -> None:
    failed = FailedDials()

    def dials(hosts: list[str], now_s: float) -> int:
        places = [(host, port) for host in hosts for port in range(1, 1000) if failed.may_dial((host, port), now_s)]
        before = sum(failed._lately.values())
        for place in places:
            if failed.may_dial(place, now_s):
                failed.begin(place, now_s)
        return sum(failed._lately.values()) - before

    assert dials([GLOBAL], 0) == FailedDials.OF_HOST
    assert dials([GLOBAL], 59) == 0
    assert dials(["9.9.9.1", "9.9.9.2", "9.9.9.3"], 59) == FailedDials.IN_ALL - FailedDials.OF_HOST
    assert dials([GLOBAL], 60) == FailedDials.OF_HOST


def _among_strangers(look: Callable[[Node, Node, Victims, Target], Awaitable[None]]) -> Callable[[Path], None]:
    """Return a test with two nodes that know each other, a stranger's victims, and how it finds the first node."""

    @functools.wraps(look)
    def test(tmp_path: Path) -> None:
        async def look_at(one: Node, other: Node) -> None:
            async with Victims.listening() as victims:
                await look(one, other, victims, Target((await one.addresses())[0], bytes(32)))

        with_nodes(tmp_path, 2, look_at)

    test.__dict__.pop("__wrapped__")
    return pytest.mark.swarm(pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")(test))


@_among_strangers
async def test_a_node_that_left_is_called_at_none_of_the_addresses_that_it_announced(
    one: Node, other: Node, victims: Victims, target: Target
) -> None:
    async with stranger(target, victims.addresses) as key:
        assert key in await one.connected()

    async def has_left() -> None:
        if key in await one.connected():
            raise Unreachable("it has not left yet")

    await reached_at_last(has_left)
    for node in (one, other) * 5:
        for request in (SMALL, bytes(100_000)):
            with pytest.raises(Unreachable):
                await node.call(key, "anything", request, timeout_s=30)
    assert victims.dials_at(OTHER_HOST) == 0
    assert victims.dials.total() <= 8


@_among_strangers
async def test_a_node_is_looked_for_at_a_few_of_the_places_that_it_names_and_once_at_each(
    one: Node, other: Node, victims: Victims, target: Target
) -> None:
    async with stranger(target, victims.addresses) as key:
        assert key in await one.connected()
        for _ in range(5):
            with pytest.raises(Unreachable):
                await other.call(key, "anything", SMALL, timeout_s=30)
        with contextlib.suppress(Unreachable):
            await other.addresses_of(key)
    assert victims.dials_at(OTHER_HOST) == 0
    assert 1 <= len(victims.dials) <= 4
    assert set(victims.dials.values()) == {1}
    assert victims.dials_at(OWN_HOST) == len(victims.dials)


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_a_node_that_lost_its_connection_is_found_where_it_was_though_nobody_says(tmp_path: Path) -> None:
    async def look(one: Node, other: Node) -> None:
        third = await start(tmp_path, 2, await one.addresses())
        try:
            await other.serve("echo", echo)
            assert await third.call(other.key, "echo", SMALL, timeout_s=30) == third.key + SMALL
            await one.close()
            await third.p2p._client.control.disconnect(PeerID(peer_id(other.key)))
            assert await reached_at_last(lambda: third.call(other.key, "echo", SMALL, timeout_s=30)) == third.key + SMALL
        finally:
            await third.close()

    async def whole() -> None:
        nodes = [await start(tmp_path, 0)]
        nodes.append(await start(tmp_path, 1, await nodes[0].addresses()))
        try:
            await look(*nodes)
        finally:
            await nodes[1].close()

    run(whole())
