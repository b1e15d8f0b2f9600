"""A receipt of a round proves that the operator's log has it, a listing that the round counted a contribution, and nothing else does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import EncodingError, ProofError, RemoteFault, SignatureError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import inclusion_proof, leaf_hash, root
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_listing, open_round_receipt
from manta_swarm.protocol.records import Header, Included, Listing, Receipt, Round, commit_digest, entry_of, open_entry
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import PEERS, commit, header_of
from tests.runs import FixedTrainingSpec, manifest_of

OPERATOR, OTHER = Identity(b"o" * 32), Identity(b"p" * 32)


def log_of(num_rounds: int) -> tuple[bytes, list[bytes]]:
    """The run's id and its log: two contributions a round, so three entries."""
    ledger = Ledger(SignedManifest.sign(manifest_of(OPERATOR), OPERATOR), FixedTrainingSpec())
    return ledger.run, [entry for _ in range(num_rounds) for entry in commit(ledger, [header_of(ledger, peer) for peer in PEERS[:2]])]


RUN, ENTRIES = log_of(3)
OPERATORS = Operators(RUN, (OPERATOR.public_key,), 1)
LEAVES = [leaf_hash(entry) for entry in ENTRIES]


def receipt_of(index: int, *, size: int = len(ENTRIES), run: bytes = RUN, signer: Identity = OPERATOR) -> Receipt:
    name = origin(run)
    head = sign_tree_head(TreeHead(name, size, root(LEAVES[:size])), name, signer)
    return Receipt(ENTRIES[index], index, tuple(inclusion_proof(LEAVES[:size], index)), head)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_round_s_receipt_proves_it_under_every_head_that_covers_it(number: int) -> None:
    index = 3 * number - 1
    for size in range(index + 1, len(ENTRIES) + 1):
        proven = open_round_receipt(receipt_of(index, size=size), OPERATORS)
        assert proven.round == open_entry(ENTRIES[index])
        assert proven.round.round == number
        assert proven.commit == commit_digest(ENTRIES[index])
        assert (proven.tree_head.size, proven.tree_head.root) == (size, root(LEAVES[:size]))


@pytest.mark.parametrize("index", [0, 1, 3, 4])
def test_a_receipt_of_another_entry_is_refused(index: int) -> None:
    assert not isinstance(open_entry(ENTRIES[index]), Round)
    with pytest.raises(EncodingError, match="not a round"):
        open_round_receipt(receipt_of(index), OPERATORS)


def test_a_round_of_another_run_in_a_log_of_this_one_is_refused() -> None:
    other = sha256(b"another run")
    with pytest.raises(EncodingError, match="not a round of this run"):
        open_round_receipt(receipt_of(2, run=other), Operators(other, (OPERATOR.public_key,), 1))


def test_another_operator_s_log_is_refused() -> None:
    with pytest.raises(SignatureError):
        open_round_receipt(receipt_of(2, signer=OTHER), OPERATORS)
    with pytest.raises(SignatureError):
        open_round_receipt(receipt_of(2), Operators(RUN, (OTHER.public_key,), 1))
    with pytest.raises(ProofError, match="another log"):
        open_round_receipt(receipt_of(2), Operators(sha256(b"another run"), (OPERATOR.public_key,), 1))


def test_a_proof_of_something_else_is_refused() -> None:
    good = receipt_of(5)
    for changed in (
        replace(good, entry=ENTRIES[2]),
        replace(good, index=2),
        replace(good, index=-1),
        replace(good, index=len(ENTRIES)),
        replace(good, index=2**62),
        replace(good, proof=good.proof[:-1]),
        replace(good, proof=(*good.proof, bytes(32))),
        replace(good, proof=()),
        replace(good, proof=(b"short", *good.proof[1:])),
        replace(good, tree_head=receipt_of(2, size=3).tree_head),
    ):
        with pytest.raises(ProofError):
            open_round_receipt(changed, OPERATORS)


@pytest.mark.parametrize("note", ["", "\n\n", "no note", "manta\n1\n\n— a b\n", "\ud800", "x" * 200_000])
def test_what_is_no_tree_head_is_refused(note: str) -> None:
    with pytest.raises((EncodingError, SignatureError)):
        open_round_receipt(replace(receipt_of(2), tree_head=note), OPERATORS)


def test_an_entry_that_is_none_is_refused_also_when_the_log_has_it() -> None:
    entry = b"not an entry"
    name = origin(RUN)
    head = sign_tree_head(TreeHead(name, 1, leaf_hash(entry)), name, OPERATOR)
    with pytest.raises(EncodingError):
        open_round_receipt(Receipt(entry, 0, (), head), OPERATORS)


@given(st.data())
def test_a_changed_bit_of_the_entry_or_the_proof_is_refused(data: st.DataObject) -> None:
    good = receipt_of(5)
    parts = [good.entry, *good.proof]
    which = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 8 * len(parts[which]) - 1))
    flipped = bytearray(parts[which])
    flipped[bit // 8] ^= 1 << bit % 8
    parts[which] = bytes(flipped)
    with pytest.raises(RemoteFault):
        open_round_receipt(replace(good, entry=parts[0], proof=tuple(parts[1:])), OPERATORS)


# Listings.


def listing_of(index: int, *, round_: int = 3, size: int = len(ENTRIES)) -> Listing:
    """Return entry ``index`` beside a round's receipt, under one head."""
    return Listing(receipt_of(3 * round_ - 1, size=size), Included(ENTRIES[index], index, tuple(inclusion_proof(LEAVES[:size], index))))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_round_lists_just_the_contributions_right_before_it(number: int) -> None:
    for index, entry in enumerate(ENTRIES):
        listing = listing_of(index, round_=number)
        if 3 * (number - 1) <= index < 3 * number - 1:
            proven, header = open_listing(listing, OPERATORS)
            assert (proven.round.round, header) == (number, open_entry(entry))
        else:
            with pytest.raises(ProofError, match="none of the round's"):
                open_listing(listing, OPERATORS)


def test_a_listing_is_of_one_head() -> None:
    later, earlier = listing_of(3, round_=2), listing_of(3, round_=2, size=6)
    open_listing(earlier, OPERATORS)
    for one, other in ((later, earlier), (earlier, later)):
        with pytest.raises(ProofError):
            open_listing(replace(one, contribution=other.contribution), OPERATORS)


def test_a_contribution_that_is_another_one_is_not_listed() -> None:
    good = listing_of(7)
    for changed in (
        replace(good.contribution, entry=ENTRIES[6]),
        replace(good.contribution, index=6),
        replace(good.contribution, proof=good.contribution.proof[:-1]),
        replace(good.contribution, proof=()),
    ):
        with pytest.raises(ProofError):
            open_listing(replace(good, contribution=changed), OPERATORS)


@given(st.data())
def test_a_changed_bit_of_a_listed_contribution_is_refused(data: st.DataObject) -> None:
    good = listing_of(7)
    changed = bytearray(good.contribution.entry)
    bit = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RemoteFault):
        open_listing(replace(good, contribution=replace(good.contribution, entry=bytes(changed))), OPERATORS)


def test_an_operator_that_puts_something_else_among_the_contributions_lists_nothing() -> None:
    """A log that keeps to no rule, but signs its head."""
    round_ = open_entry(ENTRIES[8])
    header = open_entry(ENTRIES[6])
    assert isinstance(round_, Round)
    assert isinstance(header, Header)
    for false in (ENTRIES[5], entry_of(replace(header, claims=header.claims * 2))):
        leaves = [leaf_hash(entry) for entry in (false, entry_of(replace(round_, first=0, contributions=1)))]
        head = sign_tree_head(TreeHead(origin(RUN), 2, root(leaves)), origin(RUN), OPERATOR)
        receipt = Receipt(entry_of(replace(round_, first=0, contributions=1)), 1, (leaves[0],), head)
        with pytest.raises(EncodingError):
            open_listing(Listing(receipt, Included(false, 0, (leaves[1],))), OPERATORS)
