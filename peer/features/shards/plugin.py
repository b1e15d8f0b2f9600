"""The feature for data sets that travel: chooses which shards this peer needs, gets them before it begins, and hands them out."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Container
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.automl.data.names import SHARDS, own_folder
from manta_swarm.automl.data.shards.layout import ShardList
from manta_swarm.network.rpc import Endpoint
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.plugin import Arrival, Plugin
from manta_swarm.peer.features.shards.download import Download, Holders
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.train.data import HeldData
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.microbatches import shards_in_order
from manta_swarm.runtime.disk import make_directory

KEPT_FREE_BYTES = 1 << 30  # of a disk, for whatever else it is for

_FOLDER = "data"  # in the peer's own, where no other is named


@dataclass(frozen=True, slots=True)
class Room:
    """How much room a folder has for shards."""

    folder: Path
    limit_bytes: int | None  # of all that the set may take, as the person says; None: as much as there is
    free_bytes: int  # of the disk, for what is not here yet

    @classmethod
    def of(cls, folder: Path, limit_bytes: int | None) -> "Room":
        """Return the room in a folder that is there."""
        return cls(folder, limit_bytes, max(0, shutil.disk_usage(folder).free - KEPT_FREE_BYTES))


@dataclass(frozen=True, slots=True)
class WantedShards:
    """The shards that a peer gets, or has."""

    numbers: tuple[int, ...]  # of all of them
    train: tuple[int, ...]  # of those to train with, ascending
    is_part: bool  # there are more to train with
    size_bytes: int

    @property
    def claimed(self) -> int:
        """How many shards claims say that this peer draws from; see ``Claim.shards``."""
        return len(self.train) if self.is_part else 0


def wanted(manifest: Manifest, key: bytes, list_: ShardList, room: Room, here: Container[int]) -> WantedShards:
    """Return the shards for a peer's key: those held out, and then one after the other in the key's order, as far as there is room.

    Those of ``here`` are on the disk already.

    Raises:
        UserError: there is no room for those held out and enough others for a microbatch.
    """
    held_out = tuple(range(list_.num_train_shards, len(list_.shards)))
    order = shards_in_order(manifest.seed, key, list_.num_train_shards)
    least, most, samples, taken = 0, 0, 0, _Taken()
    least_taken = taken
    for number in held_out:
        taken = taken.with_one(list_.shards[number].size_bytes, is_here=number in here)
    for number in order:
        taken = taken.with_one(list_.shards[number].size_bytes, is_here=number in here)
        if samples < manifest.microbatch_samples:
            least, least_taken = least + 1, taken
            samples += list_.shards[number].samples
        if not taken.fits(room):
            break
        most += 1
    if most < least:
        raise _no_room(manifest, list_, room, least_taken)
    train = tuple(sorted(order[:most]))
    numbers = train + held_out
    return WantedShards(numbers, train, most < len(order), sum(list_.shards[number].size_bytes for number in numbers))


@dataclass(frozen=True, slots=True)
class _Taken:
    """How much room some shards take."""

    size_bytes: int = 0
    new_bytes: int = 0  # that are not here yet

    def with_one(self, size_bytes: int, *, is_here: bool) -> "_Taken":
        """Return what these and one more take."""
        return _Taken(self.size_bytes + size_bytes, self.new_bytes + (0 if is_here else size_bytes))

    def fits(self, room: Room) -> bool:
        """Return whether there is room for these shards."""
        return self.new_bytes <= room.free_bytes and (room.limit_bytes is None or self.size_bytes <= room.limit_bytes)


def _no_room(manifest: Manifest, list_: ShardList, room: Room, taken: _Taken) -> UserError:
    needs = f"{manifest.dataset} has {in_words(list_.size_bytes)}, of which at least {in_words(taken.size_bytes)} must be here to train"
    if room.limit_bytes is not None and taken.size_bytes > room.limit_bytes:
        return UserError(f"{needs}; --data-limit allows {in_words(room.limit_bytes)}: give more with --data-limit, or join another run")
    return UserError(
        f"{needs}, {in_words(taken.new_bytes)} more than now; the disk of {room.folder} has {in_words(room.free_bytes)} left "
        f"beside {in_words(KEPT_FREE_BYTES)} that stay free: make room, or name a folder on another disk with --data-root"
    )


class ShardsPlugin(Plugin):
    """Gets the shards of a run's data set from others, and hands them out."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse what does not go with shards that travel."""
        if manifest.shards and config.view is not None:
            raise UserError(f"{manifest.dataset} comes with both views: leave --view out")

    def bring(self, arrival: Arrival) -> AbstractAsyncContextManager[HeldData] | None:
        """Bring the run's shards here, where these travel."""
        return _brought(arrival) if arrival.signed.open().shards else None


@contextlib.asynccontextmanager
async def _brought(arrival: Arrival) -> AsyncIterator[HeldData]:
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
        yield HeldData(arrival.blob_store, root, here.train if here.is_part else (), here.claimed)
    finally:
        meeting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await meeting
        await holders.withdraw()


async def _get(
    config: PeerConfig, manifest: Manifest, node: Endpoint, folder: Path, download: Download, live_status: LiveStatus
) -> WantedShards:
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
