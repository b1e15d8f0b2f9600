"""The hooks by which a feature's folder checks settings, brings data, replaces the workers and adds features.

Each folder has one ``Plugin``, and ``peer.features.plugged_in`` lists them all. A plugin does nothing where it does not override a method.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.feature import Feature, Features
from manta_swarm.peer.limits.limiter import Limiter
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.train.data import HeldData, load_checked
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.devices import Devices
from manta_swarm.peer.workers.pool import WorkerPool
from manta_swarm.protocol.manifest import Manifest, SignedManifest


@dataclass(frozen=True, slots=True)
class Arrival:
    """A peer that has met its run, and has no data yet."""

    config: PeerConfig  # what the person wants
    node: Endpoint
    traffic: Traffic  # of that node
    signed: SignedManifest
    blob_store: BlobStore  # from which this peer hands things out
    limiter: Limiter
    live_status: LiveStatus


@dataclass(frozen=True, slots=True)
class Setting:
    """What a plugin may make its features of."""

    config: PeerConfig  # what the person wants
    context: RunContext
    progress: Progress
    held: HeldData  # the data that are here
    dataset: Dataset
    pool: WorkerPool
    traffic: Traffic  # of the context's node


class Plugin:
    """The hooks of one feature's folder. All methods may be called from any thread, but for ``bring``."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse settings that do not fit the run.

        Raises:
            UserError: they do not; the message says what to do.
        """

    def bring(self, arrival: Arrival) -> AbstractAsyncContextManager[HeldData] | None:
        """Return a context that brings the run's data here, and yields them once they are; None: they need not be brought.

        Entering it raises as ``check``, and StorageError where the disk refuses.
        """
        return None

    def load(self, config: PeerConfig, manifest: Manifest, root: Path | None) -> Dataset | None:
        """Return what a peer trains on in place of the run's data set; None: it trains on that.

        ``root`` is the folder with the data sets that come with no library. Raises as ``check``.
        """
        return None

    def make_pool(
        self, config: PeerConfig, manifest: Manifest, dataset: Dataset, devices: Devices, compute: ComputeThread
    ) -> WorkerPool | None:
        """Return what trains this peer's microbatches in place of the usual workers; None: these do. Raises as ``check``."""
        return None

    def features(self, of: Setting) -> Sequence[Feature]:
        """Return the folder's features that a peer has. Raises as ``check``, and StorageError where the disk refuses."""
        return ()


class Plugins:
    """All plugins of a program, in the order in which their features are told of an event."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        self._all = tuple(plugins)

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """See ``Plugin``."""
        for plugin in self._all:
            plugin.check(config, manifest)

    @contextlib.asynccontextmanager
    async def bring(self, arrival: Arrival) -> AsyncIterator[HeldData]:
        """Yield the run's data, as the first plugin brings them that does; where none does they are on this computer.

        Raises:
            UserError: there is no room for them, or something else is where they should lie.
            StorageError: the disk refuses.
        """
        for plugin in self._all:
            if (bringing := plugin.bring(arrival)) is not None:
                async with bringing as held:
                    yield held
                return
        yield HeldData(arrival.blob_store, arrival.config.data_root)

    def load(self, config: PeerConfig, manifest: Manifest, root: Path | None) -> Dataset:
        """Return what a peer trains on: what the first plugin gives that has something, or the run's data set.

        Raises:
            UserError: see ``peer.train.data.load_checked``, and ``Plugin.check``.
        """
        for plugin in self._all:
            if (dataset := plugin.load(config, manifest, root)) is not None:
                return dataset
        return load_checked(manifest, root)

    def make_pool(
        self, config: PeerConfig, manifest: Manifest, dataset: Dataset, devices: Devices, compute: ComputeThread
    ) -> WorkerPool | None:
        """Return what the first plugin gives that trains this peer's microbatches; None: none does."""
        pools = (plugin.make_pool(config, manifest, dataset, devices, compute) for plugin in self._all)
        return next((pool for pool in pools if pool is not None), None)

    def features(self, of: Setting) -> Features:
        """Return the features that a peer has.

        Raises:
            UserError: one that the person asked for cannot be had; the message says what to do.
            StorageError: the disk refuses.
        """
        return Features([feature for plugin in self._all for feature in plugin.features(of)])
