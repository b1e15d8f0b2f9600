"""A receipt of a round proves that the operator's log has it, and nothing else does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import EncodingError, ProofError, RemoteFault, SignatureError
from protocol.ledger import Ledger
from protocol.manifest import SignedManifest
from protocol.merkle import inclusion_proof, leaf_hash, root
from protocol.notes import TreeHead, origin, sign_tree_head
from protocol.operators import Operators
from protocol.receipts import open_round_receipt
from protocol.records import Receipt, Round, commit_digest, open_entry
from protocol.signing import Identity, sha256
from tests.contributions import PEERS, commit, header_of
from tests.runs import FixedCourse, manifest_of

OPERATOR, OTHER = Identity(b"o" * 32), Identity(b"p" * 32)


def log_of(num_rounds: int) -> tuple[bytes, list[bytes]]:
    """The run's id and its log: two contributions a round, so five entries."""
    ledger = Ledger(SignedManifest.sign(manifest_of(OPERATOR), OPERATOR), FixedCourse())
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
    index = 5 * number - 1
    for size in range(index + 1, len(ENTRIES) + 1):
        proven = open_round_receipt(receipt_of(index, size=size), OPERATORS)
        assert proven.round == open_entry(ENTRIES[index])
        assert proven.round.round == number
        assert proven.commit == commit_digest(ENTRIES[index])
        assert (proven.tree_head.size, proven.tree_head.root) == (size, root(LEAVES[:size]))


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_receipt_of_another_entry_is_refused(index: int) -> None:
    assert not isinstance(open_entry(ENTRIES[index]), Round)
    with pytest.raises(EncodingError, match="not a round"):
        open_round_receipt(receipt_of(index), OPERATORS)


def test_a_round_of_another_run_in_a_log_of_this_one_is_refused() -> None:
    other = sha256(b"another run")
    with pytest.raises(EncodingError, match="not a round of this run"):
        open_round_receipt(receipt_of(4, run=other), Operators(other, (OPERATOR.public_key,), 1))


def test_another_operator_s_log_is_refused() -> None:
    with pytest.raises(SignatureError):
        open_round_receipt(receipt_of(4, signer=OTHER), OPERATORS)
    with pytest.raises(SignatureError):
        open_round_receipt(receipt_of(4), Operators(RUN, (OTHER.public_key,), 1))
    with pytest.raises(ProofError, match="another log"):
        open_round_receipt(receipt_of(4), Operators(sha256(b"another run"), (OPERATOR.public_key,), 1))


def test_a_head_that_names_another_log_is_refused() -> None:
    name = origin(RUN)
    head = TreeHead("manta/another/log", len(ENTRIES), root(LEAVES))
    with pytest.raises(ProofError, match="another log"):
        open_round_receipt(replace(receipt_of(4), tree_head=sign_tree_head(head, name, OPERATOR)), OPERATORS)


def test_a_proof_of_something_else_is_refused() -> None:
    good = receipt_of(9)
    for changed in (
        replace(good, entry=ENTRIES[4]),
        replace(good, index=4),
        replace(good, index=-1),
        replace(good, index=len(ENTRIES)),
        replace(good, index=2**62),
        replace(good, proof=good.proof[:-1]),
        replace(good, proof=(*good.proof, bytes(32))),
        replace(good, proof=()),
        replace(good, proof=(b"short", *good.proof[1:])),
        replace(good, tree_head=receipt_of(4, size=5).tree_head),
    ):
        with pytest.raises(ProofError):
            open_round_receipt(changed, OPERATORS)


@pytest.mark.parametrize("note", ["", "\n\n", "no note", "manta\n1\n\n— a b\n", "\ud800", "x" * 200_000])
def test_what_is_no_tree_head_is_refused(note: str) -> None:
    with pytest.raises((EncodingError, SignatureError)):
        open_round_receipt(replace(receipt_of(4), tree_head=note), OPERATORS)


def test_an_entry_that_is_none_is_refused_also_when_the_log_has_it() -> None:
    entry = b"not an entry"
    name = origin(RUN)
    head = sign_tree_head(TreeHead(name, 1, leaf_hash(entry)), name, OPERATOR)
    with pytest.raises(EncodingError):
        open_round_receipt(Receipt(entry, 0, (), head), OPERATORS)


@given(st.data())
def test_a_changed_bit_of_the_entry_or_the_proof_is_refused(data: st.DataObject) -> None:
    good = receipt_of(9)
    parts = [good.entry, *good.proof]
    which = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 8 * len(parts[which]) - 1))
    flipped = bytearray(parts[which])
    flipped[bit // 8] ^= 1 << bit % 8
    parts[which] = bytes(flipped)
    with pytest.raises(RemoteFault):
        open_round_receipt(replace(good, entry=parts[0], proof=tuple(parts[1:])), OPERATORS)
