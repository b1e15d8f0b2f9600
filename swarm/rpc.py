"""What the rest of the swarm sees of a network: methods that answer bytes with bytes, at nodes named by their Ed25519 key.

``Endpoint`` is the edge. ``swarm.node.Node`` is the real one, over libp2p, and ``swarm.memory.MemoryEndpoint`` its twin for tests.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from protocol.errors import RemoteFault
from protocol.signing import PublicKey

# A unary message of hivemind's daemon may have 4 MiB; our parts stay well below.
MAX_MESSAGE_BYTES = 2 * 1024 * 1024

Handler = Callable[[PublicKey, bytes], Awaitable[bytes]]


class Refused(RemoteFault):
    """The other side answered, and its answer is no; the message is its reason."""


class Endpoint(Protocol):
    """A node's side of the network."""

    @property
    def key(self) -> PublicKey:
        """This node's own key."""
        ...

    async def serve(self, method: str, handler: Handler) -> None:
        """Answer calls of ``method``. ``handler`` gets the authenticated key of the caller; a ``MantaError`` that it raises
        reaches the caller as ``Refused``.
        """
        ...

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float) -> bytes:
        """Return the answer of node ``key``.

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
