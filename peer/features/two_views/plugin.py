"""Plugs in the peer that has one view of stereo pairs, and how it finds the peer with the other."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from manta_swarm.automl.data.catalog import load_view
from manta_swarm.automl.data.dataset import STEREO, Dataset
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.automl.training.vertical import SiteWorker
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.plugin import Plugin, Setting
from manta_swarm.peer.features.two_views.partner import Site
from manta_swarm.peer.features.two_views.views import SitePool
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.devices import Devices
from manta_swarm.peer.workers.pool import WorkerPool
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session


class TwoViews(Feature):
    """The other site of a peer that has one view of the run's pairs: it is found among the peers of its cohort."""

    def __init__(self, pool: SitePool) -> None:
        self._pool = pool

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Know the cohort from now on."""
        self._pool.reach(session.cohort)
        yield


class TwoViewsPlugin(Plugin):
    """Adds, with ``--view``, the pairs' one view as data, the pool that computes with the other site, and the search for that site."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse one view in a run that is not for it, or where the other one cannot be found."""
        if config.view is None:
            return
        if manifest.is_private or manifest.task != STEREO:
            raise UserError("--view is for runs of stereo pairs that all train on: leave it out")
        if config.alone:
            raise UserError(
                "--view needs a cohort peer with the other view: leave --alone out, and start both with one --cohort and its token"
            )

    def load(self, config: PeerConfig, manifest: Manifest, root: Path | None) -> Dataset | None:
        """Return what this computer has of the run's pairs."""
        return None if config.view is None else load_view(manifest.dataset, config.view, root)

    def make_pool(
        self, config: PeerConfig, manifest: Manifest, dataset: Dataset, devices: Devices, compute: ComputeThread
    ) -> WorkerPool | None:
        """Return what trains this site's part of the microbatches; several workers, or GPUs, are refused."""
        if config.view is None:
            return None
        if not devices.is_in_process:
            raise UserError("with --view one process computes, on the CPU: give --gpus none, and leave --workers out")
        assert isinstance(dataset, StereoDataset)
        worker = SiteWorker(manifest.supernet, dataset, config.view)
        return SitePool(worker, dataset, Site.of(dataset, config.view), manifest, compute)

    def features(self, of: Setting) -> Sequence[Feature]:
        """Return the feature that finds the other site."""
        return (TwoViews(of.pool),) if isinstance(of.pool, SitePool) else ()
