"""What a node's daemon knows of connections: opening one to addresses that are known, and whence others called.

Addresses are libp2p's multiaddresses, as text. Whether one that a stranger named is dialled, ``network.dialling`` decides.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Sequence
from typing import Any

from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from manta_swarm.network import timeouts
from manta_swarm.network.daemon import ask
from manta_swarm.protocol.errors import SignatureError, Unreachable
from manta_swarm.protocol.signing import PublicKey, peer_id, peer_name, public_key_of

_MAX_ADDRESSES = 8  # of one node that are looked at


async def answer_of(calling: Awaitable[Any], what: str, timeout_s: float) -> Any:
    """Return what a call by the daemon returns.

    Raises:
        Unreachable: it failed, or took too long.
    """
    try:
        async with asyncio.timeout(timeout_s):  # not wait_for, which in Python 3.11 can swallow a cancellation
            return await calling
    except TimeoutError as error:
        raise Unreachable(f"{what} did not answer within {timeout_s:g} s") from error
    except (P2PDaemonError, P2PHandlerError, ControlFailure, ConnectionError, asyncio.IncompleteReadError) as error:
        raise Unreachable(f"{what} could not be reached: {error}") from error


async def connect(p2p: P2P, key: PublicKey, maddrs: Sequence[str], what: str) -> None:
    """Connect to a node by addresses of it, and by what else it told the daemon; where there is a connection it stays.

    The daemon remembers all addresses that a node announced while it was connected, whatever they are, and dials all of them: so this is
    for nodes that are trusted, or known to be there (``network.dialling``).

    Raises:
        Unreachable: there is no way to it.
    """
    try:
        bare = [Multiaddr(maddr).decapsulate(Multiaddr(f"/p2p/{peer_name(key)}")).to_bytes() for maddr in maddrs]
    except ValueError as error:
        raise Unreachable(f"{what} has an address that none can be reached at: {error}") from error
    connecting = p2pd_pb2.ConnectRequest(peer=peer_id(key), addrs=bare)
    request = p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=connecting)
    _, _, writer = await answer_of(ask(p2p, request), what, timeouts.CONNECT_S)
    writer.close()


async def connect_some(p2p: P2P, nodes: Sequence[tuple[PublicKey, str]]) -> list[tuple[PublicKey, str]]:
    """Connect to the nodes, at least to one; return those that answered, soon after the first of them did.

    Raises:
        Unreachable: none answered.
    """
    trying = {asyncio.create_task(connect(p2p, key, [maddr], maddr)): (key, maddr) for key, maddr in nodes}
    waiting, answered = set(trying), False
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=timeouts.OTHERS_S if answered else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(error, Unreachable):
                    raise error
                answered = answered or error is None
            if answered and not done:
                break
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    there = [node for task, node in trying.items() if task.done() and not task.cancelled() and task.exception() is None]
    if nodes and not there:
        raise Unreachable(f"no answer from {', '.join(maddr for _, maddr in nodes)}")
    return there


async def connected_peers(p2p: P2P) -> dict[bytes, list[bytes]]:
    """Return the libp2p peer ids of all that this node is connected to, with the addresses at the other ends: see ``hosts_of``.

    Raises:
        Unreachable: the daemon does not answer.
    """
    request = p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS)
    response, _, writer = await answer_of(ask(p2p, request), "the p2p daemon", timeouts.CONNECT_S)
    writer.close()
    found: dict[bytes, list[bytes]] = {}
    for peer in response.peers:
        found.setdefault(peer.id, []).extend(peer.addrs)
    return found


def hosts_of(addresses: Sequence[bytes]) -> list[str]:
    """Return the IP addresses that some of these multiaddresses, as libp2p encodes them, begin with."""
    return sorted({host for host in map(host_of, _parsed(addresses)) if host is not None})


async def remote_hosts(p2p: P2P, key: PublicKey) -> list[str]:
    """Return the IP addresses at the other end of a node's connections to this one, as they are seen here.

    Raises:
        Unreachable: the daemon does not answer.
    """
    return hosts_of((await connected_peers(p2p)).get(peer_id(key), []))


class DaemonsConnections:
    """Asks the daemon for its connections. Implements ``network.rates.Connections``."""

    def __init__(self, p2p: P2P) -> None:
        self._p2p = p2p

    async def connected(self) -> dict[PublicKey, list[str]]:
        """Return all nodes that this one is connected to, with the IP addresses at the other ends.

        Raises:
            Unreachable: the daemon does not answer.
        """
        found = {}
        for peer, addresses in (await connected_peers(self._p2p)).items():
            with contextlib.suppress(SignatureError):  # a node of another kind
                found[public_key_of(peer)] = hosts_of(addresses)
        return found


def host_of(maddr: str) -> str | None:
    """Return the IP address that a multiaddress begins with; None: it begins with none, or goes by way of a relay."""
    parts = maddr.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6") or "p2p-circuit" in parts:
        return None
    try:
        return str(ipaddress.ip_address(parts[2]))
    except ValueError:
        return None


def tcp_port_of(maddr: str) -> int | None:
    """Return the TCP port of a multiaddress that begins with an IP address and a port."""
    parts = maddr.split("/")
    return int(parts[4]) if len(parts) > 4 and parts[3] == "tcp" and parts[4].isdecimal() and host_of(maddr) is not None else None


def _parsed(addresses: Sequence[bytes]) -> list[str]:
    found = []
    for data in list(addresses)[:_MAX_ADDRESSES]:
        try:
            found.append(str(Multiaddr(data)))
        except (ValueError, LookupError):
            continue  # an address of a kind that is not known here
    return found
