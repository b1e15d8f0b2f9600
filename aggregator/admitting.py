"""An operator's node, held to whom its own log admits: only guests, who train nothing, show it their pass."""

from collections.abc import Callable

from manta_swarm.network.gate import Gate, Known, stranger_told
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.ledger import Ledger


async def held_to_admission(node: OwnNode, ledger: Callable[[], Ledger]) -> OwnNode:
    """Return the node as it answers those whom the run admits; where that is everybody the node as it is.

    Args:
        node: this operator's.
        ledger: returns the log's ledger as it is published.
    """
    manifest, run = ledger().manifest, ledger().run
    if manifest.admission.is_open:
        return node
    known = Known(manifest, run, lambda key: ledger().admitted.trains(key), lambda key: key in ledger().admitted.out)
    gate = Gate(node, known, None, stranger_told(manifest))
    await gate.open()
    return gate
