"""What the state between two rounds of a log goes on by, once one ledger has checked it (``protocol.ledger``)."""

from collections.abc import Sequence
from dataclasses import dataclass

from manta_swarm.protocol.admission import Admission
from manta_swarm.protocol.listed import Table
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.revocation import Revocation
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Digest
from manta_swarm.protocol.verdicts import Settlement, Verdict


@dataclass(frozen=True, slots=True)
class Turn:
    """A round that a ledger has taken: what one in the state before it takes without looking at each entry again."""

    entry: Round
    commit: Digest  # its digest
    index: int  # its place in the log
    table: Table

    @property
    def verdicts(self) -> list[Verdict]:
        """What stands before its contributions."""
        return [verdict for _, verdict in self.table.verdicts]


@dataclass(frozen=True, slots=True)
class Settled:
    """The settlement that ends an audited run, which a ledger has taken."""

    entry: Settlement
    index: int  # its place in the log
    verdicts: Sequence[Verdict]  # that stand before it


Step = Turn | Settled | Signed[Admission] | Signed[Revocation]
