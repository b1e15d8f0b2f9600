"""A node that says that it has a run's shards, and sends every piece damaged: python -m tests.network.damaged_shards ADDRESS FOLDER DIR"""

import asyncio
import sys
from pathlib import Path

from manta_swarm.automl.data.shards.layout import LIST_NAME, ShardList, parse_list, shard_name
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.file_blobs import FileBlob, FileName
from manta_swarm.network.log_client import fetch_manifest
from manta_swarm.network.node import Node, parse_address
from manta_swarm.peer.features.shards.download import Holders
from manta_swarm.protocol.manifest import PIECE_BYTES
from manta_swarm.protocol.signing import Digest
from manta_swarm.runtime.console import PrintingConsole
from manta_swarm.runtime.disk import load_identity, make_directory
from tests.network.processes import LISTEN


class Damaged(FileBlob):
    """A file of which every piece is sent with another first byte."""

    def piece(self, place: int) -> bytes | None:
        """See ``FileBlob``; no longer what the hashes say."""
        data = super().piece(place)
        print("asked for a piece", flush=True)
        return None if data is None else bytes([data[0] ^ 1]) + data[1:]


async def _lie(address: str, folder: Path, list_: ShardList, directory: Path) -> None:
    path = directory / "identity.key"
    node = await Node.start(load_identity(path), path, listen=[LISTEN], initial_peers=[address])
    signed = await fetch_manifest(node, parse_address(address)[0])
    blob_store = BlobStore(max_bytes=0)
    for number, shard in enumerate(list_.shards):
        name = FileName(folder / shard_name(number), Digest(shard.pieces), shard.size_bytes, PIECE_BYTES)
        blob_store.lend(name.root, Damaged(name))
    await blob_store.serve(node)
    print("ready", flush=True)
    await Holders(node, signed.run, signed.open().operators, PrintingConsole()).meet()


def main() -> None:
    """Be such a node."""
    shards = Path(sys.argv[2])
    make_directory(Path(sys.argv[3]))
    asyncio.run(_lie(sys.argv[1], shards, parse_list((shards / LIST_NAME).read_bytes()), Path(sys.argv[3])))


if __name__ == "__main__":
    main()
