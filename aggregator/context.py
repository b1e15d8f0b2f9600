"""What the parts of an operator's program share while it serves a run."""

from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.commit.feed import TableWeights
from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.intake.bodies import Bodies, Callers
from manta_swarm.aggregator.intake.measures import Measures
from manta_swarm.aggregator.intake.waiting import Settling, Waiting
from manta_swarm.aggregator.log.guard import RollbackGuard
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.settings.sections import LimitsSection
from manta_swarm.aggregator.states.opening import OpenedRun
from manta_swarm.aggregator.states.state_keeper import StateKeeper
from manta_swarm.aggregator.worker import Broken
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.rpc import Endpoint, OwnNode
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.console import Console


@dataclass(frozen=True, slots=True)
class RunContext:
    """What does not change while an operator serves a run. Every part of the program may have it."""

    endpoint: Endpoint  # where peers call
    node: OwnNode  # by which this program calls others
    callers: Callers
    identity: Identity
    directory: Path
    opened: OpenedRun
    blob_store: BlobStore
    weights: TableWeights  # what contributions of the newest rounds weigh
    waiting: Waiting  # verdicts on the disk that the log has not yet
    settling: Settling
    timeline: Timeline
    measures: Measures
    guard: RollbackGuard
    limits: LimitsSection  # what strangers may ask
    broken: Broken
    console: Console
    clock: Clock = SYSTEM_CLOCK

    @property
    def log(self) -> Log:
        """The run's log."""
        return self.opened.log

    @property
    def ledger(self) -> Ledger:
        """The log's ledger as it is published."""
        return self.opened.log.ledger

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self.opened.log.ledger.manifest

    @property
    def state_keeper(self) -> StateKeeper:
        """Computes the run's states."""
        return self.opened.state_keeper

    @property
    def bodies(self) -> Bodies:
        """Contributions on the disk."""
        return self.opened.bodies

    @property
    def num_weights(self) -> int:
        """N, of the supernet."""
        return self.opened.state_keeper.num_weights

    @property
    def key(self) -> PublicKey:
        """This operator's key."""
        return PublicKey(self.identity.public_key)
