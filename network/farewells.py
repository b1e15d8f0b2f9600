"""A log's word to its peers before it stops: for a while, or for good, and why. Believed from nobody but the log itself."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from manta_swarm.network import waits
from manta_swarm.network.rpc import Endpoint, OwnNode
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import together

MAX_REASON = 200  # characters
_MAX_FAREWELL_BYTES = 1024
_AT_ONCE = 64

METHOD = "farewell"


@dataclass(frozen=True, slots=True)
class Farewell:
    """What the log says."""

    run: bytes
    is_over: int  # 1: the run will not go on; 0: the log comes back
    reason: str  # the operator's words, one line; empty: none

    def __post_init__(self) -> None:
        if self.is_over not in (0, 1) or len(self.run) != 32:
            raise ValueError("a farewell that says neither whether the log comes back nor of which run it is")
        if len(self.reason) > MAX_REASON or not self.reason.isprintable():
            raise ValueError(f"a reason is one line of at most {MAX_REASON} characters")


async def say_farewell(node: OwnNode, farewell: Farewell) -> int:
    """Tell all nodes that are connected; return how many took note. Whoever does not answer in a moment will find the log away."""
    data = pack(farewell)

    async def tell(key: PublicKey) -> bool:
        try:
            await node.call(key, METHOD, data, timeout_s=waits.PUSH_S)
        except MantaError:
            return False
        return True

    try:
        keys = await node.connected()
    except MantaError:
        return 0
    return sum(await together(*(tell(key) for key in keys if key != node.key), at_once=_AT_ONCE))


async def hear_farewells(
    endpoint: Endpoint, operators: Collection[bytes], run: bytes, on_farewell: Callable[[PublicKey, Farewell], None]
) -> None:
    """Take note of what the run's ``operators`` say before they stop, from now on; ``on_farewell`` is told who says what."""

    async def take(caller: PublicKey, request: bytes) -> bytes:
        if caller not in operators:
            raise EncodingError("a farewell of somebody else's log")
        farewell = unpack(Farewell, request, max_bytes=_MAX_FAREWELL_BYTES)
        if farewell.run != run:
            raise EncodingError("a farewell of another run's log")
        on_farewell(caller, farewell)
        return b""

    await endpoint.serve(METHOD, take)
