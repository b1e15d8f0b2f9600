"""The data set of a run whose shards travel, brought to this computer before the peer begins, and handed out to others while it runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from manta_swarm.automl.data.names import SHARDS, own_folder
from manta_swarm.network.rpc import Endpoint
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.plugin import Arrival, Plugin
from manta_swarm.peer.features.shards.download import Download
from manta_swarm.peer.features.shards.holders import Holders
from manta_swarm.peer.features.shards.wanted import Room, Wanted, wanted
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.train.data import Held
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.runtime.disk import make_directory

_FOLDER = "data"  # in the peer's own, where no other is named


class ShardsPlugin(Plugin):
    """Shards that travel: a peer gets them from others, and hands them out."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse what does not go with shards that travel."""
        if manifest.shards and config.view is not None:
            raise UserError(f"{manifest.dataset} comes with both views: leave --view out")

    def bring(self, arrival: Arrival) -> AbstractAsyncContextManager[Held] | None:
        """Bring them, where the run's travel."""
        return _brought(arrival) if arrival.signed.open().shards else None


@contextlib.asynccontextmanager
async def _brought(arrival: Arrival) -> AsyncIterator[Held]:
    config, node, live_status, manifest = arrival.config, arrival.node, arrival.live_status, arrival.signed.open()
    root = config.data_root or config.dir / _FOLDER
    folder = _folder_of(manifest, root)
    await arrival.blob_store.serve(node)
    holders = Holders(node, arrival.signed.run, manifest.operators, live_status)
    arrival.limiter.hold(arrival.traffic)
    download = Download(node, manifest, folder, holders, arrival.blob_store, live_status)
    meeting = asyncio.create_task(holders.meet())
    try:
        here = await _get(config, manifest, node, folder, download, live_status)
        yield Held(arrival.blob_store, root, here.train if here.is_part else (), here.claimed)
    finally:
        meeting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await meeting
        await holders.withdraw()


async def _get(config: PeerConfig, manifest: Manifest, node: Endpoint, folder: Path, download: Download, live_status: LiveStatus) -> Wanted:
    list_ = await download.list()
    here = {number for number in range(len(list_.shards)) if download.name_of(list_, number).is_here}
    found = wanted(manifest, node.key, list_, Room.of(folder, config.data_limit), here)
    if found.is_part:
        if config.gateway:
            raise UserError(f"a gateway needs all of {manifest.dataset}: give a larger --data-limit, make room, or leave --gateway out")
        of = f"{len(found.train)} of {list_.num_train_shards} shards to train with"
        live_status.say(
            f"there is room for {of}, {in_words(found.size_bytes)} of {in_words(list_.size_bytes)}: "
            "those that this peer's key says, and its microbatches are drawn from them (--data-limit)"
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
