"""An operator's context for tests of its parts."""

from pathlib import Path

from manta_swarm.aggregator.commit.feed import TableWeights
from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.intake.measures import Measures
from manta_swarm.aggregator.intake.waiting import Settling, Waiting
from manta_swarm.aggregator.log.guard import RollbackGuard
from manta_swarm.aggregator.settings.sections import LimitsSection
from manta_swarm.aggregator.states.opening import OpenedRun, filled_blob_store
from manta_swarm.aggregator.worker import Broken
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from tests.consoles import Lines


class Anywhere:
    """Callers whose addresses nobody knows."""

    def address_of(self, key: PublicKey) -> str:
        del key
        return ""


def context_of(
    run: OpenedRun, directory: Path, endpoint: OwnNode, identity: Identity, *, settling: Settling | None = None, clock: Clock = SYSTEM_CLOCK
) -> RunContext:
    """Return the context of an operator that serves an opened run; verdicts are not waited for, unless ``settling`` says so."""
    broken, log, console = Broken(), run.log, Lines()
    settling = settling or Settling(log, 0, clock)
    settling.look()
    return RunContext(
        endpoint=endpoint,
        node=endpoint,
        callers=Anywhere(),
        identity=identity,
        directory=directory,
        opened=run,
        blob_store=filled_blob_store(log, run.state_keeper),
        weights=TableWeights(log, run.bodies, run.state_keeper.num_weights),
        waiting=Waiting(directory, broken),
        settling=settling,
        timeline=Timeline(),
        measures=Measures(directory / "measures"),
        guard=RollbackGuard(directory, log, console),
        limits=LimitsSection(),
        broken=broken,
        console=console,
        clock=clock,
    )
