"""Which place a peer takes for its work on a base: in its cohort, in its gateway's roster of light contributors, or alone."""

import asyncio

from manta_swarm.peer.cohort.cohort import Cohort, Seat
from manta_swarm.peer.features.gateway.desk import GatewayDesk
from manta_swarm.peer.features.gateway.work import NOTHING_LENT, Lent
from manta_swarm.peer.submit.commits import Commits
from manta_swarm.peer.submit.delivery import LAST_PART, open_ms
from manta_swarm.peer.submit.handing import Handing
from manta_swarm.peer.submit.residuals import Residuals
from manta_swarm.peer.sync.states import States
from manta_swarm.peer.train.work import ComputeThread, now_ms
from manta_swarm.protocol.cohorts import Group
from manta_swarm.protocol.exchange import codec_named, grace_ms
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.rounds import Phase, RoundMachine, Standing
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import unless


class Seating:
    """One peer's places, base after base."""

    def __init__(
        self,
        manifest: Manifest,
        key: PublicKey,
        machine: RoundMachine,
        states: States,
        commits: Commits,
        residuals: Residuals,
        handing: Handing,
        pace: Pace,
        compute: ComputeThread,
        cohort: Cohort,
        gateway: GatewayDesk | None,
        changed: asyncio.Event,
    ) -> None:
        """Prepare.

        Args:
            manifest: the run's.
            key: this peer's.
            machine: says which base is the newest.
            states: have the state of the base.
            commits: what the log has.
            residuals: what coding left out.
            handing: says how long handing in takes.
            pace: says how much time is left.
            compute: where a gateway's data are read.
            cohort: this peer's part in it.
            gateway: founds rosters of light contributors; None: this peer is none.
            changed: a commit came, or the person wants to leave.
        """
        self._manifest = manifest
        self._key = key
        self._machine = machine
        self._states = states
        self._commits = commits
        self._residuals = residuals
        self._handing = handing
        self._pace = pace
        self._compute = compute
        self._cohort = cohort
        self._gateway = gateway
        self._changed = changed

    @property
    def is_lease_only(self) -> bool:
        """Whether this peer is a gateway that trains no more than it has to."""
        return self._gateway is not None and self._gateway.is_lease_only

    async def take_seat(self, base: Standing, group: Group) -> Seat:
        """Return this peer's place in its cohort for the work on a base; work that is done ahead is done alone."""
        if self._machine.phase is not Phase.WORKING or base.round < self._machine.newest.round:
            return Seat(self._key)
        # Of the time that is left members keep a part for handing in alone, and the founder what it needs to hand in for them.
        whole_ms, took_ms = open_ms(self._machine, self._manifest), self._handing.took_ms
        kept_ms = whole_ms / LAST_PART + (whole_ms / LAST_PART if took_ms is None else took_ms)
        left_ms = self._pace.left_ms(now_ms())
        if self._gateway is not None:
            left_ms = self._pace.left_again_ms(now_ms(), whole_ms, grace_ms(whole_ms))
            next_ms = left_ms + grace_ms(whole_ms)
            return await self._gateway.convene(
                base, self._states.held, group.name, await self._lent(), self._compute, left_ms=left_ms - kept_ms, next_ms=next_ms
            )
        return await self._cohort.convene(base, self._pace.lot_ms, left_ms - kept_ms, group)

    async def has_something_back(self, seat: "asyncio.Task[Seat]") -> bool:
        """See ``GatewayDesk.has_something_back``; False also where something else is to be done first."""
        assert self._gateway is not None
        return bool(await unless(self._changed, self._gateway.has_something_back(seat)))

    async def _lent(self) -> Lent:
        """Return the residual that the log left to this peer's light contributors too; none where that is not known by now."""
        if not codec_named(self._manifest.exchange.codec).is_sparse or not await self._commits.take_residual():
            return NOTHING_LENT
        return Lent(self._residuals.held(self._machine.newest.round), self._residuals.left_by)
