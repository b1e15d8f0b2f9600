"""Streams of real nodes: strangers that speak nonsense, or too slowly, or open all that one can open."""

import asyncio
from pathlib import Path

import psutil
import pytest
from hivemind.p2p import PeerID

import swarm.streams
from protocol.errors import Unreachable
from protocol.signing import PublicKey, peer_id
from swarm.node import Node
from swarm.rpc import MAX_MESSAGE_BYTES
from swarm.shares import Shares
from swarm.streams import MAX_HELD_BYTES
from tests.swarm.nodes import LARGE, SMALL, Holding, echo, reached_at_last, until, with_nodes

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
def test_one_peer_can_keep_only_so_many_streams_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm.streams, "MAX_STREAMS", 2)

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
        a._streams.shares = Shares(total=4, each=3, max_bytes=MAX_HELD_BYTES)
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


@pytest.mark.swarm
def test_half_sent_requests_hold_no_more_than_their_bytes_and_give_way_to_others(tmp_path: Path) -> None:
    async def work(a: Node, stranger: Node, honest: Node) -> None:
        await a.serve("echo", echo)
        shares = a._streams.shares = Shares(total=20, each=15, max_bytes=5 * MAX_MESSAGE_BYTES)
        sent, streams = bytes(MAX_MESSAGE_BYTES * 9 // 20), []
        for _ in range(10):  # what they promise is more than there is room for, what they send is not
            streams.append(await stranger.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream"))
            streams[-1][2].write(MAX_MESSAGE_BYTES.to_bytes(4, "big") + sent)
        await until(lambda: shares._num_bytes == 10 * len(sent))
        assert (len(shares), shares.cut) == (10, 0)
        request = bytes(MAX_MESSAGE_BYTES - 32)
        assert await honest.call(a.key, "echo", request, timeout_s=30) == honest.key + request
        assert 0 < shares.cut < 5
        for _, _, writer in streams:
            writer.close()
        await until(lambda: len(shares) == shares._num_bytes == 0)

    with_nodes(tmp_path, 3, work)


@pytest.mark.swarm
def test_a_request_that_does_not_arrive_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.waits.STREAM_S", 0.2)

    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        _, reader, writer = await b.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream")
        writer.write((1000).to_bytes(4, "big") + b"some")
        assert await reader.read() == b""
        writer.close()
        assert len(a._streams.shares) == 0

    with_nodes(tmp_path, 2, work)


@pytest.mark.swarm
def test_an_answer_that_nobody_reads_is_given_up_with_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        assert await b.call(a.key, "echo", LARGE, timeout_s=30)
        this, request = psutil.Process(), bytes(MAX_MESSAGE_BYTES - 32)
        await until(lambda: len(a._streams.shares) == 0)
        monkeypatch.setattr("swarm.waits.STREAM_S", 1.0)
        num_files, shares = this.num_fds(), a._streams.shares
        streams = [await b.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream") for _ in range(4)]
        for _, _, writer in streams:
            writer.write(len(request).to_bytes(4, "big") + request)
            await writer.drain()
        await until(lambda: shares._num_bytes > 7 * len(request))  # the answers wait
        await until(lambda: len(shares) == 0)
        await until(lambda: this.num_fds() <= num_files + len(streams))  # the stranger's own ends
        for _, _, writer in streams:
            writer.transport.abort()

    with_nodes(tmp_path, 2, work)


def test_the_streams_leave_most_files_to_the_rest_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, streams in ((64, 16), (1024, 256), (1_048_576, 256), (swarm.streams.resource.RLIM_INFINITY, 256), (2, 1)):
        monkeypatch.setattr(swarm.streams.resource, "getrlimit", lambda _, files=files: (files, files))
        assert swarm.streams.max_streams() == streams
