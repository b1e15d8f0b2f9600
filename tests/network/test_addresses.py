"""Addresses as people write them; hivemind's own parser is the oracle of what is accepted."""

import socket

import pytest
from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.network.addresses import check_listen, check_peer_address
from manta_swarm.network.node import parse_address
from manta_swarm.protocol.errors import SignatureError, UserError
from manta_swarm.protocol.signing import Identity, PublicKey, key_named, peer_name, public_key_of

KEY = Identity(b"\x01" * 32).public_key
NAME = peer_name(KEY)
RSA_PEER = "QmbLHAnMoJPWSCR5Zhtx6BHJX9KiKNN6tpvbUcqanj75Nb"


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/203.0.113.7/tcp/31000",
        "/ip6/2001:db8::1/tcp/31000",
        "/dns4/manta.example/tcp/443",
        "/dns/manta.example/udp/443/quic",
        "/ip4/1.2.3.4/tcp/1/ws",
    ],
)
def test_a_nodes_address_names_its_key(address: str) -> None:
    assert check_peer_address(f"{address}/p2p/{NAME}") == KEY
    assert parse_address(f"{address}/p2p/{NAME}") == (KEY, f"{address}/p2p/{NAME}")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "127.0.0.1:31000",
        "http://203.0.113.7:31000/",
        "/ip4/203.0.113.7/tcp/31000",
        f"/ip4/203.0.113.7/p2p/{NAME}",
        f"/ip4/203.0.113/tcp/31000/p2p/{NAME}",
        f"/ip4/203.0.113.7/tcp/65536/p2p/{NAME}",
        f"/ip4/203.0.113.7/tcp/port/p2p/{NAME}",
        f"/ip6/203.0.113.7/tcp/1/p2p/{NAME}",
        f"/ipv4/203.0.113.7/tcp/1/p2p/{NAME}",
        f"/ip4/203.0.113.7/tcp/31000/p2p/{NAME[:-1]}",
        f"/ip4/203.0.113.7/tcp/31000/p2p/{NAME}1",
        f"/ip4/203.0.113.7/tcp/31000/p2p/1{NAME}",
        f"/ip4/203.0.113.7/tcp/31000/p2p/{RSA_PEER}",
        f"/ip4/203.0.113.7/tcp/31000/p2p/{'z' * 5000}",
        f"/p2p/{NAME}",
    ],
)
def test_what_is_no_nodes_address_is_the_users_error(address: str) -> None:
    for read in (check_peer_address, parse_address):
        with pytest.raises(UserError, match=r"is no peer address; it looks like /ip4/203\.0\.113\.7/tcp/31000/p2p/12D3Koo"):
            read(address)


_HOSTS = st.sampled_from(["/ip4/1.2.3.4", "/ip4/1.2.3", "/ip6/::1", "/ip6/g", "/dns/a.example", "/x/y", "/ip4"])
_WAYS = st.sampled_from(["/tcp/1", "/tcp/70000", "/tcp/x", "/udp/1/quic", "/udp/1", "/tcp", ""])
_NAMES = st.sampled_from([f"/p2p/{NAME}", f"/ipfs/{NAME}", f"/p2p/{NAME[:-2]}", f"/p2p/{RSA_PEER}", "/p2p/", "/p2p", ""])


@given(_HOSTS, _WAYS, _NAMES, st.sampled_from(["", "/", "//", "/ws"]))
def test_what_is_refused_early_hivemind_refuses_too(host: str, way: str, name: str, end: str) -> None:
    def hiveminds(text: str) -> PublicKey:
        parsed = Multiaddr(text)
        if not {"tcp", "udp"} & {protocol.name for protocol in parsed.protocols()}:
            raise ValueError("no way to it")
        return public_key_of(PeerID.from_base58(parsed["p2p"]).to_bytes())

    text = host + way + name + end
    try:
        check_peer_address(text)
    except UserError:
        with pytest.raises((ValueError, LookupError, SignatureError)):
            hiveminds(text)


@given(st.binary(min_size=32, max_size=32))
def test_a_name_gives_back_its_key(seed: bytes) -> None:
    key = Identity(seed).public_key
    assert key_named(peer_name(key)) == key


@pytest.mark.parametrize("name", ["", "1", "0OIl", NAME + "1", "1" + NAME, NAME.lower(), RSA_PEER, "é" * 52])
def test_what_is_no_name_has_no_key(name: str) -> None:
    with pytest.raises(SignatureError):
        key_named(name)


def test_a_port_in_use_and_an_address_of_others_cannot_be_listened_on() -> None:
    in_use = r"cannot listen on /ip4/127\.0\.0\.1/tcp/\d+: .*in use; choose another address with --listen"
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(UserError, match=in_use):
        check_listen([f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"])
    with pytest.raises(UserError, match=r"cannot listen on /ip4/203\.0\.113\.7/tcp/9"):
        check_listen(["/ip4/127.0.0.1/tcp/0", "/ip4/203.0.113.7/tcp/9"])
    check_listen(["/ip4/127.0.0.1/tcp/0", "/ip4/0.0.0.0/tcp/0"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.0.0.0:31000",
        "/ip4/127.0.0.1",
        "/ip4/1.2.3/tcp/0",
        "/ip4/127.0.0.1/udp/1",
        "/ip4/127.0.0.1/tcp/99999",
        "/dns4/localhost/tcp/0",
        "/tcp/1",
    ],
)
def test_what_is_no_address_to_listen_on_is_the_users_error(text: str) -> None:
    with pytest.raises(UserError, match=r"it is not a multiaddress like /ip4/0\.0\.0\.0/tcp/31000"):
        check_listen([text])


def test_a_system_that_does_not_know_ipv6_cannot_listen_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "AF_INET6", 45)  # a family that no system has: it answers as one without IPv6 does
    with pytest.raises(UserError, match="cannot listen on /ip6/::1/tcp/0: Address family not supported"):
        check_listen(["/ip6/::1/tcp/0"])
