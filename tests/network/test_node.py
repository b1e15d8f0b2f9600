"""Real nodes on loopback: calls that are answered, refused, cut off or never answered; who only dials out; who is away."""

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network.node import Node, peer_name
from manta_swarm.network.rpc import MAX_MESSAGE_BYTES, Refused
from manta_swarm.network.streams import MIN_REQUEST_BYTES
from manta_swarm.protocol.errors import EncodingError, OwnFault, StorageError, Unreachable
from manta_swarm.protocol.signing import PublicKey
from tests.network.nodes import (
    LARGE,
    PEERS,
    SMALL,
    Holding,
    daemon_of,
    echo,
    nodes_of,
    own_processes,
    reached_at_last,
    remember_processes,
    start,
    until,
    wait_for_ever,
    with_nodes,
)
from tests.network.processes import are_gone

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def refuse(_caller: PublicKey, request: bytes) -> bytes:
    raise EncodingError(f"no {len(request)} bytes, \x1b[31mplease")


async def fail(_caller: PublicKey, _request: bytes) -> bytes:
    raise StorageError("/home/somebody/run/records: No space left on device")


async def break_down(_caller: PublicKey, _request: bytes) -> bytes:
    raise ZeroDivisionError("a bug in a handler")


def test_calls_are_answered_with_the_callers_key_known(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, c: Node) -> None:
        for node in (a, b, c):
            await node.serve("echo", echo)
        for caller, answerer in ((a, b), (b, a), (b, c), (c, b), (c, a)):  # b and c met through a
            for request in (b"", SMALL, LARGE, bytes(MAX_MESSAGE_BYTES - 32)):
                assert await caller.call(answerer.key, "echo", request, timeout_s=30) == caller.key + request

    with_nodes(tmp_path, 3, work)


def test_many_large_calls_at_once_are_all_answered(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        requests = [bytes([i]) * (MIN_REQUEST_BYTES + i) for i in range(60)]
        answers = await asyncio.gather(*(b.call(a.key, "echo", request, timeout_s=30) for request in requests))
        assert answers == [b.key + request for request in requests]

    with_nodes(tmp_path, 2, work)


def test_a_refusal_arrives_with_its_reason_fit_for_a_terminal(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("no", refuse)
        for request in (SMALL, LARGE):
            with pytest.raises(Refused) as caught:
                await b.call(a.key, "no", request, timeout_s=30)
            assert str(caught.value) == f"no {len(request)} bytes, ?[31mplease"
        with pytest.raises(ValueError, match="at most"):  # and what is too large is not sent
            await b.call(a.key, "no", bytes(MAX_MESSAGE_BYTES + 1), timeout_s=5)

    with_nodes(tmp_path, 2, work)


def test_what_failed_here_is_logged_here_once_and_a_bug_reaches_the_caller_as_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(a: Node, b: Node) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context.get("exception")))
        await a.serve("fail", fail)
        await a.serve("bug", break_down)
        for request in (SMALL, LARGE):
            with pytest.raises(Refused, match=r"^something failed on that computer, through no fault of this call$"):  # and no path
                await b.call(a.key, "fail", request, timeout_s=30)
        assert errors == []
        for request in (SMALL, LARGE):
            with pytest.raises(Unreachable):
                await b.call(a.key, "bug", request, timeout_s=10)
        assert [type(error) for error in errors] == [ZeroDivisionError]  # the large one; hivemind tells the small one's caller

    with_nodes(tmp_path, 2, work)
    assert [record.getMessage() for record in caplog.records if "call not answered" in record.getMessage()] == [
        "call not answered method=fail reason=/home/somebody/run/records: No space left on device"
    ]


def test_who_does_not_answer_is_unreachable_by_the_deadline(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        c = await start(tmp_path, 2, await a.addresses())
        for node in (a, c):
            await node.serve("echo", echo)
        await a.serve("never", wait_for_ever)
        for request in (SMALL, LARGE):
            assert await b.call(c.key, "echo", request, timeout_s=30)
            with pytest.raises(Unreachable, match=r"\(never\) did not answer within 0.3 s"):
                await b.call(a.key, "never", request, timeout_s=0.3)
            with pytest.raises(Unreachable):
                await b.call(PEERS[7].public_key, "echo", request, timeout_s=5)  # nobody
            with pytest.raises(Unreachable):
                await b.call(a.key, "unknown", request, timeout_s=5)
        await c.close()
        for request in (SMALL, LARGE):
            with pytest.raises(Unreachable):
                await b.call(c.key, "echo", request, timeout_s=5)
            assert await b.call(a.key, "echo", request, timeout_s=30) == b.key + request

    with_nodes(tmp_path, 2, work)


def test_a_node_whose_calls_were_cancelled_still_hears(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        for request in (SMALL, LARGE):
            for attempt in range(60):
                calls = [asyncio.create_task(b.call(a.key, "echo", request, timeout_s=30)) for _ in range(10)]
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=random.Random(attempt).random() * 0.02)
                for call in calls:  # some of their answers are just being read
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
            assert await b.call(a.key, "echo", request, timeout_s=10) == b.key + request

    with_nodes(tmp_path, 2, work)


async def test_a_node_closes_while_it_answers_and_is_answered(tmp_path: Path) -> None:
    async with nodes_of(tmp_path, 2) as (a, b):
        await a.serve("never", wait_for_ever)
        calls = [asyncio.create_task(b.call(a.key, "never", request, timeout_s=30)) for request in (SMALL, LARGE)]
        await asyncio.wait(calls, timeout=0.3)
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, Unreachable)


async def test_initial_peers_that_are_all_away_are_unreachable_and_one_that_is_there_is_enough(tmp_path: Path) -> None:
    away = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{peer_name(PEERS[5].public_key)}"
    remember_processes()
    with pytest.raises(Unreachable, match="no answer from /ip4"):
        await start(tmp_path, 0, [away])
    assert are_gone(own_processes())
    async with nodes_of(tmp_path, 1) as (node,):
        other = await start(tmp_path, 1, [away, *await node.addresses()])
        await node.serve("echo", echo)
        assert await other.call(node.key, "echo", SMALL, timeout_s=30)
        with pytest.raises(Unreachable):
            await other.meet_again(PEERS[5].public_key)
        await other.close()


async def test_a_node_that_was_away_is_met_again(tmp_path: Path) -> None:
    listen = f"/ip4/127.0.0.1/tcp/{free_port()}"
    first = await start(tmp_path, 0, listen=[listen])
    other = await start(tmp_path, 1, await first.addresses())
    try:
        await first.close()
        with pytest.raises(Unreachable):
            await other.meet_again(first.key)
        first = await start(tmp_path, 0, listen=[listen])
        await reached_at_last(lambda: other.meet_again(PEERS[0].public_key))  # libp2p does not try again for some seconds
        await first.serve("echo", echo)
        assert await other.call(first.key, "echo", LARGE, timeout_s=30)
        await other.publish("members", b"back", ttl_s=30)
        assert await first.lookup("members") == {other.key: b"back"}
    finally:
        await other.close()
        await first.close()


def test_a_handler_is_cancelled_when_its_caller_hangs_up(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, c: Node) -> None:
        holding = {SMALL: Holding(), LARGE: Holding()}
        calls = []
        for request, hold in holding.items():
            name = f"hold-{len(request)}"
            await a.serve(name, hold)
            of_b, of_c = [asyncio.create_task(node.call(a.key, name, request, timeout_s=30)) for node in (b, c)]
            await until(lambda hold=hold: len(hold.waiting) == 2)  # type: ignore[misc]
            of_b.cancel()
            await until(lambda hold=hold: hold.cancelled == [b.key])  # type: ignore[misc]
            calls.append(of_c)
        await c.close()
        await until(lambda: all(hold.cancelled == [b.key, c.key] for hold in holding.values()))
        for call in calls:
            with pytest.raises(Unreachable):
                await call
        assert len(a._unary.calls) == len(a._streams.calls) == 0
        await until(lambda: not a.p2p._client.control._handler_tasks)

    with_nodes(tmp_path, 3, work)


def test_a_call_ends_when_the_callers_own_daemon_does(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("never", wait_for_ever)
        calls = [asyncio.create_task(b.call(a.key, "never", request, timeout_s=50)) for request in (SMALL, LARGE)]
        await until(lambda: len(a._unary.calls) == len(a._streams.calls) == 1)
        watch = asyncio.create_task(b.watch_daemon())
        daemon_of(b).kill()
        for call in calls:
            with pytest.raises(Unreachable):
                await call
        for request in (SMALL, LARGE):
            with pytest.raises(Unreachable):
                await b.call(a.key, "never", request, timeout_s=50)
        with pytest.raises(OwnFault):
            await watch

    with_nodes(tmp_path, 2, work)


def test_a_node_that_only_dials_out_calls_and_is_called_over_its_own_connections(tmp_path: Path) -> None:
    async def work(a: Node) -> None:
        b, c = [await start(tmp_path, number, await a.addresses(), listen=()) for number in (1, 2)]
        try:
            for node in (a, b, c):
                await node.serve("echo", echo)
            assert await b.addresses() == []
            assert all("-noListenAddrs=1" in daemon_of(node).cmdline() for node in (b, c))
            for caller, answerer in ((b, a), (a, b), (a, c), (c, a)):
                for request in (SMALL, LARGE):
                    assert await caller.call(answerer.key, "echo", request, timeout_s=30) == caller.key + request
            with pytest.raises(Unreachable):
                await b.call(c.key, "echo", SMALL, timeout_s=30)
            await b.publish("members", b"of b", ttl_s=30)
            await a.publish("members", b"of a", ttl_s=30)
            for node in (a, b, c):
                assert await node.lookup("members") == {a.key: b"of a", b.key: b"of b"}
            assert len(b.dht.protocol.storage) == 0  # others ask it for nothing
            await b.meet_again(a.key)
        finally:
            await b.close()
            await c.close()

    with_nodes(tmp_path, 1, work)


async def test_a_node_that_only_dials_out_and_knows_nobody_is_alone(tmp_path: Path) -> None:
    node = await start(tmp_path, 0, listen=())
    try:
        assert await node.addresses() == []
        await node.publish("members", b"mine", ttl_s=30)
        assert await node.lookup("members") == {}
    finally:
        await node.close()
