"""Whether a log goes on from what it signed, asked of its operators: of several one may be behind, or lie, so each of them is asked."""

from protocol.histories import Departure, departure
from protocol.notes import TreeHead
from swarm.log_client import Commitment, LogClient
from swarm.messages import ShownHead
from swarm.rpc import Refused


async def proof_between(log: LogClient, before: TreeHead, after: TreeHead) -> tuple[bytes, ...]:
    """Return what proves that a head goes on from another; where no operator gives that, what the last one gave.

    Raises:
        Unreachable: no answer.
        Refused: none gave anything, as they say.
        RemoteFault: it is no proof.
    """
    refused: Refused | None = None
    proof: tuple[bytes, ...] | None = None
    for _ in log.operators.keys:
        try:
            proof = await log.consistency(before.size, after.size)
        except Refused as error:
            refused = error
        else:
            if departure(before, after, proof) is None:
                return proof
        log.line.turn_away("it does not prove that the log's heads are of one history")
    if proof is None and refused is not None:
        raise refused
    return proof or ()


async def departure_from(log: LogClient, held: Commitment) -> tuple[Departure | None, ShownHead]:
    """Return how the log departs from a commit that it is shown (None: it goes on from there), and what it shows.

    Where an operator shows no log that goes on from there the next one is asked; if none does, it is what the last one shows.

    Raises:
        Unreachable: no answer.
        RemoteFault: what it answers is no tree head of this log.
    """
    for _ in log.operators.keys:
        shown = await log.head(held)
        head = log.operators.open(shown.tree_head)
        found = departure(held.proven.tree_head, head, shown.consistency)
        if found is None or found is Departure.FORKED:
            break
        log.line.turn_away(f"it shows {head.size} entries, not proven to go on from {held.proven.tree_head.size}")
    return found, shown
