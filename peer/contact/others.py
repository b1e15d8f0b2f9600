"""The other peers of a run, as one peer knows them: its neighbours, the company that it finds among them, and its cohort."""

from collections.abc import Callable

from manta_swarm.network.distances import Distances, serve_pings
from manta_swarm.network.host import host_digest
from manta_swarm.network.lan import LocalNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import OwnNode
from manta_swarm.peer.cohort.cohort import Cohort
from manta_swarm.peer.cohort.company import Choice, Company
from manta_swarm.peer.contact.presence import Presence
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.protocol.cohorts import AFFINITY, meeting_secret
from manta_swarm.protocol.course import Course
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signing import Identity


class Others:
    """One peer's, in one run."""

    def __init__(
        self,
        node: OwnNode,
        line: OperatorLine,
        identity: Identity,
        manifest: Manifest,
        course: Course,
        run: bytes,
        choice: Choice,
        label: str,
        token: bytes | None,
        sizing: Sizing | None,
        store: PeerStore,
        board: StatusBoard,
        *,
        round: Callable[[], int],
    ) -> None:
        """Know nobody; ``start`` answers others from then on.

        Args:
            node: this peer's.
            line: to the run's operators.
            identity: proves who this peer is.
            manifest: the run's.
            course: its training, as far as claims go by it.
            run: its id.
            choice: says what decides of which cohort this peer is.
            label: of the cohort, where it is that.
            token: what its members share; None: this peer is alone.
            sizing: how many belong together in model-parallel.
            store: where peers of the run are remembered.
            board: where is shown what is found.
            round: returns whose state this peer holds.
        """
        self._node = node
        secret = b"" if token is None else meeting_secret(token, run)
        proven = AFFINITY if choice is Choice.AFFINITY else label
        self.neighbours = Neighbours(node, run, is_near=lambda key: key in self.cohort.mates(), secret=secret)
        distances = Distances(node, self.neighbours, manifest.operators, host_digest(run))
        self.company = Company(identity.public_key, choice, label, self.neighbours, distances, manifest.operators, sizing)
        self.cohort = Cohort(node, identity, manifest, course, run, proven, token, self.neighbours, group=lambda: self.company.group)
        local = None if token is None else LocalNetwork(node, run, secret, proven)
        self.presence = Presence(node, line, self.company, self.cohort, self.neighbours, local, store, board, round=round)

    async def start(self) -> None:
        """Answer others from now on."""
        await serve_pings(self._node)
        await self.cohort.start()
        await self.presence.start()
