"""A gateway, as a feature: it listens as long as the peer takes part, and light contributors have a place in its roster.

HTTP's libraries are imported by those peers alone that are gateways.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from manta_swarm.automl.data.dataset import CLASSIFICATION
from manta_swarm.automl.data.names import SHARDS
from manta_swarm.network.admission_filter import AdmissionFilter
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.cohort.cohort_session import CohortSession
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.gateway.payouts import Payouts
from manta_swarm.peer.features.gateway.service import Entrance, GatewayService
from manta_swarm.peer.features.gateway.work import NOTHING_LENT, LentResidual
from manta_swarm.peer.features.plugin import Plugin, Setting
from manta_swarm.peer.submit.promises import FateKnown
from manta_swarm.protocol.cohorts import OwnCohort
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.light import why_no_leases
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.runtime.listen_address import ListenAddress

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session


class Gateway(Feature):
    """Serves light contributors while this peer takes part in a run."""

    def __init__(
        self,
        context: RunContext,
        progress: Progress,
        service: GatewayService,
        listen_address: ListenAddress | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Serve HTTP at ``listen_address``, within ``traffic``; without one ``service`` is asked in other ways."""
        self.is_lease_only = service.is_lease_only
        self._context = context
        self._progress = progress
        self._service = service
        self._listen_address = listen_address
        self._traffic = traffic or Traffic()
        self._payouts = Payouts(context.log, is_audited=context.manifest.is_audited)
        self._session: Session | None = None  # while it is open

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Answer light contributors meanwhile; those who ask when the run is finished are told so.

        Raises:
            UserError: see ``ListenAddress.listen``.
        """
        self._session = session
        if self._listen_address is None:
            yield
            return
        from manta_swarm.peer.features.gateway.http import say_goodbye, serving

        live_status = self._context.live_status
        async with serving(self._service, self._listen_address, self._traffic, self._payouts) as address:
            live_status.update(leases_at=address)
            live_status.write()
            run, peer = live_status.status.run, live_status.status.peer
            live_status.say(f"light contributors join with: manta-peer join --light --gateway {address}#{peer} --run {run}")
            yield
            if live_status.status.finished and self._service.leased:
                await say_goodbye()

    @property
    def has_helpers(self) -> bool:
        """Whether light contributors compute for this peer."""
        return self.is_lease_only or self._service.has_contributors

    async def take_place(self, base: CommitRef, own_cohort: OwnCohort, kept_ms: float) -> CohortSession:
        """Return the place of this peer's work on a base, for which light contributors get leases from now on."""
        session, context, pace = self._session, self._context, self._progress.pace
        assert session is not None
        whole_ms = self._progress.open_ms(context.manifest)
        left_ms = pace.left_again_ms(context.clock.now_ms(), whole_ms, grace_ms(whole_ms))
        # The residual that the log left to light contributors, too; none where that is not known by now.
        lendable = await session.submitter.lendable()
        lent = NOTHING_LENT if lendable is None else LentResidual(*lendable)
        times = {"left_ms": left_ms - kept_ms, "next_ms": left_ms + grace_ms(whole_ms)}
        return await self._service.convene(base, session.states.held, own_cohort.name, lent, session.features, **times)

    async def has_something_back(self, cohort_session: "asyncio.Future[CohortSession]") -> bool:
        """See ``GatewayService.has_something_back``."""
        return await self._service.has_something_back(cohort_session)

    def on_fate(self, event: FateKnown) -> None:
        """Light contributors may ask what a round that counted this gateway paid them."""
        if event.is_counted:
            self._payouts.counted(event.round, event.found)

    def leave(self) -> None:
        """There are no more leases, and what is out may come back."""
        self._service.leave()

    def finish(self) -> None:
        """The run is over: there are no leases any more."""
        self._service.finish()

    async def close(self) -> None:
        """Give up what is out."""
        await self._payouts.close()
        self._service.close()


class GatewayPlugin(Plugin):
    """Adds the gateway, for peers whose person wants to lease to light contributors."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse a gateway in a run that has nothing for light contributors, or nothing that can be handed out."""
        if not config.gateway:
            return
        if reason := why_no_leases(manifest):
            raise UserError(reason)
        if manifest.task == CLASSIFICATION and manifest.dataset.startswith(SHARDS):
            raise UserError(f"samples of {manifest.dataset} are of many sizes and cannot be handed out: leave --gateway out")

    def features(self, of: Setting) -> Sequence[Feature]:
        """Return the gateway that the person asked for. The context's node is held to whom the run admits."""
        if not of.config.gateway:
            return ()
        context, node = of.context, of.context.node
        entrance = Entrance(context, node.known) if isinstance(node, AdmissionFilter) else None
        service = GatewayService(context, of.dataset, entrance, is_lease_only=of.config.lease_only)
        return (Gateway(context, of.progress, service, of.config.listen_address, of.traffic),)
