"""A call back finds out who answers: the node that was meant, another one, something else, or nobody."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.network.connections import tcp_port_of
from manta_swarm.network.dial_back import is_there, signer_of
from manta_swarm.network.node import Node
from manta_swarm.protocol.errors import EncodingError
from tests.network.nodes import PEERS, with_nodes


async def _port(node: Node) -> int:
    port = tcp_port_of((await node.addresses())[0])
    assert port is not None
    return port


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_a_node_answers_a_call_back_under_its_own_key_and_no_other(tmp_path: Path) -> None:
    async def look(node: Node) -> None:
        port = await _port(node)
        assert await is_there(PEERS[0].public_key, "127.0.0.1", port)
        assert not await is_there(PEERS[1].public_key, "127.0.0.1", port)

    with_nodes(tmp_path, 1, look)


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_it_answers_while_it_is_connected_as_well(tmp_path: Path) -> None:
    async def look(one: Node, other: Node) -> None:
        assert await is_there(other.key, "127.0.0.1", await _port(other))
        assert await is_there(one.key, "127.0.0.1", await _port(one))

    with_nodes(tmp_path, 2, look)


@pytest.mark.parametrize("said", [b"", b"\x00", b"\xff" * 200, b"HTTP/1.1 400\r\n\r\n", b"\x13/multistream/1.0.0\n\x03na\n"])
async def test_something_else_that_listens_is_nobody(said: bytes) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert not await is_there(PEERS[0].public_key, "127.0.0.1", server.sockets[0].getsockname()[1])


async def test_a_port_that_nobody_listens_on_is_nobody() -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    assert not await is_there(PEERS[0].public_key, "127.0.0.1", port)


@pytest.mark.parametrize("der", [b"", b"0\x80", b"\x30\x03\x02\x01\x00"])
def test_what_is_no_certificate_has_no_signer(der: bytes) -> None:
    with pytest.raises(EncodingError):
        signer_of(der)
