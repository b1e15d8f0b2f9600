"""Real nodes on loopback: calls, the DHT, matchmaking, addresses that cannot work, and nothing left behind."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

import swarm.streams
from protocol.encoding import pack
from protocol.errors import EncodingError, Unreachable, UserError
from protocol.records import Claim, SignedClaim
from protocol.signing import PublicKey, peer_id, sha256
from swarm.matchmaking import Group, Matchmaker
from swarm.node import Node, parse_address, peer_name, short_name
from swarm.rpc import MAX_MESSAGE_BYTES, Refused
from swarm.streams import MIN_REQUEST_BYTES
from swarm.validator import OwnedRecords
from tests.swarm.members import DEADLINE_S, PEERS, claim_of, run
from tests.swarm.processes import LISTEN, are_gone, wait_for

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]

RUN = sha256(b"run")
Result = TypeVar("Result")
SMALL, LARGE = b"request", b"request" * (MIN_REQUEST_BYTES // 7 + 1)


async def start(directory: Path, number: int, initial_peers: list[str] | None = None, **settings: Any) -> Node:
    path = directory / f"{number}.key"
    path.write_bytes(PEERS[number].to_libp2p())
    return await Node.start(PEERS[number], path, **{"listen": [LISTEN], "initial_peers": initial_peers or [], **settings})


_EARLIER: set[int] = set()


@pytest.fixture(autouse=True)
def _earlier_processes() -> None:
    """Remember what other tests left running in this process: multiprocessing's tracker ends with it, not before."""
    _EARLIER.clear()
    _EARLIER.update(process.pid for process in psutil.Process().children(recursive=True))


def own_processes() -> list[psutil.Process]:
    """Return the processes that were started since the test began, and theirs."""
    return [process for process in psutil.Process().children(recursive=True) if process.pid not in _EARLIER]


@asynccontextmanager
async def nodes_of(directory: Path, count: int) -> AsyncIterator[list[Node]]:
    """Start nodes that know each other; close them and see that nothing is left."""
    nodes: list[Node] = []
    try:
        for number in range(count):
            nodes.append(await start(directory, number, (await nodes[0].addresses())[:1] if nodes else []))
        yield nodes
    finally:
        processes = own_processes()
        for node in nodes:
            await node.close()
        assert are_gone(processes)
        assert not any(os.path.exists(node._socket_dir) for node in nodes)  # noqa: ASYNC240 - nothing else runs here


def with_nodes(directory: Path, count: int, work: Callable[..., Awaitable[None]]) -> None:
    async def whole() -> None:
        async with nodes_of(directory, count) as nodes:
            await work(*nodes)

    run(whole())


async def echo(caller: PublicKey, request: bytes) -> bytes:
    return caller + request


async def refuse(_caller: PublicKey, request: bytes) -> bytes:
    raise EncodingError(f"no {len(request)} bytes, \x1b[31mplease")


async def wait_for_ever(_caller: PublicKey, _request: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


async def break_down(_caller: PublicKey, _request: bytes) -> bytes:
    raise ZeroDivisionError("a bug in a handler")


async def reached_at_last(work: Callable[[], Awaitable[Result]]) -> Result:
    """Return what ``work`` returns once it is not Unreachable any more."""
    async with asyncio.timeout(DEADLINE_S / 2):
        while True:
            try:
                return await work()
            except Unreachable:
                await asyncio.sleep(0.1)


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


@pytest.mark.parametrize("request_bytes", [SMALL, LARGE], ids=["small", "large"])
def test_a_refusal_arrives_with_its_reason_fit_for_a_terminal(tmp_path: Path, request_bytes: bytes) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("no", refuse)
        with pytest.raises(Refused) as caught:
            await b.call(a.key, "no", request_bytes, timeout_s=30)
        assert str(caught.value) == f"no {len(request_bytes)} bytes, ?[31mplease"

    with_nodes(tmp_path, 2, work)


@pytest.mark.parametrize("request_bytes", [SMALL, LARGE], ids=["small", "large"])
def test_who_does_not_answer_is_unreachable_by_the_deadline(tmp_path: Path, request_bytes: bytes) -> None:
    async def work(a: Node, b: Node) -> None:
        c = await start(tmp_path, 2, await a.addresses())
        await c.serve("echo", echo)
        assert await b.call(c.key, "echo", request_bytes, timeout_s=30)
        await a.serve("never", wait_for_ever)
        await a.serve("echo", echo)
        with pytest.raises(Unreachable, match=r"\(never\) did not answer within 0.3 s"):
            await b.call(a.key, "never", request_bytes, timeout_s=0.3)
        with pytest.raises(Unreachable):
            await b.call(PEERS[7].public_key, "echo", request_bytes, timeout_s=5)  # nobody
        with pytest.raises(Unreachable):
            await b.call(a.key, "unknown", request_bytes, timeout_s=5)
        await c.close()
        with pytest.raises(Unreachable):
            await b.call(c.key, "echo", request_bytes, timeout_s=5)
        assert await b.call(a.key, "echo", request_bytes, timeout_s=30) == b.key + request_bytes

    with_nodes(tmp_path, 2, work)


def test_a_bug_in_a_handler_reaches_the_caller_as_no_answer(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context.get("exception")))
        await a.serve("bug", break_down)
        for request in (SMALL, LARGE):
            with pytest.raises(Unreachable):
                await b.call(a.key, "bug", request, timeout_s=10)
        assert [type(error) for error in errors] == [ZeroDivisionError]  # the large one; hivemind tells the small one's caller

    with_nodes(tmp_path, 2, work)


def test_a_request_that_is_too_large_is_not_sent(tmp_path: Path) -> None:
    async def work(a: Node, b: Node) -> None:
        with pytest.raises(ValueError, match="at most"):
            await b.call(a.key, "echo", bytes(MAX_MESSAGE_BYTES + 1), timeout_s=5)

    with_nodes(tmp_path, 2, work)


@pytest.mark.parametrize(
    "sent", [(2**31).to_bytes(4, "big"), (MAX_MESSAGE_BYTES + 2).to_bytes(4, "big") + b"x", b"\x00", b"\x00\x00\x01\x00half"]
)
def test_a_stranger_that_speaks_nonsense_on_a_stream_is_hung_up_on(tmp_path: Path, sent: bytes) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        _, reader, writer = await b.p2p.call_binary_stream_handler(PeerID(peer_id(a.key)), "manta.echo.stream")
        writer.write(sent)
        if len(sent) < 5 or sent.endswith(b"half"):
            writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert await b.call(a.key, "echo", LARGE, timeout_s=30) == b.key + LARGE

    with_nodes(tmp_path, 2, work)


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


@pytest.mark.parametrize("request_bytes", [SMALL, LARGE], ids=["small", "large"])
def test_a_node_whose_calls_were_cancelled_still_hears(tmp_path: Path, request_bytes: bytes) -> None:
    async def work(a: Node, b: Node) -> None:
        await a.serve("echo", echo)
        for attempt in range(60):
            calls = [asyncio.create_task(b.call(a.key, "echo", request_bytes, timeout_s=30)) for _ in range(10)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=random.Random(attempt).random() * 0.02)
            for call in calls:  # some of their answers are just being read
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert await b.call(a.key, "echo", request_bytes, timeout_s=10) == b.key + request_bytes

    with_nodes(tmp_path, 2, work)


def test_a_node_closes_while_it_answers_and_is_answered(tmp_path: Path) -> None:
    async def whole() -> None:
        async with nodes_of(tmp_path, 2) as (a, b):
            await a.serve("never", wait_for_ever)
            calls = [asyncio.create_task(b.call(a.key, "never", request, timeout_s=30)) for request in (SMALL, LARGE)]
            await asyncio.wait(calls, timeout=0.3)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, Unreachable)

    run(whole())


def test_records_are_found_by_all_under_their_owners_key(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, c: Node) -> None:
        assert await a.lookup("members") == {}
        for node in (a, b, c):
            await node.publish("members", b"of " + node.key[:4], ttl_s=30)
        await b.publish("members", b"newer", ttl_s=40)
        for node in (a, b, c):
            assert await node.lookup("members") == {a.key: b"of " + a.key[:4], b.key: b"newer", c.key: b"of " + c.key[:4]}
        with pytest.raises(ValueError, match="at most"):
            await a.publish("members", bytes(3000), ttl_s=30)

    with_nodes(tmp_path, 3, work)


class _Forger(OwnedRecords):
    """Signs anything and finds everything valid."""

    def validate(self, record: DHTRecord) -> bool:
        return True

    def sign_value(self, record: DHTRecord) -> bytes:
        self._own_subkey = record.subkey
        return super().sign_value(record)


def test_a_record_forged_in_anothers_name_is_refused_by_every_honest_node(tmp_path: Path) -> None:
    async def work(a: Node, b: Node, liar: Node) -> None:
        await a.publish("members", b"of a", ttl_s=20)
        liar.dht.protocol.record_validator = _Forger(PEERS[2])
        until = get_dht_time() + 600
        await liar.dht.store("members", b"forged", until, subkey=peer_id(a.key))
        await liar.dht.store("members", b"plain", until)
        await liar.dht.store("members", b"nobody's", until, subkey=b"name")
        await liar.dht.store("others", b"forged", until, subkey=peer_id(a.key))
        await liar.publish("members", b"of the liar", ttl_s=20)
        for node in (a, b):
            found = await node.lookup("members")
            assert found[a.key] == b"of a"
            assert set(found) <= {a.key, liar.key}
            assert a.key not in await node.lookup("others")
        refused = [node.dht.protocol.record_validator.refused for node in (a, b)]
        assert sum(refused) >= 3

    with_nodes(tmp_path, 3, work)


def accept(_claim: Claim) -> None:
    pass


async def matchmakers_of(nodes: tuple[Node, ...], check: Callable[[Claim], None] = accept) -> list[Matchmaker]:
    made = [Matchmaker(node, RUN, check) for node in nodes]
    for matchmaker in made:
        await matchmaker.start()
    return made


def find(matchmaker: Matchmaker, number: int, size: int, *, commit: bytes = RUN, timeout_s: float = 30.0) -> Awaitable[Group]:
    claim = claim_of(PEERS[number], RUN)
    return matchmaker.find_group(claim, 1, commit, group_size=size, min_group_size=size, timeout_s=timeout_s)


def test_three_peers_form_one_group_as_soon_as_they_are_three(tmp_path: Path) -> None:
    async def work(*nodes: Node) -> None:
        matchmakers = await matchmakers_of(nodes)
        for _ in range(2):
            groups = await asyncio.gather(*(find(matchmaker, number, 3) for number, matchmaker in enumerate(matchmakers)))
            assert len({group.attempt for group in groups}) == 1
            assert len({group.members for group in groups}) == 1
            assert dict(groups[0].members) == {node.key: claim_of(PEERS[number], RUN) for number, node in enumerate(nodes)}

    with_nodes(tmp_path, 3, work)


def test_a_peer_alone_is_its_own_group_without_asking(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        (matchmaker,) = await matchmakers_of((node,))
        groups = [await find(matchmaker, 0, 1) for _ in range(2)]
        assert groups[0].members == ((node.key, claim_of(PEERS[0], RUN)),)
        assert groups[0].attempt != groups[1].attempt

    with_nodes(tmp_path, 1, work)


async def code_of_join(asker: Node, leader: Node, claim: SignedClaim | bytes) -> int:
    """Return what a leader answers to a join request made by hand."""
    stub = Matchmaker.get_stub(asker.p2p, PeerID(peer_id(leader.key)), namespace=f"manta-{RUN.hex()[:16]}")
    gather = claim if isinstance(claim, bytes) else pack(claim)
    request = averaging_pb2.JoinRequest(
        schema_hash=RUN, expiration=get_dht_time() + 20, client_mode=False, gather=gather, group_key=f"manta-{RUN.hex()[:16]}-1"
    )
    stream = await stub.rpc_join_group(request)
    async for message in stream:
        await stream.aclose()
        return int(message.code)
    raise AssertionError("the leader said nothing")


def test_who_asks_to_join_with_anothers_claim_or_none_is_refused(tmp_path: Path) -> None:
    async def work(leader: Node, asker: Node) -> None:
        def check(claim: Claim) -> None:
            if claim.samples > 100:
                raise EncodingError("more samples than this run has")

        await matchmakers_of((leader,), check)
        own = claim_of(PEERS[1], RUN)
        refused: list[SignedClaim | bytes] = [
            claim_of(PEERS[2], RUN),
            replace(own, signature=bytes(64)),
            claim_of(PEERS[1], RUN, samples=101),
            b"garbage",
            b"",
        ]
        for claim in refused:
            assert await code_of_join(asker, leader, claim) == averaging_pb2.PROTOCOL_VIOLATION
        assert await code_of_join(asker, leader, own) != averaging_pb2.PROTOCOL_VIOLATION  # but it leads no group now

    with_nodes(tmp_path, 2, work)


def test_a_port_in_use_is_a_users_error(tmp_path: Path) -> None:
    async def whole() -> None:
        async with nodes_of(tmp_path, 1) as (node,):
            taken = (await node.addresses())[0].split("/p2p/")[0]
            with pytest.raises(UserError, match="cannot listen on"):
                await start(tmp_path, 1, listen=[taken])
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(UserError, match="--listen"):
                await start(tmp_path, 1, listen=[f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"])

    run(whole())


@pytest.mark.parametrize(
    "listen",
    [
        "nonsense",
        "",
        "/ip4/127.0.0.1",
        "/tcp/1",
        "/ip4/127.0.0.1/udp/0",
        "/ip4/1.2.3/tcp/0",
        "/ip4/192.0.2.1/tcp/0",
        "/ip4/127.0.0.1/tcp/99999",
    ],
)
def test_an_address_that_cannot_be_listened_on_is_a_users_error(tmp_path: Path, listen: str) -> None:
    with pytest.raises(UserError, match="cannot listen on"):
        run(start(tmp_path, 0, listen=[listen]))
    assert own_processes() == []


_RSA_PEER = "QmbLHAnMoJPWSCR5Zhtx6BHJX9KiKNN6tpvbUcqanj75Nb"


@pytest.mark.parametrize(
    "maddr",
    [
        "nonsense",
        "",
        "/ip4/127.0.0.1/tcp/31000",
        f"/ip4/127.0.0.1/tcp/31000/p2p/{_RSA_PEER}",
        "/ip4/127.0.0.1/tcp/31000/p2p/12D3KooW",
        f"/p2p/{peer_name(PEERS[0].public_key)}",
    ],
)
def test_an_address_that_is_no_peers_is_a_users_error(tmp_path: Path, maddr: str) -> None:
    with pytest.raises(UserError, match="is no peer address"):
        parse_address(maddr)
    with pytest.raises(UserError, match="is no peer address"):
        run(start(tmp_path, 0, [maddr]))


def test_an_address_names_its_key() -> None:
    key = PEERS[3].public_key
    maddr = f"/ip4/203.0.113.7/tcp/31000/p2p/{peer_name(key)}"
    assert parse_address(maddr) == (key, maddr)
    assert peer_name(key).endswith(short_name(key))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_initial_peers_that_are_all_away_are_unreachable_and_one_that_is_there_is_enough(tmp_path: Path) -> None:
    async def whole() -> None:
        away = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{peer_name(PEERS[5].public_key)}"
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

    run(whole())


def test_a_node_that_was_away_is_met_again(tmp_path: Path) -> None:
    async def whole() -> None:
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

    run(whole())


_CHILD = """
import asyncio, sys
from pathlib import Path
from protocol.signing import Identity
from swarm.node import Node

async def main():
    identity, path = Identity(b"c" * 32), Path(sys.argv[1])
    path.write_bytes(identity.to_libp2p())
    node = await Node.start(identity, path, listen=["/ip4/127.0.0.1/tcp/0"])
    print(node._socket_dir, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_no_daemon_and_no_sockets(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path / "key")], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        socket_dir = Path(child.stdout.readline().strip())
        family = psutil.Process(child.pid).children(recursive=True)
        assert len(family) == 2  # the keeper and the daemon
        assert socket_dir.is_dir()
        child.send_signal(number)
    wait_for(lambda: are_gone(family), "the daemon is gone")
    wait_for(lambda: not socket_dir.exists(), "the sockets are gone")


def test_ctrl_c_in_the_terminal_does_not_reach_the_daemon(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        keeper, daemon = own_processes()
        keeper.send_signal(signal.SIGINT)
        assert daemon.pid != keeper.pid
        await node.serve("echo", echo)
        assert not are_gone([keeper])
        assert (await node.addresses())[0].endswith(peer_name(node.key))

    with_nodes(tmp_path, 1, work)
