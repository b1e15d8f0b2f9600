"""A log's word to its peers before it stops: for a while, or for good, and why. Believed from nobody but the log itself."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Endpoint, OwnNode
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import together

MAX_REASON = 200  # characters
_MAX_NOTICE_BYTES = 1024
_AT_ONCE = 64
_WAITING = 16  # shutdown notices that nobody has taken, until the next one is held up

METHOD = "shutdown-notice"


@dataclass(frozen=True, slots=True)
class ShutdownNotice:
    """The log's notice to peers that it stops, for a while or for good."""

    run: bytes
    is_over: int  # 1: the run will not go on; 0: the log comes back
    reason: str  # the operator's words, one line; empty: none

    def __post_init__(self) -> None:
        if self.is_over not in (0, 1) or len(self.run) != 32:
            raise ValueError("a shutdown notice that says neither whether the log comes back nor of which run it is")
        if len(self.reason) > MAX_REASON or not self.reason.isprintable():
            raise ValueError(f"a reason is one line of at most {MAX_REASON} characters")


async def say_shutdown_notice(node: OwnNode, shutdown_notice: ShutdownNotice) -> int:
    """Tell all nodes that are connected; return how many took note. Whoever does not answer in a moment will find the log away."""
    data = pack(shutdown_notice)

    async def tell(key: PublicKey) -> bool:
        try:
            await node.call(key, METHOD, data, timeout_s=timeouts.PUSH_S)
        except MantaError:
            return False
        return True

    try:
        keys = await node.connected()
    except MantaError:
        return 0
    return sum(await together(*(tell(key) for key in keys if key != node.key), at_once=_AT_ONCE))


class ShutdownNotices:
    """Hears the notices that the operators of one run give before they stop."""

    def __init__(self, operators: Collection[bytes], run: bytes) -> None:
        """Believe these operators."""
        self._operators = operators
        self._run = run
        self._said: asyncio.Queue[tuple[PublicKey, ShutdownNotice]] = asyncio.Queue(_WAITING)

    async def start(self, endpoint: Endpoint) -> None:
        """Take shutdown notices from now on."""
        await endpoint.serve(METHOD, self._on_shutdown_notice)

    async def next(self) -> tuple[PublicKey, ShutdownNotice]:
        """Return the operator and its notice, once the next one comes."""
        return await self._said.get()

    async def _on_shutdown_notice(self, caller: PublicKey, request: bytes) -> bytes:
        if caller not in self._operators:
            raise EncodingError("a shutdown notice of somebody else's log")
        shutdown_notice = unpack(ShutdownNotice, request, max_bytes=_MAX_NOTICE_BYTES)
        if shutdown_notice.run != self._run:
            raise EncodingError("a shutdown notice of another run's log")
        await self._said.put((caller, shutdown_notice))
        return b""
