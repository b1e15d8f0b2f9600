"""The in-memory twin of ``swarm.node.Node``: endpoints that call each other inside one event loop, with faults on demand."""

from collections.abc import Callable

from protocol.errors import MantaError, Unreachable
from protocol.signing import PublicKey
from swarm.rpc import MAX_MESSAGE_BYTES, Handler, Refused


class MemoryNetwork:
    """Endpoints by key. ``lost(sender, receiver, method)`` says which calls never arrive."""

    def __init__(self, lost: Callable[[PublicKey, PublicKey, str], bool] = lambda *_: False) -> None:
        self.endpoints: dict[PublicKey, MemoryEndpoint] = {}
        self.records: dict[str, dict[PublicKey, bytes]] = {}
        self.lost = lost

    def endpoint(self, key: PublicKey) -> "MemoryEndpoint":
        """Return a new endpoint of this network."""
        self.endpoints[key] = MemoryEndpoint(self, key)
        return self.endpoints[key]


class MemoryEndpoint:
    """Implements ``swarm.rpc.Endpoint``."""

    def __init__(self, network: MemoryNetwork, key: PublicKey) -> None:
        """Use ``MemoryNetwork.endpoint``."""
        self._network = network
        self.key = key
        self.handlers: dict[str, Handler] = {}

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""
        self.handlers[method] = handler

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float) -> bytes:
        """See ``Endpoint.call``."""
        del timeout_s  # nothing here is slow
        assert len(request) <= MAX_MESSAGE_BYTES
        other = self._network.endpoints.get(key)
        if other is None or method not in other.handlers or self._network.lost(self.key, key, method):
            raise Unreachable(f"{key.hex()[:8]} ({method}) could not be reached")
        try:
            return await other.handlers[method](self.key, request)
        except MantaError as error:
            raise Refused(str(error)) from error

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """See ``Endpoint.publish``; records here live for ever."""
        del ttl_s
        self._network.records.setdefault(name, {})[self.key] = value

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        """See ``Endpoint.lookup``."""
        return dict(self._network.records.get(name, {}))
