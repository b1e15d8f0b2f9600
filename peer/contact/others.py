"""The other peers of a run, as one peer knows them: its neighbours, the cohort membership that it finds among them, and its cohort."""

from collections.abc import Container

from manta_swarm.network.distances import Distances, serve_pings
from manta_swarm.network.host import host_digest
from manta_swarm.network.lan import LocalNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.cohort.cohort import Cohort
from manta_swarm.peer.cohort.cohort_membership import CohortMembership, Membership
from manta_swarm.peer.contact.announcer import Announcer
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.protocol.cohorts import meeting_secret
from manta_swarm.protocol.signing import PublicKey


class PeerDirectory:
    """Holds what this peer knows of the other peers of its run."""

    def __init__(self, context: RunContext, progress: Progress, membership: Membership, sizing: Sizing | None) -> None:
        """Know nobody; ``start`` answers others from then on.

        Args:
            context: of the run.
            progress: says whose state this peer holds.
            membership: what decides of which cohort this peer is.
            sizing: how many belong together in model-parallel.
        """
        self._node = node = context.node
        manifest, run, token = context.manifest, context.run, membership.token
        secret = b"" if token is None else meeting_secret(token, run)
        self.neighbours = Neighbours(node, run, proven=self, secret=secret)
        distances = Distances(node, self.neighbours, manifest.operators, host_digest(run))
        self.cohort_membership = CohortMembership(context.key, membership, self.neighbours, distances, manifest.operators, sizing)
        self.cohort = Cohort(context, membership, self.neighbours, self.cohort_membership)
        local = None if token is None else LocalNetwork(node, run, secret, membership.proven_name)
        self.announcer = Announcer(context, progress, self.cohort_membership, self.cohort, self.neighbours, local)

    def cohort_peers(self) -> Container[PublicKey]:
        """See ``network.neighbours.Proven``."""
        return self.cohort.cohort_peers()

    async def start(self) -> None:
        """Answer others from now on."""
        await serve_pings(self._node)
        await self.cohort.start()
        await self.announcer.start()
