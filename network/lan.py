"""Cohort peers that are near find each other: on one host by a name that only they share, on the same local network by local addresses.

libp2p tells nobody on the internet the private addresses of a node, and most routers lead no connection from inside back inside: two peers
behind one router would never meet. So each puts its own into the DHT where its cohort meets, sealed under what only the cohort knows, and
dials those of the others that lie in a network of its own. libp2p checks who answers.
"""

import contextlib
import ipaddress
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from manta_swarm.network.dialling import MAX_PLACES, ListenPlaces, maddr_of, places_of
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.affinity import HOST_BYTES
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Unreachable
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.runtime.tasks import together

_MAX_COHORT_PEERS = 128  # whose addresses are looked at
_MAX_SEALED_BYTES = 1024
_NONCE_BYTES = 12

Networks = list[ipaddress.IPv4Network | ipaddress.IPv6Network]

logger = logging.getLogger("manta.near")

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # another one for each copy of a virtual machine, which may share the machine's
_IS_RANDOM = 1 << 40  # of what uuid says: it found no address of hardware, and the number is another one in each process


class LocalNetwork:
    """Finds a peer's cohort peers on its host and local network, and lets them find it."""

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
        found = set(places_of(await self._node.addresses()))
        places = sorted((host, port) for host, port in found if not ipaddress.ip_address(host).is_loopback)[:MAX_PLACES]
        if places:
            nonce = os.urandom(_NONCE_BYTES)
            sealed = self._seal.encrypt(nonce, pack(ListenPlaces(tuple(places))), self._about(self._node.key))
            await self._node.publish(self._name, nonce + sealed, ttl_s=ttl_s)

    async def meet(self, known: Sequence[PublicKey]) -> None:
        """Connect to the cohort peers on this network that are not ``known`` yet; whoever is not there any more is no error."""
        records = await self._node.lookup(self._name)
        networks, own = own_networks()
        places: dict[PublicKey, list[str]] = {}
        for key, data in sorted(records.items())[:_MAX_COHORT_PEERS]:
            if key in known or key == self._node.key:
                continue
            with contextlib.suppress(RemoteFault):  # counted
                near = [place for place in self._open(key, data).places if is_in(place[0], networks) and place[0] not in own]
                places[key] = [maddr_of(place, key) for place in near]
        await together(*(self._dial(key, maddrs) for key, maddrs in places.items() if maddrs))

    async def _dial(self, key: PublicKey, maddrs: Sequence[str]) -> None:
        try:
            await self._node.introduce(key, maddrs)
        except Unreachable as error:
            logger.debug("a cohort peer is not on this network peer=%s reason=%s", key.hex()[:8], error)

    def _open(self, key: PublicKey, data: bytes) -> ListenPlaces:
        """Return where ``key`` says that it listens.

        Raises:
            EncodingError: nobody of the cohort wrote that.
        """
        try:
            if len(data) > _MAX_SEALED_BYTES:
                raise EncodingError("more than a few addresses")
            opened = self._seal.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._about(key))
            return unpack(ListenPlaces, opened, max_bytes=_MAX_SEALED_BYTES)
        except (InvalidTag, ValueError) as error:
            self.malformed += 1
            raise EncodingError("addresses that nobody of the cohort sealed") from error
        except EncodingError:
            self.malformed += 1
            raise

    def _about(self, key: PublicKey) -> bytes:
        return self._run + key


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


def host_digest(run: bytes) -> bytes:
    """Return a digest (16 bytes) that is the same for all peers of a run on this host until it starts anew; nothing where it has no name.

    It says nothing but that: in another run, and after a restart of the host, it is another one.
    """
    machine, boot = next((text for path in _MACHINE_IDS if (text := _read(path))), ""), _read(_BOOT_ID)
    if not machine and not boot:
        number = uuid.getnode()
        if number & _IS_RANDOM:
            return b""
        machine = f"{number:012x}"
    return sha256(b"\n".join((b"manta/host/v1", run, machine.encode(), boot.encode())))[:HOST_BYTES]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
