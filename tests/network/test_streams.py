"""Streams of real nodes: strangers that speak nonsense, or too slowly, or open all that one can open."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from hivemind.p2p import PeerID

import manta_swarm.network.streams
from manta_swarm.network.blobs import MAX_PIECE_BYTES, METHOD, AskPiece, Blob, BlobStore
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import MAX_MESSAGE_BYTES, Refused
from manta_swarm.network.streams import MAX_HELD_BYTES
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import PublicKey, peer_id
from manta_swarm.runtime.in_flight import InboundCalls
from tests.faults.strangers.libp2p import Connection, Stream, where
from tests.network.nodes import LARGE, SMALL, Holding, echo, reached_at_last, until, wait_for_ever, with_nodes

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


NONSENSE = ((2**31).to_bytes(4, "big"), (MAX_MESSAGE_BYTES + 2).to_bytes(4, "big") + b"x", b"\x00", b"\x00\x00\x01\x00half")


@pytest.mark.swarm
def test_a_stranger_that_speaks_nonsense_on_a_stream_is_hung_up_on(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        for sent in NONSENSE:
            _, reader, writer = await b.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream")
            writer.write(sent)
            if len(sent) < 5 or sent.endswith(b"half"):
                writer.write_eof()
            assert await reader.read() == b"", sent
            writer.close()
            assert await b.call(a.key, "echo", LARGE, timeout_s=30) == b.key + LARGE

    with_nodes(tmp_path, 2, work)


@pytest.mark.swarm
def test_who_hangs_up_in_the_middle_of_an_answer_keeps_its_other_calls(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        hold = Holding()
        await a.serve("hold", hold)
        await a.serve("echo", echo)
        other = asyncio.create_task(b.call(a.key, "hold", LARGE, timeout_s=30))
        await until(lambda: bool(hold.waiting))
        request = LARGE * 20  # more than the buffers on the way take
        for _ in range(20):
            _, reader, writer = await b.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream")
            writer.write(len(request).to_bytes(4, "big") + request)
            await reader.readexactly(5)
            writer.transport.abort()
            await until(lambda: len(a._streams.calls) == 1)
        hold.go_on.set()
        await other

    with_nodes(tmp_path, 2, work)


@pytest.mark.swarm
def test_one_peer_can_keep_only_so_many_streams_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.network.streams, "MAX_STREAMS", 2)

    async def work(a: Node, b: Node, c: Node) -> None:
        reached = asyncio.Semaphore(0)
        go_on = asyncio.Event()

        async def hold(_caller: PublicKey, _request: bytes) -> bytes:
            reached.release()
            await go_on.wait()
            return b"done"

        await a.serve("hold", hold)
        calls = [asyncio.create_task(b.call(a.key, "hold", LARGE, timeout_s=30)) for _ in range(2)]
        for _ in calls:
            await reached.acquire()
        with pytest.raises(Unreachable):
            await b.call(a.key, "hold", LARGE, timeout_s=30)
        other = asyncio.create_task(c.call(a.key, "hold", LARGE, timeout_s=30))
        await reached.acquire()
        go_on.set()
        assert await asyncio.gather(*calls, other) == [b"done"] * 3
        assert await reached_at_last(lambda: b.call(a.key, "hold", LARGE, timeout_s=30)) == b"done"

    with_nodes(tmp_path, 3, work)


@pytest.mark.swarm
def test_strangers_that_fill_all_streams_do_not_keep_another_out(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, c: Node, honest: Node) -> None:
        a._streams.calls = InboundCalls(total=4, each=3, max_bytes=MAX_HELD_BYTES)
        hold = Holding()
        await a.serve("hold", hold)
        await a.serve("echo", echo)
        calls = []
        for stranger in (b, b, b, c):
            calls.append(asyncio.create_task(stranger.call(a.key, "hold", LARGE, timeout_s=50)))
            await until(lambda: len(hold.waiting) == len(calls))
        with pytest.raises(Unreachable):
            await b.call(a.key, "hold", LARGE, timeout_s=50)
        assert await honest.call(a.key, "echo", LARGE, timeout_s=50) == honest.key + LARGE
        with pytest.raises(Unreachable):
            await calls[2]  # the newest of the one that has the most
        assert [call.done() for call in calls] == [False, False, True, False]
        assert await honest.call(a.key, "echo", SMALL, timeout_s=50)
        hold.go_on.set()
        assert await asyncio.gather(calls[0], calls[1], calls[3]) == [b"done"] * 3

    with_nodes(tmp_path, 4, work)


async def says_nothing(stream: Stream) -> None:
    stream.write(len(LARGE).to_bytes(4, "big"))


async def trickles(stream: Stream) -> None:
    stream.write(len(LARGE).to_bytes(4, "big"))
    while not stream.is_cut:
        stream.write(b"\0")
        await asyncio.sleep(0.05)


async def asks(stream: Stream) -> None:
    stream.write(len(SMALL).to_bytes(4, "big") + SMALL)


WAYS: tuple[tuple[str, Callable[[Stream], Awaitable[None]]], ...] = (
    ("echo", says_nothing),
    ("echo", trickles),
    ("large", asks),  # and does not read
    ("never", asks),
)


@pytest.mark.swarm
def test_strangers_whose_calls_do_not_go_on_give_way_to_another(tmp_path: Path) -> None:
    async def large(_caller: PublicKey, _request: bytes) -> bytes:
        return bytes(MAX_MESSAGE_BYTES)

    async def give_way(a: Node, honest: Node, method: str, way: Callable[[Stream], Awaitable[None]]) -> None:
        a._streams.calls = InboundCalls(total=4, each=2, max_bytes=MAX_HELD_BYTES, idle_s=(0.2, 1.0))
        address = (await a.addresses())[0]
        strangers = [await Connection.open(*where(address)) for _ in range(4)]
        ways = []
        for stranger in strangers:  # of keys that nobody has seen before
            ways.append(asyncio.create_task(way(await stranger.stream(f"manta.{method}.stream"))))
            await until(lambda: len(a._streams.calls) == len(ways))
        calls = [reached_at_last(lambda: honest.call(a.key, "echo", LARGE, timeout_s=30)) for _ in range(2)]
        assert await asyncio.gather(*calls) == [honest.key + LARGE] * 2
        assert a._streams.calls.num_cut >= 1
        if method == "large":  # their connections end, for the daemon would keep their streams as long
            await until(lambda: any(stranger.is_cut for stranger in strangers))
        for task, stranger in zip(ways, strangers, strict=True):
            task.cancel()
            stranger.close()

    async def work(a: Node, honest: Node) -> None:
        for name, handler in (("echo", echo), ("large", large), ("never", wait_for_ever)):
            await a.serve(name, handler)
        for method, way in WAYS:
            await give_way(a, honest, method, way)

    with_nodes(tmp_path, 2, work)


def takes_requests_slowly(a: Node) -> None:
    a.traffic.received.limit = len(LARGE) // 3


def sends_answers_slowly(a: Node) -> None:
    a.traffic.sent.limit = len(LARGE) // 3


def looks_for_addresses_slowly(a: Node) -> None:
    a.rates._addresses = {}
    a.rates._next_look = a.rates._clock.now_s() + 3.0


@pytest.mark.swarm
@pytest.mark.parametrize("holds_back", [takes_requests_slowly, sends_answers_slowly, looks_for_addresses_slowly])
def test_a_caller_that_this_node_holds_back_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds_back: Callable[[Node], None]
) -> None:
    monkeypatch.setattr("manta_swarm.runtime.in_flight.MIN_BYTES_PER_S", 10**9)  # no bytes make up for the time that is held back

    async def work(a: Node, slow: Node, other: Node) -> None:
        places = a._streams.calls = InboundCalls(total=1, each=1, max_bytes=MAX_HELD_BYTES, idle_s=(1.0, 1.0))
        await a.serve("echo", echo)
        holds_back(a)
        calling = asyncio.create_task(slow.call(a.key, "echo", LARGE, timeout_s=50))
        await until(lambda: len(places) > 0)
        while not calling.done():
            with contextlib.suppress(Unreachable):
                await other.call(a.key, "echo", LARGE, timeout_s=50)
            await asyncio.wait({calling}, timeout=0.05)
        assert await calling == slow.key + LARGE
        assert places.refused > 0
        assert places.num_cut == 0

    with_nodes(tmp_path, 3, work)


@pytest.mark.swarm
def test_many_keys_of_one_address_leave_places_to_others(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, c: Node, honest: Node) -> None:
        hosts = {b.key: ["192.0.2.1"], c.key: ["192.0.2.1"], honest.key: ["192.0.2.2"]}

        class Pretended:
            """Connections that come from where this test says."""

            async def connected(self) -> dict[PublicKey, list[str]]:
                return hosts

        a.rates._connections = Pretended()
        await a.rates._look()
        hold = Holding()
        await a.serve("hold", hold)
        await a.serve("echo", echo)
        for request in (SMALL, LARGE):
            places = a._streams.calls = a._unary.calls = InboundCalls(total=2, each=2, max_bytes=MAX_HELD_BYTES)
            hold.go_on.clear()
            calls = []
            for stranger in (b, c):
                calls.append(asyncio.create_task(stranger.call(a.key, "hold", request, timeout_s=50)))
                await until(lambda calls=calls: len(hold.waiting) == len(calls))  # type: ignore[misc]
            assert await honest.call(a.key, "echo", request, timeout_s=50) == honest.key + request
            assert places.num_cut == 1
            hold.go_on.set()
            assert (await asyncio.gather(*calls, return_exceptions=True)).count(b"done") == 1

    with_nodes(tmp_path, 4, work)


@pytest.mark.swarm
def test_pieces_of_a_blob_that_nobody_reads_give_way_to_one_that_is_read(tmp_path: Path) -> None:
    async def work(a: Node, honest: Node) -> None:
        a._streams.calls = InboundCalls(total=10, each=2, max_bytes=MAX_HELD_BYTES, idle_s=(0.2, 1.0))
        blob = Blob.of([bytes(MAX_PIECE_BYTES)])
        blob_store = BlobStore(max_bytes=MAX_PIECE_BYTES, max_sending_bytes=3 * MAX_PIECE_BYTES)
        blob_store.put(blob, "state")
        await blob_store.serve(a)
        request = pack(AskPiece(blob.root, 0))
        strangers = [await Connection.open(*where((await a.addresses())[0])) for _ in range(3)]
        for stranger in strangers:
            stream = await stranger.stream("manta.blob.stream")
            stream.write(len(request).to_bytes(4, "big") + request)
        await until(lambda: blob_store.bytes_sent == 3 * MAX_PIECE_BYTES)
        piece = b""
        while not piece:
            with contextlib.suppress(Refused):  # busy
                piece = await honest.call(a.key, METHOD, request, timeout_s=30, large_answer=True)
        assert piece == blob.pieces[0]
        assert a._streams.calls.num_cut == 1
        for stranger in strangers:
            stranger.close()

    with_nodes(tmp_path, 2, work)


@pytest.mark.swarm
def test_half_sent_requests_hold_no_more_than_their_bytes_and_give_way_to_others(tmp_path: Path) -> None:
    async def work(a: Node, stranger: Node, honest: Node) -> None:
        await a.serve("echo", echo)
        places = a._streams.calls = InboundCalls(total=20, each=15, max_bytes=5 * MAX_MESSAGE_BYTES)
        sent, streams = bytes(MAX_MESSAGE_BYTES * 9 // 20), []
        for _ in range(10):  # what they promise is more than there is room for, what they send is not
            streams.append(await stranger.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream"))
            streams[-1][2].write(MAX_MESSAGE_BYTES.to_bytes(4, "big") + sent)
        await until(lambda: places._num_bytes == 10 * len(sent))
        assert (len(places), places.num_cut) == (10, 0)
        request = bytes(MAX_MESSAGE_BYTES - 32)
        assert await honest.call(a.key, "echo", request, timeout_s=30) == honest.key + request
        assert 0 < places.num_cut < 5
        for _, _, writer in streams:
            writer.close()
        await until(lambda: len(places) == places._num_bytes == 0)

    with_nodes(tmp_path, 3, work)


@pytest.mark.swarm
def test_a_request_that_does_not_arrive_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.network.timeouts.STREAM_S", 0.2)

    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        _, reader, writer = await b.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream")
        writer.write((1000).to_bytes(4, "big") + b"some")
        assert await reader.read() == b""
        writer.close()
        assert len(a._streams.calls) == 0

    with_nodes(tmp_path, 2, work)


@pytest.mark.swarm
def test_an_answer_that_nobody_reads_is_given_up_with_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        assert await b.call(a.key, "echo", LARGE, timeout_s=30)
        this, request = psutil.Process(), bytes(MAX_MESSAGE_BYTES - 32)
        await until(lambda: len(a._streams.calls) == 0)
        monkeypatch.setattr("manta_swarm.network.timeouts.STREAM_S", 1.0)
        num_files, places = this.num_fds(), a._streams.calls
        streams = [await b.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream") for _ in range(4)]
        for _, _, writer in streams:
            writer.write(len(request).to_bytes(4, "big") + request)
            await writer.drain()
        await until(lambda: places._num_bytes > 7 * len(request))  # the answers wait
        await until(lambda: len(places) == 0)
        await until(lambda: this.num_fds() <= num_files + len(streams))  # the stranger's own ends
        for _, _, writer in streams:
            writer.transport.abort()

    with_nodes(tmp_path, 2, work)


def test_the_streams_leave_most_files_to_the_rest_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, streams in ((64, 16), (1024, 256), (1_048_576, 256), (manta_swarm.network.streams.resource.RLIM_INFINITY, 256), (2, 1)):
        monkeypatch.setattr(manta_swarm.network.streams.resource, "getrlimit", lambda _, files=files: (files, files))
        assert manta_swarm.network.streams.max_streams() == streams
