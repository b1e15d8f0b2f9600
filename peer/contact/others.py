"""The other peers of a run, as one peer knows them: it announces itself, knows its neighbours, and finds its cohort among them.

A peer also finds out whether others can call it, and remembers some who can be called. A round needs none of it: the DHT may be away, and
nobody may be reached but the log.
"""

import asyncio
import contextlib
import ipaddress
import logging
from collections import Counter
from collections.abc import Container

from manta_swarm.network import timeouts
from manta_swarm.network.connections import host_of
from manta_swarm.network.distances import Distances, serve_pings
from manta_swarm.network.lan import LocalNetwork, host_digest, own_networks
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.reach import ASKED, DialBackService, Reach, Reachable, measure
from manta_swarm.network.rpc import LIBP2P, TLS, UNIX
from manta_swarm.peer.cohort.cohort import Cohort
from manta_swarm.peer.cohort.cohort_membership import CohortMembership, FirstCohort
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.protocol.cohorts import meeting_secret
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import together, wait_within

_REMEMBERED = 8  # peers of the run, for a start at which its aggregator is away
_PERIODS_PUBLISHED = 6

logger = logging.getLogger("manta.peer")


class Announcer:
    """Announces this peer in its run."""

    def __init__(
        self,
        context: RunContext,
        progress: Progress,
        cohort_membership: CohortMembership,
        cohort: Cohort,
        neighbours: Neighbours,
        local: LocalNetwork | None,
    ) -> None:
        """Prepare; ``start`` answers others from then on.

        Args:
            context: of the run.
            progress: says whose state this peer holds.
            cohort_membership: says which cohort it is of.
            cohort: this peer's part in it.
            neighbours: the others of the run.
            local: its cohort peers on the local network; None: it has none.
        """
        self._node = node = context.node
        self._line = context.log.line
        self._cohort_membership = cohort_membership
        self._cohort = cohort
        self._neighbours = neighbours
        self._local = local
        self._store = context.store
        self._live_status = context.live_status
        self._progress = progress
        self._service = DialBackService(node)
        self._reach = Reach()
        self._listens_at: list[str] = []  # when the reach was measured
        self._again = asyncio.Event()  # the reach may be another one

    async def start(self) -> None:
        """Dial back those who ask, from now on."""
        await self._service.start()
        await self._neighbours.start()

    def network_changed(self) -> None:
        """This computer may be on another network than before: measure again."""
        self._again.set()

    async def meet(self) -> None:
        """Announce this peer, and look for others, again and again.

        At first that is more often, for cohort peers that come at the same time; and where the own cohort is another one by now.
        """
        pause_s = timeouts.FIRST_LOOKS_S
        while True:
            is_new, own_cohort = False, self._cohort_membership.own_cohort
            try:
                await self._cohort_membership.measure(own_networks()[0])
                await self._neighbours.look()
                is_new = self._cohort_membership.update()
                await self._announce()
                await self._neighbours.tell(self._cohort_membership.expected)
                if self._local is not None:
                    await self._local.publish(_PERIODS_PUBLISHED * self._neighbours.period_s)
                    await self._local.meet(self._cohort.cohort_peers())
                await self._cohort.meet()
            except MantaError as error:
                logger.info("no neighbours reason=%s", error)
            self._show_cohort_membership(is_new=self._cohort_membership.own_cohort != own_cohort)
            if await self._node.addresses() != self._listens_at:
                self._again.set()
            pause_s = timeouts.FIRST_LOOKS_S if is_new else min(2 * pause_s, self._neighbours.period_s)
            await asyncio.sleep(pause_s)

    async def _announce(self) -> None:
        cohort_membership = self._cohort_membership
        await self._neighbours.announce(
            cohort=cohort_membership.name,
            round_=self._progress.held_round,
            position=cohort_membership.position(),
            size=cohort_membership.own_size,
        )

    async def leave_cohort(self) -> None:
        """Tell the cohort peers that this peer trains no more; it can be called still."""
        with contextlib.suppress(MantaError, TimeoutError):
            async with asyncio.timeout(timeouts.LEAVE_S):
                await self._cohort.leave()

    async def withdraw(self) -> None:
        """Tell the cohort peers and the DHT that this peer leaves; what cannot be told in a moment expires."""
        with contextlib.suppress(MantaError, TimeoutError):
            async with asyncio.timeout(timeouts.LEAVE_S):
                await together(self._cohort.leave(), self._neighbours.withdraw())

    def _show_cohort_membership(self, *, is_new: bool) -> None:
        cohort_membership, cohort_peers = self._cohort_membership, self._cohort.cohort_peers()
        self._live_status.update(
            members=self._neighbours.size,
            cohort_peers=len(cohort_peers),
            links=_in_words(self._cohort.ways()),
            cohort=cohort_membership.name,
            why=cohort_membership.why(cohort_peers),
            size=cohort_membership.why_size(),
            near=cohort_membership.suggestion(),
            round_trips=cohort_membership.round_trips(),
        )
        if is_new:
            self._live_status.say(f"cohort {cohort_membership.name}: {self._live_status.status.why}")
            if self._live_status.status.size:
                self._live_status.say(f"size {self._live_status.status.size}")

    async def watch(self) -> None:
        """Measure whether others can call this peer, again and again, and remember who of the run can be called."""
        while True:
            self._again.clear()
            self._listens_at = await self._node.addresses()
            reach = await measure(self._node, [self._line.operator, *self._neighbours.some(ASKED - 1)])
            if reach.reachable is not Reachable.UNKNOWN or self._reach.reachable is Reachable.UNKNOWN:
                await self._show(reach)
            with contextlib.suppress(MantaError):
                await self._remember()
            known = self._reach.reachable is not Reachable.UNKNOWN
            await wait_within(self._again, timeouts.REACH_AGAIN_S[1] if known else timeouts.REACH_AGAIN_S[0])

    async def _show(self, reach: Reach) -> None:
        before, self._reach = self._reach, reach
        try:
            await self._node.serve_dht(reach.serves_others)
        except MantaError as error:
            logger.info("the DHT is not served reason=%s", error)
        self._live_status.update(reachable=reach.reachable.value, reach=reach.words)
        if reach.reachable is not before.reachable:
            self._live_status.say(reach.words)
            self._live_status.write()

    async def _remember(self) -> None:
        """Keep addresses of some peers of the run that others can call, for a start at which its aggregator is away."""
        found = []
        operators = () if self._line.operators.is_alone else self._line.in_turn  # the one that it came by may be the one that is away then
        for key in (*operators, *self._neighbours.some(_REMEMBERED - len(operators))):
            with contextlib.suppress(MantaError):
                maddrs = await self._node.addresses_of(key)
                found += [maddr for maddr in maddrs if self._may_be_called(host_of(maddr))][:1]
        if found:
            self._store.remember_peers(found)

    def _may_be_called(self, host: str | None) -> bool:
        return host is not None and (ipaddress.ip_address(host).is_global or self._reach.reachable is Reachable.LOCAL)


def _in_words(ways: dict[PublicKey, str]) -> str:
    """Return how cohort peers are reached, those first to whom there is a direct link."""
    words = {UNIX: "linked on this host", TLS: "linked over the network (TLS)", LIBP2P: "without a link, by libp2p"}
    found = Counter(ways.values())
    return ", ".join(f"{found[way]} {said}" for way, said in words.items() if found[way])


class PeerDirectory:
    """Holds what this peer knows of the other peers of its run."""

    def __init__(self, context: RunContext, progress: Progress, first_cohort: FirstCohort, sizing: Sizing | None) -> None:
        """Know nobody; ``start`` answers others from then on.

        Args:
            context: of the run.
            progress: says whose state this peer holds.
            first_cohort: what decides which cohort this peer is in.
            sizing: how many belong together in model-parallel.
        """
        self._node = node = context.node
        manifest, run, token = context.manifest, context.run, first_cohort.token
        secret = b"" if token is None else meeting_secret(token, run)
        self.neighbours = Neighbours(node, run, proven=self, secret=secret)
        distances = Distances(node, self.neighbours, manifest.operators, host_digest(run))
        self.cohort_membership = CohortMembership(context.key, first_cohort, self.neighbours, distances, manifest.operators, sizing)
        self.cohort = Cohort(context, first_cohort, self.neighbours, self.cohort_membership)
        local = None if token is None else LocalNetwork(node, run, secret, first_cohort.proven_name)
        self.announcer = Announcer(context, progress, self.cohort_membership, self.cohort, self.neighbours, local)

    def cohort_peers(self) -> Container[PublicKey]:
        """See ``network.neighbours.ProvenCohortPeers``."""
        return self.cohort.cohort_peers()

    async def start(self) -> None:
        """Answer others from now on."""
        await serve_pings(self._node)
        await self.cohort.start()
        await self.announcer.start()
