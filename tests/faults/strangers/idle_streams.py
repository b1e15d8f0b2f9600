"""Takes all places that a node has for streams: 260 keys with a stream each, of which none goes on.

Some keys send the length of a request and then nothing, some send a byte of it now and then, some ask for something large and read nothing
of the answer. Whoever is cut comes again at once, and whoever is refused a second later: by the same key, or by a new one where the
connection was cut.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator

from manta_swarm.network.blobs import AskPiece
from manta_swarm.network.log_client import MAX_FEED_BYTES, AfterRound, FeedAnswer
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.records import Round, open_entry
from tests.faults.strangers import Target
from tests.faults.strangers.libp2p import Connection, Stream, where

NUM_KEYS = 260
_AT_A_TIME = 20  # connections that are opened at once
_AGAIN_S = 1.0  # who was refused
_REFUSED_S = 5.0  # who is cut so soon
_TRICKLE_S = 2.0
_ASKED_S = 50.0  # until it asks again
_PROMISED = (65_536).to_bytes(4, "big")


async def silent(connection: Connection) -> None:
    """Send four bytes, and wait until the stream is cut."""
    with _resetting(await connection.stream("manta.body.stream")) as stream:
        stream.write(_PROMISED)
        await stream.reader.read()


async def trickling(connection: Connection) -> None:
    """Send a byte every two seconds."""
    with _resetting(await connection.stream("manta.body.stream")) as stream:
        stream.write(_PROMISED)
        while not stream.is_cut:
            await asyncio.sleep(_TRICKLE_S)
            stream.write(b"\0")


async def not_reading(connection: Connection) -> None:
    """Ask for the newest mean, and take no more of it than is on the way by itself."""
    news = await _news(connection)
    if news.receipt:
        record = open_entry(news.receipt[0].entry)
        assert isinstance(record, Round)
        with _resetting(await connection.stream("manta.blob.stream")) as stream:
            _ask(stream, pack(AskPiece(record.mean, 0)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASKED_S):
                    await stream.reader.read()


WAYS: tuple[Callable[[Connection], Awaitable[None]], ...] = (silent, trickling, not_reading)


async def attack(target: Target) -> None:
    """Keep all streams of a node busy until cancelled; a third of the keys goes each way."""
    host, port = where(target.address)
    opening, opened = asyncio.Semaphore(_AT_A_TIME), asyncio.Semaphore(0)

    async def one(way: Callable[[Connection], Awaitable[None]]) -> None:
        while True:
            async with opening:
                connection = await Connection.open(host, port)
            opened.release()
            try:
                await _keep_on(way, connection)
            finally:
                connection.close()

    async with asyncio.TaskGroup() as group:
        for number in range(NUM_KEYS):
            group.create_task(one(WAYS[number % len(WAYS)]))
        for _ in range(NUM_KEYS):
            await opened.acquire()
        print("attacks", flush=True)


async def _keep_on(way: Callable[[Connection], Awaitable[None]], connection: Connection) -> None:
    while not connection.is_cut:
        begun = time.monotonic()
        with contextlib.suppress(OSError, EOFError, EncodingError):
            await way(connection)
        await asyncio.sleep(_AGAIN_S if time.monotonic() < begun + _REFUSED_S else 0)


@contextlib.contextmanager
def _resetting(stream: Stream) -> Iterator[Stream]:
    try:
        yield stream
    finally:
        stream.reset()


def _ask(stream: Stream, request: bytes) -> None:
    stream.write(len(request).to_bytes(4, "big") + request)


async def _news(connection: Connection) -> FeedAnswer:
    """Return the newest commit, asked for by a stream.

    Raises:
        OSError, EOFError, EncodingError: nothing.
    """
    with _resetting(await connection.stream("manta.commit-after.stream")) as stream:
        _ask(stream, pack(AfterRound(0, 0)))
        answer = await stream.reader.readexactly(int.from_bytes(await stream.reader.readexactly(4), "big"))
        return unpack(FeedAnswer, answer[1:], max_bytes=MAX_FEED_BYTES)
