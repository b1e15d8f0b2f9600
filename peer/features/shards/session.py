"""The data set of a run whose shards travel, brought to this computer before the peer begins, and handed out to others while it runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.names import SHARDS, own_folder
from manta_swarm.automl.data.shards.layout import IMAGES, ShardList
from manta_swarm.automl.data.shards.sharded_images import ShardedImages
from manta_swarm.automl.data.shards.sharded_pairs import ShardedPairs
from manta_swarm.network.blobs import Shelf
from manta_swarm.network.peer_status import STARTING
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.visiting import num_weights
from manta_swarm.peer.features.gateway.session import refuse_sharded_images
from manta_swarm.peer.features.shards.download import Download
from manta_swarm.peer.features.shards.holders import Holders
from manta_swarm.peer.features.shards.wanted import Room, Wanted, wanted
from manta_swarm.peer.limits.limiter import Limiter
from manta_swarm.peer.status import StatusBoard
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.runtime.disk import make_directory

_SHELF_BYTES, _SHELF_VECTORS = 32 * 1024 * 1024, 12  # of bodies, means and states kept for others, or as much as so many means
_FOLDER = "data"  # in the peer's own, where no other is named


@dataclass(frozen=True, slots=True)
class Held:
    """What is here of the run's data."""

    shelf: Shelf  # from which this peer hands things out, shards among them
    root: Path | None  # the folder with the data sets that come with no library
    wanted: Wanted | None = None  # the shards that are here, where they travel

    @property
    def train(self) -> tuple[int, ...]:
        """The shards to train with, where these are not all; else none."""
        return self.wanted.train if self.wanted is not None and self.wanted.is_part else ()

    @property
    def claimed(self) -> int:
        """What claims say, see ``Claim.shards``."""
        return 0 if self.wanted is None else self.wanted.claimed

    def part_of(self, dataset: Dataset) -> Dataset:
        """Return the data set as lots of this peer are drawn from it."""
        if self.train:
            assert isinstance(dataset, ShardedImages | ShardedPairs)
            return dataset.with_part(self.train)
        return dataset


@contextlib.asynccontextmanager
async def data_here(
    config: PeerConfig, node: Endpoint, traffic: Traffic, signed: SignedManifest, limiter: Limiter, board: StatusBoard
) -> AsyncIterator[Held]:
    """Yield what is here of a run's data set, once it is, where the run's shards travel; meanwhile shards are handed out to others.

    Raises:
        UserError: there is no room for it, or something else is where it should lie.
        StorageError: the disk refuses.
    """
    manifest = signed.open()
    count = await asyncio.to_thread(num_weights, manifest)
    shelf = Shelf(max_bytes=max(_SHELF_BYTES, _SHELF_VECTORS * 4 * count))
    if not manifest.shards:
        board.update(phase=STARTING)
        yield Held(shelf, config.data_root)
        return
    if config.view is not None:
        raise UserError(f"{manifest.dataset} comes with both views: leave --view out")
    root = config.data_root or config.dir / _FOLDER
    folder = _folder_of(manifest, root)
    await shelf.serve(node)
    holders = Holders(node, signed.run, manifest.operators, board)
    limiter.hold(traffic)
    download = Download(node, manifest, folder, holders, shelf, board)
    meeting = asyncio.create_task(holders.meet())
    try:
        here = await _get(config, manifest, node, folder, download, board)
        board.update(phase=STARTING)
        yield Held(shelf, root, here)
    finally:
        meeting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await meeting
        await holders.withdraw()


async def _get(config: PeerConfig, manifest: Manifest, node: Endpoint, folder: Path, download: Download, board: StatusBoard) -> Wanted:
    list_ = await download.list()
    _refuse_gateway(config, manifest, list_)
    here = {number for number in range(len(list_.shards)) if download.name_of(list_, number).is_here}
    found = wanted(manifest, node.key, list_, Room.of(folder, config.data_limit), here)
    if found.is_part:
        if config.gateway:
            raise UserError(f"a gateway needs all of {manifest.dataset}: give a larger --data-limit, make room, or leave --gateway out")
        of = f"{len(found.train)} of {list_.num_train_shards} shards to train with"
        board.say(
            f"there is room for {of}, {in_words(found.size_bytes)} of {in_words(list_.size_bytes)}: "
            "those that this peer's key says, and its lots are drawn from them (--data-limit)"
        )
    await download.shards(list_, found.numbers)
    return found


def _folder_of(manifest: Manifest, root: Path) -> Path:
    if not manifest.dataset.startswith(SHARDS):
        raise UserError(f"the run says that {manifest.dataset} travels, which is not in shards: ask the operator to mend it")
    make_directory(root)
    folder = own_folder(manifest.dataset, SHARDS, root)
    make_directory(folder)
    return folder


def _refuse_gateway(config: PeerConfig, manifest: Manifest, list_: ShardList) -> None:
    if config.gateway and list_.kind == IMAGES:
        raise refuse_sharded_images(manifest.dataset)
