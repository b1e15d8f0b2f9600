"""The interface by which programs call each other: methods that answer bytes with bytes, at nodes named by their Ed25519 key.

``Endpoint`` is the edge; ``OwnNode`` is what a program that lives by its node needs beside it. ``network.node.Node`` is the real one, over
libp2p, and ``network.memory.MemoryEndpoint`` its twin for tests.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.errors import MantaError, OwnFault, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.signing import PublicKey

# A unary message of hivemind's daemon may have 4 MiB; our parts stay well below.
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
LARGE_BYTES = 65_536  # a request, or an answer, of so many bytes is worth a stream of its own

ANSWER, REFUSAL, BUSY = b"\x00", b"\x01", b"\x02"  # how an answer begins; what follows is the answer, or why there is none

UNIX, TLS, LIBP2P = "unix", "tls", "libp2p"  # how a peer of a cohort is reached: by a link on one host, or over the network, or by no link

Handler = Callable[[PublicKey, bytes], Awaitable[bytes]]


class Refused(RemoteFault):
    """The other side answered, and its answer is no; the message is its reason."""


class Busy(Unreachable):
    """Raised by a handler: there is no answer now, and may be one soon. The caller finds the node unreachable."""


def refusal(error: MantaError) -> str:
    """Return what a caller is told of an error in the answer to its call.

    What failed on this computer, or is wrong in its files, is its owner's to know: the text may name them.
    """
    return "something failed on that computer, through no fault of this call" if isinstance(error, OwnFault | UserError) else str(error)


class Endpoint(Protocol):
    """A node's side of the network."""

    @property
    def key(self) -> PublicKey:
        """This node's own key."""
        ...

    async def serve(self, method: str, handler: Handler) -> None:
        """Answer calls of ``method``. ``handler`` gets the authenticated key of the caller; a ``MantaError`` that it raises
        reaches the caller as ``Refused`` (see ``refusal``). Each call is answered in a task of its own, which ends when the answer is sent.
        """
        ...

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        """Return the answer of node ``key``; ``large_answer`` says that it is worth a way of its own.

        Raises:
            Unreachable: no answer before the deadline, or no way to the node.
            Refused: the node refuses the request.
        """
        ...

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """Put ``value`` under ``name`` in the DHT as this node's own record for ``ttl_s`` seconds."""
        ...

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        """Return the records under ``name``, each signed by the key it is listed under."""
        ...


class RecordRule(Protocol):
    """Which records of the DHT are to be kept and believed, of those that their owners signed."""

    def admits_record(self, owner: PublicKey, value: bytes) -> bool:
        """Return whether this value of an owner's is."""
        ...


class OwnNode(Endpoint, Protocol):
    """A program's own node: its side of the network, and what may happen to that."""

    traffic: Traffic  # what it sends and receives
    link_ways: tuple[str, ...]  # how others may be linked to it directly (``network.links``)

    async def meet_again(self, key: PublicKey, maddrs: Sequence[str] = ()) -> None:
        """Connect to a node that was away, which a person or the manifest names, by these addresses as well, as often as this is asked.

        Raises:
            Unreachable: it is still away.
        """
        ...

    async def addresses(self) -> list[str]:
        """Return the multiaddresses at which this node listens, as far as it knows them; none where it only dials out."""
        ...

    async def introduce(self, key: PublicKey, maddrs: Sequence[str]) -> None:
        """Connect to a node by one of these addresses, all of which may be dialled, if it answers there.

        Raises:
            Unreachable: it is not there, or was not lately.
        """
        ...

    async def addresses_of(self, key: PublicKey) -> list[str]:
        """Return addresses under which others call a node; none where nobody says.

        Raises:
            Unreachable: nobody knows it.
        """
        ...

    async def remote_hosts(self, key: PublicKey) -> list[str]:
        """Return the IP addresses from which a node is connected to this one, or at which it was called.

        Raises:
            Unreachable: it cannot be found out now.
        """
        ...

    async def connected(self) -> dict[PublicKey, list[str]]:
        """Return the nodes that this one is connected to, with the IP addresses at the other ends.

        Raises:
            Unreachable: it cannot be found out now.
        """
        ...

    async def serve_dht(self, is_served: bool) -> None:
        """Keep records of the DHT for others from now on, or no more."""
        ...

    def hold_records_to(self, rule: RecordRule) -> None:
        """Keep, and believe, only those records of the DHT that ``rule`` admits."""
        ...

    async def watch_daemon(self) -> None:
        """Wait for the end of what nothing can go on without; meant to be run beside the rest, and cancelled.

        Raises:
            OwnFault: it ended.
        """
        ...


class Through:
    """Passes all on to another endpoint; a subclass changes what ``serve`` does. Implements ``network.rpc.Endpoint``."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Pass on to ``endpoint``."""
        self._endpoint = endpoint

    @property
    def key(self) -> PublicKey:
        """See ``Endpoint.key``."""
        return self._endpoint.key

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""
        await self._endpoint.serve(method, handler)

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        """See ``Endpoint.call``."""
        return await self._endpoint.call(key, method, request, timeout_s=timeout_s, large_answer=large_answer)

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """See ``Endpoint.publish``."""
        await self._endpoint.publish(name, value, ttl_s=ttl_s)

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        """See ``Endpoint.lookup``."""
        return await self._endpoint.lookup(name)
