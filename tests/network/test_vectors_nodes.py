"""Vectors between real nodes: a page is an answer of a size that streams carry."""

from pathlib import Path

import numpy as np
import pytest

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.node import Node
from manta_swarm.network.vectors import VectorsFolder, serve_vectors
from manta_swarm.protocol.auditing import PAGE_BYTES, VECTOR, AskVector
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.signing import sha256
from tests.network.nodes import with_nodes

pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]


def test_a_vector_of_some_pages_goes_from_node_to_node(tmp_path: Path) -> None:
    base, values = sha256(b"base"), np.arange(2 * PAGE_BYTES // 4 + 5, dtype=np.float32)
    digest, kept = vector_digest(values), VectorsFolder(tmp_path / "kept", kept_rounds=5, max_bytes=1 << 26)

    async def work(a: Node, b: Node) -> None:
        await serve_vectors(a, kept)

        async def page(first: int) -> bytes:
            return await b.call(a.key, VECTOR, pack(AskVector(base, digest, first)), timeout_s=20, large_answer=True)

        assert await page(0) == b""
        kept.keep(3, base, digest, values)
        assert b"".join([await page(first) for first in range(0, values.nbytes, PAGE_BYTES)]) == values.tobytes()

    with_nodes(tmp_path, 2, work)
