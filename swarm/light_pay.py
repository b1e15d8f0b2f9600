"""What a gateway tells a light contributor of what a round paid it: the proofs of a pay slip, and the log's word. HTTP carries it."""

from dataclasses import dataclass

from protocol.earnings import TableClaims
from protocol.fields import require
from protocol.light import PREFIX
from protocol.records import MAX_ENTRY_BYTES, Receipt, SignedContribution
from protocol.table import RowProof
from swarm.messages import MAX_CREDIT_BYTES, MAX_RECEIPT_BYTES, CreditWord

PAY = f"{PREFIX}/pay"
MAX_LIGHT_CLAIMS_BYTES = 2**17  # of a table's claims: about 150 of them
MAX_PAY_BYTES = MAX_RECEIPT_BYTES + MAX_ENTRY_BYTES + 4096 + MAX_LIGHT_CLAIMS_BYTES + MAX_CREDIT_BYTES


@dataclass(frozen=True, slots=True)
class LightPay:
    """What proves that a round counted a contribution (``protocol.slips``), and what the log says that a key of it has."""

    receipt: Receipt  # of the round's entry
    row: RowProof
    contribution: SignedContribution
    claims: tuple[TableClaims, ...]  # all of the table, at most one; none where they are too many
    word: CreditWord  # of one key; nothing proves it

    def __post_init__(self) -> None:
        require(len(self.claims) <= 1, "claims of more than one round")
