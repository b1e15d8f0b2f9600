"""Which place a peer takes for its work on a base: in its cohort, in its gateway's roster of light contributors, or alone."""

import asyncio

from manta_swarm.peer.cohort.cohort import Cohort, Seat
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.gateway.desk import GatewayDesk
from manta_swarm.peer.features.gateway.work import NOTHING_LENT, Lent
from manta_swarm.peer.submit.submitter import LAST_PART, Submitter
from manta_swarm.peer.sync.states import States
from manta_swarm.protocol.cohorts import Group
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.rounds import Phase, Standing
from manta_swarm.runtime.tasks import unless


class Seating:
    """One peer's places, base after base."""

    def __init__(
        self, context: RunContext, progress: Progress, states: States, submitter: Submitter, cohort: Cohort, gateway: GatewayDesk | None
    ) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: says which base is the newest, and how much time is left.
            states: have the state of the base.
            submitter: says how long handing in takes, and what may be lent to light contributors.
            cohort: this peer's part in it.
            gateway: founds rosters of light contributors; None: this peer is none.
        """
        self._context = context
        self._progress = progress
        self._states = states
        self._submitter = submitter
        self._cohort = cohort
        self._gateway = gateway

    @property
    def is_lease_only(self) -> bool:
        """Whether this peer is a gateway that trains no more than it has to."""
        return self._gateway is not None and self._gateway.is_lease_only

    async def take_seat(self, base: Standing, group: Group) -> Seat:
        """Return this peer's place in its cohort for the work on a base; work that is done ahead is done alone."""
        progress, pace = self._progress, self._progress.pace
        if progress.machine.phase is not Phase.WORKING or base.round < progress.newest_round:
            return Seat(self._context.key)
        # Of the time that is left members keep a part for handing in alone, and the founder what it needs to hand in for them.
        now_ms, whole_ms, took_ms = self._context.clock.now_ms(), progress.open_ms(self._context.manifest), self._submitter.took_ms
        kept_ms = whole_ms / LAST_PART + (whole_ms / LAST_PART if took_ms is None else took_ms)
        if self._gateway is None:
            return await self._cohort.convene(base, pace.lot_ms, pace.left_ms(now_ms) - kept_ms, group)
        left_ms = pace.left_again_ms(now_ms, whole_ms, grace_ms(whole_ms))
        lent, times = await self._lent(), {"left_ms": left_ms - kept_ms, "next_ms": left_ms + grace_ms(whole_ms)}
        return await self._gateway.convene(base, self._states.held, group.name, lent, self._context.compute, **times)

    async def has_something_back(self, seat: "asyncio.Task[Seat]") -> bool:
        """See ``GatewayDesk.has_something_back``; False also where something else is to be done first."""
        assert self._gateway is not None
        return bool(await unless(self._progress.changed, self._gateway.has_something_back(seat)))

    async def _lent(self) -> Lent:
        """Return the residual that the log left to this peer's light contributors too; none where that is not known by now."""
        lendable = await self._submitter.lendable()
        return NOTHING_LENT if lendable is None else Lent(*lendable)
