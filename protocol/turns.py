"""What the state between two rounds of a log goes on by, once one ledger has checked it (``protocol.ledger``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.admission import SignedAdmission
from protocol.audits import Extra
from protocol.listed import Table
from protocol.records import Round
from protocol.revocation import SignedRevocation
from protocol.signing import Digest
from protocol.standing import Claimed


@dataclass(frozen=True, slots=True)
class Turn:
    """A round that a ledger has taken: what one in the state before it takes without looking at each entry again."""

    entry: Round
    commit: Digest  # its digest
    index: int  # its place in the log
    table: Table
    claimed: Sequence[Claimed]  # the table's
    shares: Mapping[bytes, int]  # key -> what it pays

    @property
    def extras(self) -> list[Extra]:
        """What stands before the table."""
        return [extra for _, extra in self.table.extras]


Step = Turn | SignedAdmission | SignedRevocation
