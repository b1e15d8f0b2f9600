"""A founder with a real node that averages one step, and stays: ``python -m tests.peer.cohort.killed_founder DIRECTORY ADDRESS``."""

import asyncio
import sys
import warnings
from pathlib import Path

from manta_swarm.network.links import Links
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.node import Node
from manta_swarm.peer.cohort.cohort import Cohort
from manta_swarm.peer.cohort.cohort_membership import Choice, FirstCohort
from tests.peer.cohorts import PEERS, RUN, TOKEN, Band, base_of, context_in, so_far, vector_of


async def stay(directory: str, address: str) -> None:
    """Average with a member at ``address``, and wait to be killed."""
    identity = PEERS[0]
    path = Path(directory) / "founder.key"
    path.write_bytes(identity.to_libp2p())
    node = await Node.start(identity, path, listen=["/ip4/127.0.0.1/tcp/0"], initial_peers=[address])
    neighbours = Neighbours(node, RUN)
    first_cohort = FirstCohort(Choice.LABEL, "here", TOKEN)
    context = context_in(node, identity, Band(local_steps=3).manifest)
    cohort = Cohort(context, first_cohort, neighbours, links=Links(node, RUN))
    await cohort.start()
    await neighbours.announce(cohort="here", round_=0)
    while not cohort.cohort_peers():
        await neighbours.look()
        await cohort.meet()
    cohort_session = await cohort.convene(base_of(0), 1, 3_600_000.0)
    await cohort_session.average(0, vector_of(0), so_far(identity, identity.public_key, vector_of(0)))
    print("averaged", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Be the founder."""
    warnings.simplefilter("ignore")
    asyncio.run(stay(*sys.argv[1:]))


if __name__ == "__main__":
    main()
