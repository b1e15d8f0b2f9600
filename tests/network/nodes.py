"""Real nodes on loopback for tests: started under the identities of ``PEERS``, closed at the end, and nothing of them left."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from manta_swarm.network.node import Node
from manta_swarm.network.streams import MIN_REQUEST_BYTES
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import PublicKey
from tests.network.members import DEADLINE_S, PEERS, run
from tests.network.processes import LISTEN, are_gone

SMALL, LARGE = b"request", b"request" * (MIN_REQUEST_BYTES // 7 + 1)

Result = TypeVar("Result")
_EARLIER: set[int] = set()


async def start(directory: Path, number: int, initial_peers: list[str] | None = None, **settings: Any) -> Node:
    """Start the node of one of ``PEERS``."""
    path = directory / f"{number}.key"
    path.write_bytes(PEERS[number].to_libp2p())
    return await Node.start(PEERS[number], path, **{"listen": [LISTEN], "initial_peers": initial_peers or [], **settings})


def remember_processes() -> None:
    """Take what runs by now for other tests': multiprocessing's tracker ends with this process, not before."""
    _EARLIER.clear()
    _EARLIER.update(process.pid for process in psutil.Process().children(recursive=True))


def own_processes() -> list[psutil.Process]:
    """Return the processes that were started since the test began, and theirs."""
    return [process for process in psutil.Process().children(recursive=True) if process.pid not in _EARLIER]


@asynccontextmanager
async def nodes_of(directory: Path, count: int) -> AsyncIterator[list[Node]]:
    """Start nodes that know each other; close them and see that nothing is left."""
    remember_processes()
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
    """Run ``work`` with so many nodes."""

    async def whole() -> None:
        async with nodes_of(directory, count) as nodes:
            await work(*nodes)

    run(whole())


def daemon_of(node: Node) -> psutil.Process:
    """Return the process of a node's daemon."""
    (daemon,) = psutil.Process(node.p2p._child.pid).children()
    return daemon


async def echo(caller: PublicKey, request: bytes) -> bytes:
    """Answer with the caller's key and its request."""
    return caller + request


async def wait_for_ever(_caller: PublicKey, _request: bytes) -> bytes:
    """Never answer."""
    await asyncio.Event().wait()
    return b""


async def reached_at_last(work: Callable[[], Awaitable[Result]]) -> Result:
    """Return what ``work`` returns once it is not Unreachable any more."""
    async with asyncio.timeout(DEADLINE_S / 2):
        while True:
            try:
                return await work()
            except Unreachable:
                await asyncio.sleep(0.1)


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds."""
    async with asyncio.timeout(DEADLINE_S / 2):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


class Holding:
    """A handler that answers when it is told to, and counts who waits."""

    def __init__(self) -> None:
        self.waiting: list[PublicKey] = []
        self.cancelled: list[PublicKey] = []
        self.go_on = asyncio.Event()

    async def __call__(self, caller: PublicKey, _request: bytes) -> bytes:
        self.waiting.append(caller)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(caller)
            raise
        finally:
            self.waiting.remove(caller)
        return b"done"
