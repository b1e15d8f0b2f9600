"""What receipts and listings prove: their entries are in the log, under a tree head that enough of the run's operators signed."""

from dataclasses import dataclass

from manta_swarm.protocol.errors import EncodingError, ProofError
from manta_swarm.protocol.merkle import leaf_hash, verify_inclusion
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.records import Header, Included, Listing, Receipt, Round, commit_digest, open_entry
from manta_swarm.protocol.signing import Digest


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


def open_listing(listing: Listing, operators: Operators) -> tuple[ProvenRound, Header]:
    """Return the round and the contribution that ``listing`` proves to be in the log of the run of ``operators``, the one in the other.

    Raises:
        RemoteFault: as ``open_round_receipt`` and ``open_listed``.
    """
    proven = open_round_receipt(listing.receipt, operators)
    return proven, open_listed(listing.contribution, proven)


def open_listed(contribution: Included, proven: ProvenRound) -> Header:
    """Return the contribution that is proven to be one of a round's, under the tree head that proves the round.

    Its signatures are not checked.

    Raises:
        ProofError: it is not under that head, or not one of the round's.
        EncodingError: it is none of this run, or of other claims than those that come with it.
    """
    entry, head = proven.round, proven.tree_head
    if not entry.first <= contribution.index < entry.first + entry.contributions:
        raise ProofError("an entry that is none of the round's contributions")
    verify_inclusion(leaf_hash(contribution.entry), contribution.index, head.size, list(contribution.proof), head.root)
    header = open_entry(contribution.entry)
    if not isinstance(header, Header):
        raise EncodingError("no contribution")
    said = header.contribution.unchecked()
    if said.run != entry.run or said.claims != tuple(signed.digest for signed in header.claims):
        raise EncodingError("a contribution of another run, or of other claims than those that come with it")
    return header
