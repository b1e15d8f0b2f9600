"""An operator's context for tests of its parts."""

from pathlib import Path

from manta_swarm.aggregator.commit.settling import Settling
from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.commit.weights import Weights
from manta_swarm.aggregator.context import Broken, RunContext
from manta_swarm.aggregator.follow.opening import OpenRun, filled_shelf
from manta_swarm.aggregator.intake.measures import Measures
from manta_swarm.aggregator.intake.waiting import Waiting
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock


def context_of(
    run: OpenRun, directory: Path, endpoint: Endpoint, identity: Identity, *, settling: Settling | None = None, clock: Clock = SYSTEM_CLOCK
) -> RunContext:
    """Return the context of an operator that serves an opened run; verdicts are not waited for, unless ``settling`` says so."""
    broken, log = Broken(), run.log
    settling = settling or Settling(lambda: log.ledger, 0, clock.now_s)
    settling.look()
    weights, measures = Weights(log, run.bodies, run.follower.num_weights), Measures(directory / "measures")
    shelf, waiting = filled_shelf(log, run.follower), Waiting(directory, broken.stop)
    return RunContext(
        endpoint, identity, directory, run, shelf, weights, waiting, settling, Timeline(unix_ms), measures, broken, print, clock
    )
