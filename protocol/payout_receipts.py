"""Payout receipts: what a peer keeps of a round that counted it, so that what it earned can be shown later, without the log. Pure.

A payout receipt proves that a round is in the operators' log, that its table has the peer's claim, and, where it has the claims of the
whole table, what the round paid. It proves nothing of what came after: whether a verdict took it back is in the log
(``protocol.reputation``).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, LedgerError, ProofError
from manta_swarm.protocol.fields import require
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_listing
from manta_swarm.protocol.records import Claim, Listing, Round
from manta_swarm.protocol.rewards import RoundContributions, TrainingSpec, earned
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Digest, sha256

MAX_RECEIPT_BYTES = 2**20 + 2**18


@dataclass(frozen=True, slots=True)
class PayoutReceipt:
    """What a peer keeps of one round."""

    listing: Listing  # of the contribution that has its claim
    claim: Signed[Claim]  # its own
    claims: tuple[RoundContributions, ...] = ()  # all of the round, under the listing's tree head, at most one; see ``peer.credit.credit``
    paid: tuple[int, ...] = ()  # what the round is said to have paid, at most one: without ``claims`` nobody can tell whether it is true

    def __post_init__(self) -> None:
        require(len(self.claims) <= 1 and len(self.paid) <= 1, "a payout receipt of more than one round")
        require(all(0 <= amount < 2**80 for amount in self.paid), "an amount out of range")


@dataclass(frozen=True, slots=True)
class ProvenPayoutReceipt:
    """What a payout receipt proves."""

    round: Round
    commit: Digest
    index: int  # of the round's entry
    head: TreeHead  # that it is under
    key: bytes  # who earned
    account: bytes  # that it adds up to
    microbatches: int  # of its claim
    earned: int | None  # what its claim was paid; None: the payout receipt has not got the claims that it takes


@dataclass(frozen=True, slots=True)
class _File:
    payout_receipt: PayoutReceipt
    digest: bytes  # SHA-256 of the packed payout receipt


def payout_receipt_bytes(payout_receipt: PayoutReceipt) -> bytes:
    """Return a payout receipt as it is kept."""
    return pack(_File(payout_receipt, sha256(pack(payout_receipt))))


def read_payout_receipt(data: bytes) -> PayoutReceipt:
    """Return the payout receipt that was kept; nothing of it is proven yet.

    Raises:
        EncodingError: it is damaged, or none.
    """
    found = unpack(_File, data, max_bytes=MAX_RECEIPT_BYTES)
    if sha256(pack(found.payout_receipt)) != found.digest:
        raise EncodingError("its digest is another one")
    return found.payout_receipt


def prove(payout_receipt: PayoutReceipt, manifest: Manifest, run: bytes, training_spec: TrainingSpec) -> ProvenPayoutReceipt:
    """Return what a payout receipt proves, each of its signatures and proofs checked.

    Raises:
        RemoteFault: one of them does not hold, or they are not of one another.
    """
    proven, header = open_listing(payout_receipt.listing, Operators.of(manifest, run))
    header.contribution.open()
    claim = payout_receipt.claim.open()
    if payout_receipt.claim not in header.claims:
        raise ProofError("a contribution that does not list the claim")
    if claim.run != run:
        raise ProofError("a claim of another run")
    shares = earned(manifest, training_spec, proven, payout_receipt.claims[0]) if payout_receipt.claims else None
    amount = None if shares is None else shares.get(claim.key, 0)
    if amount is not None and payout_receipt.paid not in ((), (amount,)):
        raise ProofError(f"it says that the round paid {payout_receipt.paid[0]}, and its claims come to {amount}")
    return ProvenPayoutReceipt(
        proven.round,
        proven.commit,
        payout_receipt.listing.receipt.index,
        proven.tree_head,
        claim.key,
        claim.payout,
        claim.microbatches,
        amount,
    )


def check_one_log(payout_receipts: Iterable[ProvenPayoutReceipt]) -> None:
    """Check that payout receipts, each proven, are of one history, as far as they show it themselves; several peers may have kept them.

    Two heads of one size have one root, one round has one commit, and a round whose predecessor is there names that one's commit.

    Raises:
        LedgerError: they are not: its operator signed two histories.
    """
    roots, commits, last = dict[int, bytes](), dict[int, bytes](), (-1, -1)
    for payout_receipt in sorted(payout_receipts, key=lambda one: one.round.round):
        round_ = payout_receipt.round.round
        if roots.setdefault(payout_receipt.head.size, payout_receipt.head.root) != payout_receipt.head.root:
            raise LedgerError(
                f"two tree heads of {payout_receipt.head.size} entries with different roots, both signed: the operator has two histories"
            )
        if (
            commits.setdefault(round_, payout_receipt.commit) != payout_receipt.commit
            or commits.get(round_ - 1, payout_receipt.round.base) != payout_receipt.round.base
        ):
            raise LedgerError(f"round {round_} does not follow the round before it, and the operator signed both: it has two histories")
        is_in_place = payout_receipt.index == last[1] if round_ == last[0] else payout_receipt.index > last[1]
        if not is_in_place:
            raise LedgerError(f"round {round_} stands before an earlier one in the log, and the operator signed both")
        last = round_, payout_receipt.index
