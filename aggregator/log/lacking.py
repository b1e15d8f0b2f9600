"""What an operator says that has not got what it is asked for: alone that it is not there, among several that another may have it."""

from manta_swarm.network.operator_line import AskAnother
from manta_swarm.protocol.errors import MantaError, Unreachable
from manta_swarm.protocol.ledger import Ledger


def lacking(ledger: Ledger, reason: str) -> MantaError:
    """Return the error to raise: of several operators one may be behind, or have begun anew, and callers go to the next one."""
    return Unreachable(reason) if len(ledger.manifest.operators) == 1 else AskAnother(reason)
