"""Means and states by digest: kept for the others while they may need them, fetched in bounded parts, believed once they hash right."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, Unreachable
from protocol.signing import Digest, PublicKey, sha256
from swarm.rpc import Endpoint
from swarm.tasks import together

PART_BYTES = 1024 * 1024
_PARTS_IN_FLIGHT = 4
_CALL_TIMEOUT_S = 30.0

logger = logging.getLogger("manta.transfer")


@dataclass(frozen=True, slots=True)
class _Ask:
    digest: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class _Give:
    total_bytes: int
    data: bytes


class Shelf:
    """What this node hands out by digest: the newest ``capacity`` byte strings that were put on it, and what was pinned."""

    def __init__(self, capacity: int) -> None:
        self._items: OrderedDict[bytes, bytes] = OrderedDict()
        self._pinned: dict[bytes, bytes] = {}
        self._capacity = capacity

    def put(self, data: bytes) -> Digest:
        """Keep ``data`` and return its digest."""
        digest = sha256(data)
        self._items[digest] = data
        self._items.move_to_end(digest)
        while len(self._items) > self._capacity:
            self._items.popitem(last=False)
        return digest

    def pin(self, data: bytes) -> Digest:
        """Keep ``data`` for as long as this node lives, and return its digest: for the few things that newcomers need at any time."""
        digest = sha256(data)
        self._pinned[digest] = data
        return digest

    def get(self, digest: bytes) -> bytes | None:
        """Return the bytes of ``digest`` if they are here."""
        return self._pinned[digest] if digest in self._pinned else self._items.get(digest)

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer "fetch" calls of anybody."""
        await endpoint.serve("fetch", self._answer)

    async def _answer(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(_Ask, request, max_bytes=128)
        data = self.get(ask.digest)
        if data is None:
            raise Unreachable("not here (any more)")
        if not 0 <= ask.offset <= len(data):
            raise EncodingError("an offset outside the data")
        return pack(_Give(len(data), data[ask.offset : ask.offset + PART_BYTES]))


async def fetch(endpoint: Endpoint, digest: bytes, providers: Sequence[PublicKey], *, max_bytes: int) -> bytes:
    """Return the bytes whose SHA-256 is ``digest`` from the first provider that gives them.

    Raises:
        Unreachable: no provider has them; the message says what each one answered.
    """
    answers = []
    for provider in providers:
        if provider == endpoint.key:
            continue
        try:
            data = await _fetch_from(endpoint, digest, provider, max_bytes)
            if sha256(data) != digest:
                raise EncodingError("sent bytes that do not have the digest")
            return data
        except MantaError as error:
            answers.append(f"{provider.hex()[:8]}: {error}")
            logger.info("fetch failed provider=%s reason=%s", provider.hex()[:8], error)
    raise Unreachable(f"nobody gave {bytes(digest).hex()[:16]}... ({'; '.join(answers) or 'nobody to ask'})")


async def _fetch_from(endpoint: Endpoint, digest: bytes, provider: PublicKey, max_bytes: int) -> bytes:
    async def part(offset: int) -> _Give:
        answer = await endpoint.call(provider, "fetch", pack(_Ask(bytes(digest), offset)), timeout_s=_CALL_TIMEOUT_S)
        return unpack(_Give, answer, max_bytes=PART_BYTES + 64)

    first = await part(0)
    if not 0 <= first.total_bytes <= max_bytes:
        raise EncodingError(f"{first.total_bytes} bytes are more than the {max_bytes} that it can have")
    limit = asyncio.Semaphore(_PARTS_IN_FLIGHT)

    async def limited(offset: int) -> bytes:
        async with limit:
            return (await part(offset)).data

    offsets = range(PART_BYTES, first.total_bytes, PART_BYTES)
    return b"".join([first.data, *await together(*(limited(offset) for offset in offsets))])
