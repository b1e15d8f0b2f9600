"""Whether others can call this node: some are asked to try, and what they found is said in words.

A node behind a router or a wall calls out, and everything comes and goes over the connections that it opened: it takes part like any other.
But it should not be asked for what others have to call it for, so it does not serve the DHT. Who is asked to dial back dials nothing but
the address that the caller's own connection comes from, at ports that the caller names, and looks whether it is the caller who answers.
"""

import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from manta_swarm.network import timeouts
from manta_swarm.network.connections import tcp_port_of
from manta_swarm.network.dial_back import is_there
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import MantaError, Unreachable
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import together

METHOD = "dial-back"
ASKED = 3  # nodes at a measurement
MAX_PORTS = 4
MAX_HOSTS = 2  # of a caller that are dialled: one of IPv4, one of IPv6
MAX_DIALLING = 16  # callers at a time
_MAX_MESSAGE_BYTES = 256
_MAX_HOST_LETTERS = 45

logger = logging.getLogger("manta.node")


@dataclass(frozen=True, slots=True)
class AskDialBack:
    """Asks whether these ports of the caller can be reached."""

    ports: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 < len(set(self.ports)) == len(self.ports) <= MAX_PORTS or not all(0 < port < 65536 for port in self.ports):
            raise ValueError(f"1 to {MAX_PORTS} different TCP ports")


@dataclass(frozen=True, slots=True)
class DialledBack:
    """What the callee found: the hosts that the caller calls from, each with the ports at which it answered a call."""

    hosts: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.hosts) <= MAX_HOSTS or any(
            len(host) > _MAX_HOST_LETTERS or len(ports) > MAX_PORTS for host, ports in self.hosts
        ):
            raise ValueError("no host, or more than are dialled")
        for host, _ in self.hosts:
            ipaddress.ip_address(host)


class DialBackService:
    """Answers those who ask to be dialled back."""

    def __init__(self, node: OwnNode) -> None:
        """Prepare; ``start`` answers from then on."""
        self._node = node
        self._dialling: set[PublicKey] = set()

    async def start(self) -> None:
        """Answer from now on."""
        await self._node.serve(METHOD, self._on_ask)

    async def _on_ask(self, caller: PublicKey, request: bytes) -> bytes:
        ports = unpack(AskDialBack, request, max_bytes=_MAX_MESSAGE_BYTES).ports
        if caller in self._dialling or len(self._dialling) >= MAX_DIALLING:
            raise Unreachable("too many ask to be dialled back: ask again later")
        self._dialling.add(caller)
        try:
            hosts = (await self._node.remote_hosts(caller))[:MAX_HOSTS]
            if not hosts:
                raise Unreachable("it cannot be seen here where the caller calls from")
            found = await together(*(is_there(caller, host, port) for host in hosts for port in ports))
        finally:
            self._dialling.discard(caller)
        answers = iter(found)
        return pack(DialledBack(tuple((host, tuple(port for port in ports if next(answers))) for host in hosts)))


class Reachable(Enum):
    """Whether others can call a node."""

    UNKNOWN = "unknown"  # nobody could say
    LOCAL = "local"  # on this computer or network, which is where all who were asked are
    PUBLIC = "public"
    OUTBOUND = "outbound"  # it only calls out


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether and where others can call a node, as a measurement found."""

    reachable: Reachable = Reachable.UNKNOWN
    hosts: tuple[str, ...] = ()  # as others see this node
    ports: tuple[int, ...] = ()  # at which it listens, or where it was reached those

    @property
    def serves_others(self) -> bool:
        """Whether others may be told to call this node."""
        return self.reachable in (Reachable.PUBLIC, Reachable.LOCAL)

    @property
    def words(self) -> str:
        """What the measurement found, in words for a person."""
        hosts, ports = ", ".join(self.hosts), ", ".join(map(str, self.ports))
        if self.reachable is Reachable.PUBLIC:
            return f"others can call this peer at {hosts}, port {ports}"
        if self.reachable is Reachable.LOCAL:
            return f"others on this network can call this peer at {hosts}, port {ports}"
        if self.reachable is Reachable.UNKNOWN:
            return "whether others can call this peer is not known yet"
        if not self.ports:
            return "this peer only calls out, as it was told to; it takes part like any other"
        advice = f"forward a TCP port to this computer and name it with --listen /ip4/0.0.0.0/tcp/{self.ports[0]}"
        seen = f"nobody outside can call this peer (seen at {hosts}, port {ports})"
        return f"{seen}: it only calls out, and takes part like any other; to help others more, {advice}"


async def measure(node: OwnNode, others: Sequence[PublicKey]) -> Reach:
    """Return whether others can call ``node``, by what some of ``others`` find who try."""
    ports = tuple(sorted({port for port in map(tcp_port_of, await node.addresses()) if port is not None}))[:MAX_PORTS]
    if not ports:
        return Reach(Reachable.OUTBOUND)
    answers = await together(*(_asked(node, key, ports) for key in others[:ASKED]))
    return judged([answer for answer in answers if answer is not None], ports)


async def _asked(node: OwnNode, key: PublicKey, ports: tuple[int, ...]) -> DialledBack | None:
    try:
        answer = await node.call(key, METHOD, pack(AskDialBack(ports)), timeout_s=timeouts.REACH_S)
        return unpack(DialledBack, answer, max_bytes=_MAX_MESSAGE_BYTES)
    except MantaError as error:
        logger.info("not dialled back by peer=%s reason=%s", key.hex()[:8], error)
        return None


def judged(answers: Sequence[DialledBack], ports: Sequence[int]) -> Reach:
    """Return what the answers of those who were asked come to.

    Who calls from the same network does not count where somebody farther away answered too; a node that fewer than half of them reach
    only calls out.
    """
    found = [each for answer in answers for each in answer.hosts]
    outside = [(host, open_) for host, open_ in found if ipaddress.ip_address(host).is_global]
    counted = outside or found
    if not counted:
        return Reach(ports=tuple(ports))
    reached = [(host, open_) for host, open_ in counted if open_]
    if 2 * len(reached) < len(counted):
        return Reach(Reachable.OUTBOUND, tuple(sorted({host for host, _ in counted})), tuple(ports))
    kind = Reachable.PUBLIC if outside else Reachable.LOCAL
    return Reach(kind, tuple(sorted({host for host, _ in reached})), tuple(sorted({port for _, open_ in reached for port in open_})))
