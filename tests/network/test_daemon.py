"""The daemon of a node: addresses that cannot work, no relay for strangers, and nothing left behind, of it or of a hang-up."""

import asyncio
import contextlib
import gc
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from hivemind.p2p import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe
from hivemind.proto import p2pd_pb2

from manta_swarm.network.daemon import HangUps, ask
from manta_swarm.network.node import Node, peer_name, short_name
from manta_swarm.protocol.errors import MantaError, UserError
from manta_swarm.protocol.signing import PublicKey, peer_id
from tests import forked
from tests.network.nodes import LARGE, PEERS, SMALL, daemon_of, echo, nodes_of, own_processes, remember_processes, run, start, with_nodes
from tests.network.processes import DEADLINE_S, are_gone, wait_for

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


@pytest.mark.swarm
async def test_a_port_in_use_is_a_users_error(tmp_path: Path) -> None:
    async with nodes_of(tmp_path, 1) as (node,):
        taken = (await node.addresses())[0].split("/p2p/")[0]
        with pytest.raises(UserError, match="cannot listen on"):
            await start(tmp_path, 1, listen=[taken])
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match="--listen"):
            await start(tmp_path, 1, listen=[f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"])


@pytest.mark.parametrize("listen", ["nonsense", "/ip4/192.0.2.1/tcp/0"])
def test_an_address_that_cannot_be_listened_on_is_a_users_error(tmp_path: Path, listen: str) -> None:
    remember_processes()
    with pytest.raises(UserError, match="cannot listen on"):
        run(start(tmp_path, 0, listen=[listen]))
    assert own_processes() == []


async def test_an_address_that_is_no_peers_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no peer address"):
        await start(tmp_path, 0, ["/ip4/127.0.0.1/tcp/31000"])


def test_a_short_name_is_the_end_of_a_name() -> None:
    key = PEERS[3].public_key
    assert peer_name(key).endswith(short_name(key))


@pytest.mark.swarm
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_no_daemon_and_no_sockets(tmp_path: Path, number: signal.Signals) -> None:
    command, log = ("tests.network.lone_node", str(tmp_path)), tmp_path / "log"
    server = forked.server()
    if server is None:
        with log.open("wb") as output:
            child: Any = subprocess.Popen([sys.executable, "-m", *command], stdout=output)
    else:
        child = server.start(command, log, {})
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"), "its node is there")
    socket_dir = Path(log.read_text().strip())
    family = psutil.Process(child.pid).children(recursive=True)
    assert len(family) == 2  # the keeper and the daemon
    assert socket_dir.is_dir()
    child.send_signal(number)
    assert child.wait(DEADLINE_S) == -number
    wait_for(lambda: are_gone(family), "the daemon is gone")
    wait_for(lambda: not socket_dir.exists(), "the sockets are gone")


@pytest.mark.swarm
def test_ctrl_c_in_the_terminal_does_not_reach_the_daemon(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        keeper, daemon = own_processes()
        keeper.send_signal(signal.SIGINT)
        assert daemon == daemon_of(node) != keeper
        await node.serve("echo", echo)
        assert not are_gone([keeper])
        assert (await node.addresses())[0].endswith(peer_name(node.key))

    with_nodes(tmp_path, 1, work)


_RELAY = "/libp2p/circuit/relay/0.2.0/hop"


@pytest.mark.swarm
def test_no_node_relays_for_strangers(tmp_path: Path) -> None:
    async def work(a: Node) -> None:
        b = await start(tmp_path, 1, await a.addresses(), listen=())
        try:
            for caller, answerer in ((b, a), (a, b)):
                opening = p2pd_pb2.StreamOpenRequest(peer=peer_id(answerer.key), proto=[_RELAY])
                with pytest.raises(P2PDaemonError, match="protocols not supported"):
                    await ask(caller.p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=opening))
                assert {"-relay=0", "-autoRelay=0"} < set(daemon_of(caller).cmdline())
        finally:
            await b.close()

    with_nodes(tmp_path, 1, work)


async def slow(_caller: PublicKey, _request: bytes) -> bytes:
    await asyncio.sleep(random.random() * 0.05)
    return bytes(random.choice((10, 300_000, 2_000_000)))


async def hang_up_now_and_then(caller: Node, answerer: Node, rng: random.Random) -> None:
    request = rng.choice((SMALL, LARGE, bytes(1_500_000)))
    call = asyncio.create_task(caller.call(answerer.key, "slow", request, timeout_s=rng.choice((0.02, 0.05, 5.0))))
    await asyncio.sleep(rng.random() * 0.06)
    if rng.random() < 0.5:
        call.cancel()
    with contextlib.suppress(MantaError, asyncio.CancelledError):
        await call


async def use_dht(node: Node) -> None:
    await node.publish("members", b"of " + node.key[:4], ttl_s=30)
    await node.lookup("members")


@pytest.mark.swarm
def test_no_traceback_is_left_by_callers_that_hang_up_or_die(tmp_path: Path) -> None:
    rng = random.Random(0)
    left: list[dict[str, Any]] = []

    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: left.append(context))
        async with nodes_of(tmp_path, 1) as (a,):
            await a.serve("slow", slow)
            for turn in range(2):
                known = await a.addresses()
                others = [await start(tmp_path, 1 + number, known, listen=known[:0]) for number in range(2)]
                others.append(await start(tmp_path, 3, known))
                for node in others:
                    await node.serve("slow", slow)
                pairs = [(node, a) if rng.random() < 0.5 else (a, node) for node in others for _ in range(12)]
                work = [asyncio.create_task(hang_up_now_and_then(*pair, rng)) for pair in pairs]
                work += [asyncio.create_task(use_dht(node)) for node in (a, *others)]
                await asyncio.sleep(rng.random() * 0.2)
                if turn % 2:
                    daemon_of(others[-1]).kill()
                else:
                    await others[-1].close()
                await asyncio.wait(work, timeout=3)
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                for node in others:
                    await node.close()
                del others, work, pairs, node
                gc.collect()

    run(whole())
    gc.collect()
    assert left == []


async def fail(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Let a coroutine fail in a task that nobody awaits."""
    task = asyncio.create_task(coroutine)
    await asyncio.wait({task})
    del task
    gc.collect()


def read_daemon(data: bytes) -> Coroutine[Any, Any, None]:
    """Return hivemind's own coroutine that reads a message from a daemon that hangs up."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    reading: Coroutine[Any, Any, None] = read_pbmsg_safe(reader, p2pd_pb2.Response())
    return reading


async def read_daemon_ourselves() -> None:
    await read_daemon(b"")


async def abandon(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Let go of a task that still waits."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    del task, coroutine
    gc.collect()


async def wait_ourselves(event: asyncio.Event) -> None:
    await event.wait()


def test_only_what_hivemind_leaves_when_somebody_hangs_up_is_counted_and_not_told() -> None:
    told: list[str] = []
    gc.freeze()  # only what comes from here on is looked at

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: told.append(type(context.get("exception")).__name__))
        hang_ups = HangUps.watch()
        assert HangUps.watch() is hang_ups
        await fail(read_daemon(b""))
        await fail(read_daemon(b"\x05abc"))
        await abandon(asyncio.Event().wait())
        assert (hang_ups.counts, told) == ({"IncompleteReadError": 2, "abandoned wait": 1}, [])
        await fail(read_daemon(b"\xff" * 20))  # an error of another kind: the length is none
        await fail(read_daemon_ourselves())  # one of ours has a part in it
        await abandon(wait_ourselves(asyncio.Event()))
        assert told == ["ValueError", "IncompleteReadError", "NoneType"]
        assert hang_ups.counts.total() == 3

    run(whole())


def test_errors_are_handed_to_the_loop_where_nobody_else_wants_them(caplog: pytest.LogCaptureFixture) -> None:
    gc.freeze()

    async def whole() -> None:
        HangUps.watch()
        await fail(read_daemon_ourselves())

    run(whole())
    assert "was never retrieved" in caplog.text
