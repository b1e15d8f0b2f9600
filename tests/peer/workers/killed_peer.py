"""A peer's workers, and nothing else of a peer: ``python -m tests.peer.workers.killed_peer`` prints their process ids, and stays."""

import asyncio

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.peer.workers.devices import Device
from manta_swarm.peer.workers.processes import ProcessPool, WorkerData


async def stay() -> None:
    """Start two workers, and wait to be killed."""
    pool = ProcessPool(TINY.name, WorkerData.of(digits(), None), [Device("cpu", 1)] * 2)
    await pool.start()
    while len(pool.present()) < 2:
        await pool.changes.next()
    print(*pool.pids.values(), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Be the peer."""
    asyncio.run(stay())


if __name__ == "__main__":
    main()
