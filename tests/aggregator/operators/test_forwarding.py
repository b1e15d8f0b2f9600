"""What a fellow passes on to the writer: answered by whoever writes, and not waited for where the writer is another by now."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from aggregator.operators.forwarding import Switch
from exact.residuals import vector_digest
from protocol.errors import Unreachable
from protocol.signing import PublicKey
from swarm.memory import MemoryNetwork
from swarm.rpc import Handler
from swarm.vectors import VectorsFolder, fetch_vector, serve_vectors
from tests.claimed import made
from tests.contributions import PEERS

FELLOW, WRITER, PEER = (each.public_key for each in PEERS[:3])


def among_operators(handler: Handler) -> Handler:
    return handler


async def switch_of(network: MemoryNetwork, key: PublicKey) -> Switch:
    """Return an operator's switch, which passes on to the writer."""
    switch = Switch(network.endpoint(key), lambda: WRITER)
    await switch.start(among_operators)
    return switch


def test_what_is_passed_on_to_a_writer_that_stands_still_is_let_go_once_another_writes() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        fellow, writer, peer = await switch_of(network, FELLOW), await switch_of(network, WRITER), network.endpoint(PEER)
        has_come = asyncio.Event()

        async def stand_still(caller: PublicKey, request: bytes) -> bytes:
            assert (caller, request) == (PEER, b"a header")
            has_come.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def answer(_caller: PublicKey, request: bytes) -> bytes:
            return b"taken: " + request

        await writer.serve("header", stand_still)
        call = asyncio.create_task(peer.call(FELLOW, "header", b"a header", timeout_s=60))
        await has_come.wait()
        fellow.another_writes()
        with pytest.raises(Unreachable, match="busy"):
            await call
        await writer.serve("header", answer)
        assert await peer.call(FELLOW, "header", b"a header", timeout_s=60) == b"taken: a header"
        await fellow.serve("header", answer)  # it writes itself now
        writer.forget()
        assert await peer.call(FELLOW, "header", b"another", timeout_s=60) == b"taken: another"

    asyncio.run(scene())


def test_vectors_that_the_writer_keeps_are_had_from_any_operator(tmp_path: Path) -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        await switch_of(network, FELLOW)
        writer, peer = await switch_of(network, WRITER), network.endpoint(PEER)
        kept, got = (VectorsFolder(tmp_path / name, kept_rounds=5, max_bytes=1 << 20) for name in ("kept", "got"))
        await serve_vectors(writer, kept)
        signed, values = made(2)[0], np.arange(100, dtype=np.float32)
        digest = vector_digest(values)
        kept.keep(3, signed.digest, digest, values)
        await fetch_vector(peer, FELLOW, signed, digest, len(values), got)
        assert got.has(signed.digest, digest)

    asyncio.run(scene())
