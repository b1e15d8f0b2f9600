"""What a receipt proves: its entry is in the log, under a tree head that the run's operator signed."""

from dataclasses import dataclass

from protocol.errors import EncodingError, ProofError
from protocol.merkle import leaf_hash, verify_inclusion
from protocol.notes import TreeHead, open_tree_head, origin
from protocol.records import MAX_GROUP, Receipt, Round, check_vote, commit_digest, open_entry, quorum
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
        SignatureError: the operator did not sign the tree head, or a voter not the statement.
        ProofError: the entry is not under the tree head.
        EncodingError: the receipt's parts are malformed, or it is not of a round of this run.
    """
    name = origin(run, operator)
    head = open_tree_head(receipt.tree_head, name, operator)
    if head.origin != name:
        raise ProofError(f"a tree head of another log: {head.origin!r}")
    verify_inclusion(leaf_hash(receipt.entry), receipt.index, head.size, list(receipt.proof), head.root)
    entry = open_entry(receipt.entry)
    if not isinstance(entry, Round) or entry.statement.run != run:
        raise EncodingError("not a round of this run")
    _check_votes(entry)
    return ProvenRound(entry, commit_digest(receipt.entry), head)


def _check_votes(entry: Round) -> None:
    """Check the votes too: a log that took a round without a quorum is not to be believed, whatever it signs."""
    voters = [vote.key for vote in entry.votes]
    if len(entry.claims) > MAX_GROUP or voters != sorted(set(voters)) or len(voters) < quorum(len(entry.claims)):
        raise EncodingError("a round without its quorum of votes")
    for vote in entry.votes:
        check_vote(entry.statement, vote)
