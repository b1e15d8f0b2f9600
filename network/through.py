"""An endpoint before another one, that changes how methods are answered: all else goes through as it is."""

from manta_swarm.network.rpc import Endpoint, Handler
from manta_swarm.protocol.signing import PublicKey


class Through:
    """Implements ``network.rpc.Endpoint``; who inherits says in ``serve`` what is different."""

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
