"""What shows that a log does not hold to what it signed, and what shows nothing."""

from dataclasses import replace

import pytest

from manta_swarm.protocol.cosignatures import cosign, with_cosignatures
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, ProofError, RemoteFault, SignatureError
from manta_swarm.protocol.histories import Departure, Histories, contradict, departure
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, parse_tree_head, sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.records import Included, Receipt, entry_of
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import PEERS, header_of, round_of
from tests.runs import FixedTrainingSpec, manifest_of

OPERATOR, STRANGER = Identity(b"\x01" * 32), Identity(b"\x03" * 32)
SIGNED = SignedManifest.sign(manifest_of(OPERATOR, num_rounds=100), OPERATOR)
NAME = origin(SIGNED.run)
OPERATORS = Operators.of_signed(SIGNED)


class History:
    """A log of the run, in memory; another ``mean`` makes another round of it."""

    def __init__(self, signed: SignedManifest = SIGNED) -> None:
        self.signed, self.ledger, self.tree = signed, Ledger(signed, FixedTrainingSpec()), Tree()

    def commit(self, mean: bytes = b"mean") -> Receipt:
        """Commit a round; return its receipt."""
        headers = [header_of(self.ledger, peer, microbatches=(1, 1)) for peer in PEERS[:2]]
        listed = [self.ledger.listed(one, self.ledger.round + 1) for one in headers]
        entries = [*map(entry_of, headers), entry_of(round_of(self.ledger, listed, mean=sha256(mean)))]
        for entry in entries:
            self.ledger.append(entry)
            self.tree.append(leaf_hash(entry))
        return Receipt(entries[-1], self.tree.size - 1, tuple(self.tree.inclusion_proof(self.tree.size - 1)), self.note())

    def note(self, size: int | None = None, signer: Identity = OPERATOR) -> str:
        """Return the tree head after ``size`` entries, signed."""
        size = self.tree.size if size is None else size
        name = origin(self.ledger.run)
        return sign_tree_head(TreeHead(name, size, self.tree.root(size)), name, signer)

    def head(self) -> TreeHead:
        return TreeHead(NAME, self.tree.size, self.tree.root())


def histories(*means: str, signed: SignedManifest = SIGNED) -> list[tuple[History, list[Receipt]]]:
    """Return a log for each word, with a round for each of its letters, and these rounds' receipts."""
    found = []
    for letters in means:
        log = History(signed)
        found.append((log, [log.commit(letter.encode()) for letter in letters]))
    return found


def test_a_log_that_goes_on_departs_from_nothing() -> None:
    ((log, receipts),) = histories("abc")
    held = open_round_receipt(receipts[0], OPERATORS).tree_head
    proof = tuple(log.tree.consistency_proof(held.size))
    assert departure(held, log.head(), proof) is None
    assert departure(log.head(), log.head(), ()) is None
    with pytest.raises(ProofError, match="continues"):
        Histories.shown_after(SIGNED, receipts[0], log.note(), proof).check()


def test_a_log_that_shows_fewer_entries_went_back() -> None:
    ((log, receipts),) = histories("abc")
    shown = Histories.shown_after(SIGNED, receipts[2], log.note(3), ()).check()
    assert (shown.departure, shown.shown.size) == (Departure.ROLLED_BACK, 3)
    assert (shown.held.size, shown.round, shown.entries_held) == (9, 3, "9 entries, up to round 3")
    assert (shown.run, shown.operators) == (SIGNED.run, (OPERATOR.public_key,))


def test_two_heads_of_one_size_are_a_fork() -> None:
    (_, receipts), (other, _) = histories("ab", "ax")
    assert Histories.shown_after(SIGNED, receipts[1], other.note(), ()).check().departure is Departure.FORKED


def test_a_longer_log_without_a_proof_that_it_goes_on_is_not_believed() -> None:
    (_, receipts), (other, _) = histories("ab", "axy")
    for proof in ((), tuple(other.tree.consistency_proof(6)), (b"\x00" * 32,) * 3):
        assert Histories.shown_after(SIGNED, receipts[1], other.note(), proof).check().departure is Departure.UNPROVEN


def test_two_rounds_that_no_log_can_have_are_a_fork() -> None:
    (_, receipts), (_, others) = histories("abc", "axy")
    for held, other in ((1, 1), (1, 2), (2, 1)):
        evidence = Histories.of_rounds(SIGNED, receipts[held], others[other])
        assert evidence.check().departure is Departure.FORKED
        assert unpack(Histories, pack(evidence), max_bytes=2**20) == evidence


def test_of_two_histories_that_count_those_are_the_liars_who_signed_both() -> None:
    operators = [OPERATOR, *(Identity(bytes([seed]) * 32) for seed in (7, 8, 9))]
    made = manifest_of(OPERATOR, operators=tuple(each.public_key for each in operators), quorum=3)
    signed = SignedManifest.sign(made, OPERATOR)
    (_, receipts), (_, others) = histories("abc", "axy", signed=signed)

    def by(receipt: Receipt, signers: list[Identity]) -> Receipt:
        text, _, _ = receipt.tree_head.partition("\n\n")
        head = parse_tree_head(f"{text}\n")
        note = sign_tree_head(head, head.origin, signers[0])
        return replace(receipt, tree_head=with_cosignatures(note, [cosign(f"{text}\n", 1_800_000_000, each) for each in signers[1:]]))

    held, other = by(receipts[1], operators[:3]), by(others[2], operators[1:])
    shown = Histories.of_rounds(signed, held, other).check()
    assert shown.departure is Departure.FORKED
    assert set(shown.operators) == {each.public_key for each in operators[1:3]}
    too_few = by(others[2], operators[2:])
    with pytest.raises(SignatureError, match="2 of 4 operators"):
        Histories.of_rounds(signed, held, too_few).check()


def test_rounds_of_one_log_contradict_nothing() -> None:
    ((_, receipts),) = histories("abc")
    proven = [open_round_receipt(receipt, OPERATORS) for receipt in receipts]
    assert not any(contradict(one, other) for one in proven for other in proven)
    with pytest.raises(ProofError, match="may stand in one log"):
        Histories.of_rounds(SIGNED, receipts[0], receipts[1]).check()


def test_what_the_operator_did_not_sign_shows_nothing() -> None:
    ((log, receipts),) = histories("ab")
    with pytest.raises(SignatureError):
        Histories.shown_after(SIGNED, receipts[1], log.note(5, STRANGER), ()).check()
    forged = replace(receipts[1], tree_head=log.note(None, STRANGER))
    with pytest.raises(SignatureError):
        Histories.shown_after(SIGNED, forged, log.note(3), ()).check()
    with pytest.raises(RemoteFault):
        Histories.shown_after(SIGNED, replace(receipts[1], index=3), log.note(3), ()).check()
    with pytest.raises(EncodingError):
        unpack(Histories, pack((SIGNED, (log.note(), log.note()), (), (Included(b"", 0, ()),) * 3)), max_bytes=2**20)
