"""What an operator says that has not got what it is asked for: alone that it is not there, among several that another may have it."""

from protocol.errors import MantaError, Unreachable
from protocol.ledger import Ledger
from swarm.operator_line import AskAnother


def lacking(ledger: Ledger, reason: str) -> MantaError:
    """Return the error to raise: of several operators one may be behind, or have begun anew, and callers go to the next one."""
    return Unreachable(reason) if len(ledger.manifest.operators) == 1 else AskAnother(reason)
