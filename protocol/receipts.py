"""What a receipt proves: its entry is in the log, under a tree head that the run's operator signed."""

from dataclasses import dataclass

from protocol.errors import EncodingError, ProofError
from protocol.merkle import leaf_hash, verify_inclusion
from protocol.notes import TreeHead, open_tree_head, origin
from protocol.records import Receipt, Round, commit_digest, open_entry
from protocol.signing import Digest


@dataclass(frozen=True, slots=True)
class ProvenRound:
    """A round that a receipt proves: the log has it, so it has happened."""

    round: Round
    commit: Digest
    tree_head: TreeHead


def open_round_receipt(receipt: Receipt, run: bytes, operator: bytes) -> ProvenRound:
    """Return the round that ``receipt`` proves to be in the log of ``operator``.

    Raises:
        SignatureError: the operator did not sign the tree head.
        ProofError: the entry is not under the tree head.
        EncodingError: the receipt's parts are malformed, or it is not of a round of this run.
    """
    name = origin(run, operator)
    head = open_tree_head(receipt.tree_head, name, operator)
    if head.origin != name:
        raise ProofError(f"a tree head of another log: {head.origin!r}")
    verify_inclusion(leaf_hash(receipt.entry), receipt.index, head.size, list(receipt.proof), head.root)
    entry = open_entry(receipt.entry)
    if not isinstance(entry, Round) or entry.run != run:
        raise EncodingError("not a round of this run")
    return ProvenRound(entry, commit_digest(receipt.entry), head)
