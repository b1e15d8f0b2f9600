"""The shards of the run's data set, handed out by the operator to whoever joins, where the run says that they travel."""

from manta_swarm.aggregator.settings.config import RunConfig, no_shards
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.layout import shard_name, travelling
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.file_blobs import FileBlob, FileName
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import PIECE_BYTES, TravellingShards
from manta_swarm.protocol.signing import Digest


def travelling_of(config: RunConfig, dataset: Dataset) -> tuple[TravellingShards, ...]:
    """Return what peers need to know to get the shards from others; nothing where they do not travel.

    Raises:
        UserError: they are to, and the data set is not in shards.
    """
    if not config.data.share_shards:
        return ()
    if not isinstance(dataset, ShardedImages | ShardedPairs):
        raise no_shards(dataset.name)
    return (travelling(dataset.shards.list),)


def lend_shards(blob_store: BlobStore, dataset: Dataset) -> int:
    """Hand out the list of the shards and all of them; return how many there are. None of them is read before somebody asks for it.

    Raises:
        UserError: one is missing, or of another size.
    """
    assert isinstance(dataset, ShardedImages | ShardedPairs)
    list_, folder = dataset.shards.list, dataset.shards.folder
    names = [
        FileName(folder / shard_name(number), Digest(shard.pieces), shard.size_bytes, PIECE_BYTES)
        for number, shard in enumerate(list_.shards)
    ]
    missing = [name.path for name in names if not name.is_here]
    if missing:
        raise UserError(
            f"{len(missing)} shards of {dataset.name} are missing or cut, {missing[0]} first: who hands them out needs all of them; "
            "copy them there, or write share_shards = false for a new run"
        )
    blob_store.pin(Blob.cut(pack(list_), PIECE_BYTES))
    for name in names:
        blob_store.lend(name.root, FileBlob(name))
    return len(names)
