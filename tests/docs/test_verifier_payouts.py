"""docs/verifier.py on payout receipts as peers keep them: each proof in them, and what they say that rounds paid."""

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.log.log import Log as StoredLog
from manta_swarm.peer.credit.payout_receipts import PayoutReceiptFolder
from manta_swarm.protocol.notes import TreeHead, sign_tree_head
from manta_swarm.protocol.payout_receipts import PayoutReceipt
from manta_swarm.protocol.records import Listing, Round, open_entry
from manta_swarm.protocol.rewards import RoundContributions
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import sha256
from tests.docs.logs import ONE, OPERATOR, STRANGER, THREE
from tests.docs.verifiers import verifier
from tests.docs.whole import WholeRun, unaudited

ROUND, PAID = 1, 333  # a third of the pool of 1000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WholeRun]:
    """The folder of a run without audits."""
    run, folder = unaudited(), tmp_path_factory.mktemp("unaudited") / "run"
    run.write(folder, {0: run.states()[0]})
    return folder, run


def payout_of(folder: Path, run: WholeRun, round_: int = ROUND) -> PayoutReceipt:
    """Return what THREE keeps of a round in which it was alone: the third contribution of the first one."""
    with StoredLog.open(folder, OPERATOR) as log:
        last = [index for index in range(log.head.size) if isinstance(open_entry(log.entry(index)), Round)][round_ - 1]
        entry = open_entry(log.entry(last))
        assert isinstance(entry, Round)
        places = range(entry.first, entry.first + entry.contributions)
        listed = [one.header for one in run.rounds[round_ - 1].handed_in]
        place = next(at for at, header in enumerate(listed) if header.contribution.open().founder == THREE.public_key)
        receipt = log.receipt(last)
        contributions = RoundContributions(
            tuple(log.entry(index) for index in places), log.range_proof(places.start, places.stop, log.head.size)
        )
        listing = Listing(receipt, log.included(places[place], log.head.size))
    return PayoutReceipt(listing, listed[place].claims[0], (contributions,), (PAID,))


def checked(folder: Path, to: Path, payout: PayoutReceipt) -> tuple[Any, dict[str, str]]:
    """Return what the verifier makes of a whole folder with this payout receipt."""
    PayoutReceiptFolder(to / "payout receipts").keep(ROUND, payout)
    return verifier.verify_all(folder, verifier.Asked(payouts=(to / "payout receipts",), is_whole=True))  # type: ignore[no-any-return]


def test_a_payout_receipt_holds_with_its_whole_run(original: tuple[Path, WholeRun], tmp_path: Path) -> None:
    ledger, said = checked(original[0], tmp_path, payout_of(*original))
    assert (said["receipts"], dict(ledger.credits)) == ("0 hold, and 1 payout receipts", original[1].log.ledger.credits())


def with_listing(payout: PayoutReceipt, **changes: Any) -> PayoutReceipt:
    return replace(payout, listing=replace(payout.listing, **changes))


def with_receipt(payout: PayoutReceipt, **changes: Any) -> PayoutReceipt:
    return with_listing(payout, receipt=replace(payout.listing.receipt, **changes))


def with_proof(payout: PayoutReceipt, *proof: bytes) -> PayoutReceipt:
    return with_listing(payout, contribution=replace(payout.listing.contribution, proof=proof))


def with_contributions(payout: PayoutReceipt, *, first: int = 0, last: int | None = None, more: tuple[bytes, ...] = ()) -> PayoutReceipt:
    """Return a payout receipt that has a round's contributions from the first on, and of the proof of their range all up to the last."""
    (found,) = payout.claims
    return replace(payout, claims=(replace(found, entries=found.entries[first:], proof=(*found.proof[:last], *more)),))


def with_another_claim(payout: PayoutReceipt) -> PayoutReceipt:
    return replace(payout, claim=Signed.sign(replace(payout.claim.open(), key=ONE.public_key), ONE))


def strangers_head(payout: PayoutReceipt) -> str:
    """Return the head of its receipt, signed by a stranger."""
    origin, size, root, *_ = payout.listing.receipt.tree_head.split("\n")
    return sign_tree_head(TreeHead(origin, int(size), base64.b64decode(root)), origin, STRANGER)


FORGED: dict[str, tuple[str, str, Callable[[PayoutReceipt, PayoutReceipt], PayoutReceipt]]] = {  # the second one is of another round
    "it says that more was paid": ("C2", f"round 1 paid {PAID}, it says {PAID + 1}", lambda one, _: replace(one, paid=(PAID + 1,))),
    "the claim is another": ("C2", "does not list the claim", lambda one, _: with_another_claim(one)),
    "the contribution is of another round": (
        "C2",
        "the contribution is of another round",
        lambda one, other: with_listing(one, contribution=other.listing.contribution),
    ),
    "the proof is another": ("T5", "a contribution", lambda one, _: with_proof(one, *map(sha256, (b"1", b"2", b"3", b"4")))),
    "the proof is too short": ("T5", "another length", lambda one, _: with_proof(one)),
    "a contribution is left out": ("T5", "contributions", lambda one, _: with_contributions(one, first=1)),
    "the proof of the range is too long": ("T5", "too long", lambda one, _: with_contributions(one, more=(bytes(32),))),
    "the proof of the range is too short": ("T5", "too short", lambda one, _: with_contributions(one, last=-1)),
    "the receipt is of another entry": ("T5", "a receipt", lambda one, _: with_receipt(one, index=0)),
    "the head is a stranger's": ("T2", "0 of 1 operators", lambda one, _: with_receipt(one, tree_head=strangers_head(one))),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_payout_receipt_is_refused(original: tuple[Path, WholeRun], tmp_path: Path, name: str) -> None:
    rule, words, forge = FORGED[name]
    with pytest.raises(verifier.Refused) as caught:
        checked(original[0], tmp_path, forge(payout_of(*original), payout_of(*original, 3)))
    assert (caught.value.rule, caught.value.where) == (rule, "payout receipts/00000001")
    assert words in str(caught.value)


def test_a_damaged_payout_receipt_is_refused(original: tuple[Path, WholeRun], tmp_path: Path) -> None:
    checked(original[0], tmp_path, payout_of(*original))
    path = tmp_path / "payout receipts" / "00000001"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    with pytest.raises(verifier.Refused, match="its digest is another"):
        verifier.verify_all(original[0], verifier.Asked(payouts=(tmp_path / "payout receipts",)))
