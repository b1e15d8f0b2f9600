"""Mates on the same local network find each other by their local addresses.

libp2p tells nobody on the internet the private addresses of a node, and most routers lead no connection from inside back inside: two peers
behind one router would never meet. So each puts its own into the DHT where its cohort meets, sealed under what only the cohort knows, and
dials those of the others that lie in a network of its own. libp2p checks who answers.
"""

import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, RemoteFault, Unreachable
from protocol.signing import PublicKey, peer_name, sha256
from swarm.connections import host_of, tcp_port_of
from swarm.rpc import OwnNode
from swarm.tasks import together

MAX_ADDRESSES = 8
_MAX_MATES = 128  # whose addresses are looked at
_MAX_SEALED_BYTES = 1024
_NONCE_BYTES = 12

Networks = list[ipaddress.IPv4Network | ipaddress.IPv6Network]

logger = logging.getLogger("manta.near")


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    """Where a node listens on its local network: IP addresses and TCP ports."""

    places: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if len(self.places) > MAX_ADDRESSES or not all(0 < port < 65536 for _, port in self.places):
            raise ValueError("too many places, or no TCP port")
        for host, _ in self.places:
            if "%" in host:  # an interface of another computer says nothing here, and no multiaddr can name one
                raise ValueError("an address with a scope")
            ipaddress.ip_address(host)


class LocalNetwork:
    """One peer among the mates on its local network."""

    def __init__(self, node: OwnNode, run: bytes, secret: bytes, cohort: str) -> None:
        """Prepare.

        Args:
            node: this peer's.
            run: the run's id.
            secret: what the cohort's members share.
            cohort: its name.
        """
        self._node = node
        self._name = f"manta-{run.hex()}-lan-{sha256(secret + cohort.encode()).hex()}"
        self._seal = AESGCM(sha256(b"manta/lan/v1" + secret))
        self._run = run
        self.malformed = 0

    async def publish(self, ttl_s: float) -> None:
        """Say to the cohort where this peer listens on its local network, if it does."""
        found = {(host, port) for host, port in map(_place_of, await self._node.addresses()) if host is not None and port is not None}
        places = sorted((host, port) for host, port in found if not ipaddress.ip_address(host).is_loopback)[:MAX_ADDRESSES]
        if places:
            nonce = os.urandom(_NONCE_BYTES)
            sealed = self._seal.encrypt(nonce, pack(_Whereabouts(tuple(places))), self._about(self._node.key))
            await self._node.publish(self._name, nonce + sealed, ttl_s=ttl_s)

    async def meet(self, known: Sequence[PublicKey]) -> None:
        """Connect to the mates on this network that are not ``known`` yet; whoever is not there any more is no error."""
        records = await self._node.lookup(self._name)
        networks, own = own_networks()
        places: dict[PublicKey, list[str]] = {}
        for key, data in sorted(records.items())[:_MAX_MATES]:
            if key in known or key == self._node.key:
                continue
            with contextlib.suppress(RemoteFault):  # counted
                near = [place for place in self._open(key, data).places if is_in(place[0], networks) and place[0] not in own]
                places[key] = [_maddr(*place, key) for place in near]
        await together(*(self._dial(key, maddrs) for key, maddrs in places.items() if maddrs))

    async def _dial(self, key: PublicKey, maddrs: Sequence[str]) -> None:
        try:
            await self._node.introduce(key, maddrs)
        except Unreachable as error:
            logger.debug("a mate is not on this network peer=%s reason=%s", key.hex()[:8], error)

    def _open(self, key: PublicKey, data: bytes) -> _Whereabouts:
        """Return where ``key`` says that it listens.

        Raises:
            EncodingError: nobody of the cohort wrote that.
        """
        try:
            if len(data) > _MAX_SEALED_BYTES:
                raise EncodingError("more than a few addresses")
            opened = self._seal.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._about(key))
            return unpack(_Whereabouts, opened, max_bytes=_MAX_SEALED_BYTES)
        except (InvalidTag, ValueError) as error:
            self.malformed += 1
            raise EncodingError("addresses that nobody of the cohort sealed") from error
        except EncodingError:
            self.malformed += 1
            raise

    def _about(self, key: PublicKey) -> bytes:
        return self._run + key


def _place_of(maddr: str) -> tuple[str | None, int | None]:
    return host_of(maddr), tcp_port_of(maddr)


def _maddr(host: str, port: int, key: PublicKey) -> str:
    return f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}/p2p/{peer_name(key)}"


def own_networks() -> tuple[Networks, set[str]]:
    """Return the networks that this computer has an address in, but for its own loopback, and these addresses."""
    networks: Networks = []
    own = set()
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family not in (socket.AF_INET, socket.AF_INET6) or not each.netmask:
                continue
            host = each.address.partition("%")[0]
            prefix = ipaddress.ip_address(each.netmask)
            length = bin(int(prefix)).count("1")
            if not ipaddress.ip_address(host).is_loopback:
                networks.append(ipaddress.ip_network(f"{host}/{length}", strict=False))
                own.add(host)
    return networks, own


def is_in(host: str, networks: Networks) -> bool:
    """Return whether an IP address lies in one of these networks."""
    return any(ipaddress.ip_address(host) in network for network in networks)
