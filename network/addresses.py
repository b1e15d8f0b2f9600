"""Addresses as people write them (multiaddresses), refused where they cannot be, before hivemind is loaded, which takes seconds.

Host, port and key are checked here; what else there may be in an address hivemind sees when it is used (``network.node``). What other nodes
say of where somebody is, is dialled only as far as ``is_dialable`` says: a stranger must not make others scan networks.
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from itertools import pairwise

from manta_swarm.protocol.errors import SignatureError, UserError
from manta_swarm.protocol.signing import PublicKey, key_named

_HOSTS = ("ip4", "ip6", "ip6zone", "dns", "dns4", "dns6", "dnsaddr")
_NAMES_OF_KEYS = ("p2p", "ipfs")

# Networks in which whoever is inside may tell of others inside. Some overlay networks number their nodes in the shared 100.64.0.0/10.
_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")))
_GLOBAL_IP6 = ipaddress.ip_network("2000::/3")  # what is given out: NAT64, mapped and compatible addresses lie outside
_6TO4 = tuple(map(ipaddress.ip_network, ("2002::/16", "192.88.99.0/24")))  # these hold, or lead to, an IPv4 address


def is_dialable(host: str, seen_at: Iterable[str]) -> bool:
    """Return whether a host that another node names may be dialled, given the hosts at the other end of the connections to that node.

    A global address may. A private one may if whoever names it stands in the same private network, or on this computer; one of this
    computer, if it is where that node is connected from. Nothing else may: no name, no group, no address of a link, none that holds
    an IPv4 address.
    """
    try:
        address = ipaddress.ip_address(host)
        seen = [ipaddress.ip_address(each) for each in seen_at]
    except ValueError:
        return False
    if "%" in host:
        return False
    if address.is_loopback:
        return address in seen
    network = next((network for network in _PRIVATE if address in network), None)
    if network is not None:
        return any(each in network or each.is_loopback for each in seen)
    if address.is_multicast or address.is_reserved or any(address in network for network in _6TO4):
        return False
    return address.is_global and (address.version == 4 or address in _GLOBAL_IP6)


def check_peer_address(text: str) -> PublicKey:
    """Return the key of a node's full address (``/ip4/1.2.3.4/tcp/31000/p2p/12D3Koo...``).

    Raises:
        UserError: it is none.
    """
    try:
        parts = _parts(text)
        if not {"tcp", "udp"} & set(parts):
            raise ValueError("a name, and no way to it")
        name = next((value for protocol, value in pairwise(parts) if protocol in _NAMES_OF_KEYS), None)
        if name is None:
            raise ValueError("nobody's name")
        return key_named(name)
    except (ValueError, SignatureError) as error:
        raise not_a_peer(text) from error


def not_a_peer(text: str) -> UserError:
    """Return what a person is told whose address is no peer's."""
    return UserError(f"{text!r} is no peer address; it looks like /ip4/203.0.113.7/tcp/31000/p2p/12D3Koo...")


def check_listen(texts: Sequence[str]) -> None:
    """Refuse addresses that cannot be listened on: malformed, in use by others, or none of this computer's.

    Raises:
        UserError: one of them is so.
    """
    for text in texts:
        try:
            parts = _parts(text)
            if parts[0] not in ("ip4", "ip6") or parts[2] != "tcp":
                raise ValueError("no IP address or no TCP port")
        except ValueError as error:
            raise not_to_listen_on(text) from error
        _check_port_free(text, socket.AF_INET if parts[0] == "ip4" else socket.AF_INET6, parts[1], int(parts[3]))


def not_to_listen_on(text: str) -> UserError:
    """Return what a person is told whose address to listen on is malformed."""
    return UserError(f"cannot listen on {text!r}: it is not a multiaddress like /ip4/0.0.0.0/tcp/31000")


def _check_port_free(text: str, family: int, host: str, port: int) -> None:
    """Refuse a TCP port that somebody listens on: the daemon shares ports (SO_REUSEPORT) and would not say a word.

    Raises:
        UserError: the port is in use, or the address is none of this computer's.
    """
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that only waits out old connections is free
            probe.bind((host, port))
    except OSError as error:  # the first line's, too: there are systems without IPv6
        raise UserError(f"cannot listen on {text}: {error.strerror}; choose another address with --listen") from error


def _parts(text: str) -> list[str]:
    """Return protocols and values in turn; host and port are checked.

    Raises:
        ValueError: it begins with no host and port.
    """
    slash, *parts = text.rstrip("/").split("/")
    if slash or len(parts) < 4 or parts[0] not in _HOSTS:
        raise ValueError("no host in front")
    if parts[0] in ("ip4", "ip6"):
        (ipaddress.IPv4Address if parts[0] == "ip4" else ipaddress.IPv6Address)(parts[1])
    if parts[2] in ("tcp", "udp") and not (parts[3].isascii() and parts[3].isdecimal() and int(parts[3]) < 2**16):
        raise ValueError("no port")
    return parts
