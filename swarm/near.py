"""Vectors between mates: offered by one, fetched by the others, through shared memory on one host, else in parts over the network.

An offer is kept until the second one after it: a founder's mean is fetched while the next step is being worked on. Who may fetch it is said
where it is made; who is a mate, and shares this host, says ``swarm.near_mates``.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, Unreachable
from protocol.signing import PublicKey
from swarm.handles import ID_BYTES, Handle, Memory, read
from swarm.rpc import Endpoint, Refused
from swarm.tasks import together

METHOD = "near.part"
PART_VALUES = 2**19  # 2 MiB, as much as an answer may have: opening a stream is what costs
INLINE_VALUES = 2**20  # so many are worked on where they are, for some milliseconds; more in a thread
_KEPT = 2  # offers
_IN_FLIGHT = 4  # parts
_MADE_VALUES = 2**18
_VALUE_BYTES = 4
_MAX_REQUEST_BYTES = 64

Vector = NDArray[np.float32]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Offer:
    """A vector that the sender of a message hands out."""

    id: bytes
    count: int  # of its values
    handle: tuple[Handle, ...]  # where it is shared memory as well

    def __post_init__(self) -> None:
        if len(self.id) != ID_BYTES or not 0 <= self.count < 2**40 or len(self.handle) > 1:
            raise ValueError("an offer of no vector")


@dataclass(frozen=True, slots=True)
class AskPart:
    """Asks for a part of an offered vector."""

    id: bytes
    place: int


@dataclass(frozen=True, slots=True)
class _Offered:
    data: memoryview
    readers: frozenset[PublicKey]
    memory: Memory | None


class Vectors:
    """The vectors that this node offers its mates, and its way to theirs."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Offer nothing yet."""
        self._endpoint = endpoint
        self._offered: dict[bytes, _Offered] = {}  # the newest last

    async def start(self) -> None:
        """Answer those who fetch parts."""
        await self._endpoint.serve(METHOD, self._answer)

    def close(self) -> None:
        """Withdraw all offers."""
        while self._offered:
            self._withdraw_oldest()

    async def offer(self, vector: Vector, readers: Collection[PublicKey], *, is_shared: bool) -> Offer:
        """Let ``readers`` fetch the vector, which nobody may change from here on; ``is_shared``: one of them is on this host."""
        data, identity = np.ascontiguousarray(vector, dtype="<f4").data, secrets.token_bytes(ID_BYTES)
        memory = await off_loop(vector.size, lambda: Memory.of(identity, [data])) if is_shared else None
        kept = memory.view() if memory is not None else data.cast("B")
        self._keep(identity, _Offered(kept, frozenset(readers), memory))
        return Offer(identity, vector.size, () if memory is None else (memory.handle,))

    async def offer_made(
        self, count: int, make: Callable[[slice], Vector], readers: Collection[PublicKey], *, is_shared: bool
    ) -> tuple[Offer, Vector]:
        """Let ``readers`` fetch a vector of ``count`` values, and return it; ``make`` makes it part by part, while they lie in a cache.

        Raises:
            ValueError: from ``make``.
        """
        identity, places = secrets.token_bytes(ID_BYTES), range(0, count, _MADE_VALUES)

        def parts() -> Iterator[Vector]:
            for start in places:
                yield np.ascontiguousarray(make(slice(start, min(start + _MADE_VALUES, count))), dtype="<f4")

        memory: Memory | None = None
        if is_shared:
            memory = await off_loop(count, lambda: Memory.of(identity, (part.data for part in parts())))
        if memory is not None:
            kept, vector = memory.view(), np.frombuffer(memory.view(), "<f4")
        else:
            vector = np.empty(count, "<f4")
            await off_loop(count, lambda: np.concatenate(list(parts()), out=vector))
            kept = vector.copy().data.cast("B")  # the other one is the caller's
        self._keep(identity, _Offered(kept, frozenset(readers), memory))
        return Offer(identity, count, () if memory is None else (memory.handle,)), vector.astype(np.float32, copy=False)

    async def fetch(self, owner: PublicKey, offer: Offer, count: int, *, timeout_s: float) -> Vector:
        """Return the vector of ``count`` values that ``owner`` offers.

        Raises:
            EncodingError: it is no such vector.
            Unreachable: it cannot be had, or not in time.
        """
        if offer.count != count:
            raise EncodingError(f"a vector of {offer.count} values where {count} are expected")
        if offer.handle:
            try:
                data = read(offer.handle[0], offer.id, count * _VALUE_BYTES)
            except (EncodingError, Unreachable):
                pass  # over the network it goes as well
            else:
                return np.frombuffer(data, "<f4").astype(np.float32, copy=False)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fetch_parts(owner, offer, timeout_s)
        except TimeoutError as error:
            raise Unreachable(f"a vector of {owner.hex()[:8]} was not here within {timeout_s:g} s") from error
        except Refused as error:
            raise Unreachable(f"{owner.hex()[:8]} has given a vector up: {error}") from error

    async def _fetch_parts(self, owner: PublicKey, offer: Offer, timeout_s: float) -> Vector:
        vector = np.empty(offer.count, "<f4")
        places = iter(range(-(-offer.count // PART_VALUES)))

        async def worker() -> None:
            for place in places:
                request = pack(AskPart(offer.id, place))
                data = await self._endpoint.call(owner, METHOD, request, timeout_s=timeout_s, large_answer=True)
                part = vector[place * PART_VALUES : (place + 1) * PART_VALUES]
                if len(data) != part.nbytes:
                    raise EncodingError(f"a part of a vector has {len(data)} bytes, not {part.nbytes}")
                part[:] = np.frombuffer(data, "<f4")

        await together(*(worker() for _ in range(_IN_FLIGHT)))
        return vector.astype(np.float32, copy=False)

    async def _answer(self, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskPart, request, max_bytes=_MAX_REQUEST_BYTES)
        offered = self._offered.get(ask.id)
        if offered is None or caller not in offered.readers:
            raise Unreachable("not offered")
        size = PART_VALUES * _VALUE_BYTES
        if not 0 <= ask.place * size < len(offered.data):
            raise EncodingError(f"a vector of {len(offered.data)} bytes has no part {ask.place}")
        return bytes(offered.data[ask.place * size : (ask.place + 1) * size])

    def _keep(self, identity: bytes, offered: _Offered) -> None:
        self._offered[identity] = offered
        if len(self._offered) > _KEPT:
            self._withdraw_oldest()

    def _withdraw_oldest(self) -> None:
        offered = self._offered.pop(next(iter(self._offered)))
        if offered.memory is not None:
            offered.memory.close()


async def off_loop(num_values: int, work: Callable[[], Result]) -> Result:
    """Return what ``work`` on so many values returns; in a thread if that takes long enough for others to wait."""
    return work() if num_values <= INLINE_VALUES else await asyncio.to_thread(work)
