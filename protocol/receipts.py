"""What a receipt proves: its entry is in the log, under a tree head that enough of the run's operators signed."""

from dataclasses import dataclass

from protocol.errors import EncodingError
from protocol.merkle import leaf_hash, verify_inclusion
from protocol.notes import TreeHead
from protocol.operators import Operators
from protocol.records import Receipt, Round, commit_digest, open_entry
from protocol.signing import Digest


@dataclass(frozen=True, slots=True)
class ProvenRound:
    """A round that a receipt proves: the log has it, so it has happened."""

    round: Round
    commit: Digest
    tree_head: TreeHead


def open_round_receipt(receipt: Receipt, operators: Operators) -> ProvenRound:
    """Return the round that ``receipt`` proves to be in the log of the run of ``operators``.

    Raises:
        SignatureError: too few of them signed the tree head.
        ProofError: the entry is not under the tree head, or that is another log's.
        EncodingError: the receipt's parts are malformed, or it is not of a round of this run.
    """
    head = operators.open(receipt.tree_head)
    verify_inclusion(leaf_hash(receipt.entry), receipt.index, head.size, list(receipt.proof), head.root)
    entry = open_entry(receipt.entry)
    if not isinstance(entry, Round) or entry.run != operators.run:
        raise EncodingError("not a round of this run")
    return ProvenRound(entry, commit_digest(receipt.entry), head)
