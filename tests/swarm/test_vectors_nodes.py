"""Vectors between real nodes: a page is an answer of a size that streams carry, and who is not ready is no liar."""

from pathlib import Path

import numpy as np
import pytest

from exact.residuals import vector_digest
from protocol.errors import Unreachable
from protocol.vectors import PAGE_BYTES
from swarm.node import Node
from swarm.rpc import Busy, Refused
from swarm.vectors import VectorsFolder, fetch_vector, serve_vectors
from tests.claimed import made
from tests.swarm.nodes import with_nodes

pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]


def test_a_vector_of_some_pages_goes_from_node_to_node(tmp_path: Path) -> None:
    signed = made(2)[0]
    values = np.arange(2 * PAGE_BYTES // 4 + 5, dtype=np.float32)
    digest = vector_digest(values)
    kept, got = (VectorsFolder(tmp_path / name, kept_rounds=5, max_bytes=1 << 26) for name in ("kept", "got"))
    is_ready: list[bool] = []

    async def missing(_claim: bytes) -> None:
        if not is_ready:
            raise Busy("not yet")

    async def work(a: Node, b: Node) -> None:
        await serve_vectors(a, kept, missing=missing)
        with pytest.raises(Unreachable, match="busy"):
            await fetch_vector(b, a.key, signed, digest, len(values), got)
        is_ready.append(True)
        with pytest.raises(Refused, match="no such vector is here"):
            await fetch_vector(b, a.key, signed, digest, len(values), got)
        kept.keep(3, signed.digest, digest, values)
        await fetch_vector(b, a.key, signed, digest, len(values), got)
        found = got.read(signed.digest, digest)
        assert found is not None
        assert found.tobytes() == values.tobytes()

    with_nodes(tmp_path, 2, work)
