"""An operator's node, held to whom its own log admits: only guests, who train nothing, show it their pass."""

from collections.abc import Container

from manta_swarm.aggregator.log.log import Log
from manta_swarm.network.gate import Gate, Known, stranger_told
from manta_swarm.network.rpc import OwnNode


class _Logged:
    """Whom the log lets in and puts out. Implements ``network.gate.Roll``."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def out(self) -> Container[bytes]:
        return self._log.ledger.admitted.out

    def trains(self, key: bytes) -> bool:
        return self._log.ledger.admitted.trains(key)


async def held_to_admission(node: OwnNode, log: Log) -> OwnNode:
    """Return the node as it answers those whom the run admits; where that is everybody the node as it is.

    Args:
        node: this operator's.
        log: the run's.
    """
    manifest, run = log.ledger.manifest, log.ledger.run
    if manifest.admission.is_open:
        return node
    gate = Gate(node, Known(manifest, run, _Logged(log)), None, stranger_told(manifest))
    await gate.open()
    return gate
