import re

import pytest
import torch

from automl.space import TINY, Architecture
from automl.training import Lot, LotResult
from peer.work import Lap, Pile
from protocol.encoding import pack
from protocol.merkle import leaf_hash, root
from protocol.records import LotRecord, SignedClaim
from protocol.signing import Identity, sha256

PEER = Identity(b"\x0b" * 32)
LARGEST, SMALLEST = TINY.largest(), TINY.smallest()


def lot(index: int, architecture: Architecture, samples: int) -> Lot:
    return Lot(7, 3, "here", PEER.public_key, index, architecture, samples)


def result(gradient: list[float], samples: int, loss: float, projection: bytes = b"p") -> LotResult:
    return LotResult(gradient=torch.tensor(gradient), loss=loss, samples=samples, projection=projection)


def three_lots() -> Pile:
    pile = Pile(2)
    pile.add(lot(0, LARGEST, 16), result([1.0, 0.0], 16, 2.0, b"a"))
    pile.add(lot(1, SMALLEST, 48), result([0.0, 4.0], 48, 1.0, b"b"))
    pile.add(lot(2, LARGEST, 16), result([-1.0, 8.0], 16, 0.123456789, b"c"))
    return pile


def test_the_gradient_is_the_mean_over_samples_not_over_lots() -> None:
    assert three_lots().gradient().tolist() == [(16 - 16) / 80, (48 * 4 + 16 * 8) / 80]


def test_the_loss_is_the_mean_over_samples() -> None:
    assert three_lots().loss == pytest.approx((16 * 2 + 48 * 1 + 16 * 0.123456789) / 80)


def test_a_pile_has_as_many_lots_as_were_added() -> None:
    assert len(Pile(2)) == 0
    assert len(three_lots()) == 3


def test_the_lots_gradients_are_not_changed() -> None:
    pile, one = Pile(2), result([1.0, 2.0], 16, 1.0)
    pile.add(lot(0, LARGEST, 16), one)
    pile.add(lot(1, LARGEST, 16), result([5.0, 5.0], 16, 1.0))
    assert one.gradient.tolist() == [1.0, 2.0]


def test_a_gradient_that_was_taken_does_not_change_with_later_lots() -> None:
    pile = three_lots()
    taken = pile.gradient()
    before = taken.clone()
    pile.add(lot(3, LARGEST, 16), result([100.0, 100.0], 16, 1.0))
    assert torch.equal(taken, before)


def test_the_claim_states_the_samples_of_each_architecture_and_the_root_over_its_lots() -> None:
    commit = sha256(b"commit")
    claim = three_lots().claim(run=sha256(b"run"), round_=3, last_commit=commit, key=PEER.public_key, cohort="here")
    assert dict(claim.work) == {LARGEST.text: 32, SMALLEST.text: 48}
    assert (claim.samples, claim.lots, claim.round, claim.last_commit, claim.cohort) == (80, 3, 3, commit, "here")
    leaves = [
        LotRecord(0, LARGEST.text, 16, "2", b"a"),
        LotRecord(1, SMALLEST.text, 48, "1", b"b"),
        LotRecord(2, LARGEST.text, 16, "0.123457", b"c"),
    ]
    assert claim.lots_root == root([leaf_hash(pack(leaf)) for leaf in leaves])
    assert SignedClaim.sign(claim, PEER).open() == claim


def test_times_add_up_by_name_until_the_line_is_told() -> None:
    lap = Lap()
    for name in ("train", "reduce", "train"):
        lap.mark(name)
    assert re.fullmatch(r"train_s=\d+\.\d\d reduce_s=\d+\.\d\d commit_s=\d+\.\d\d", lap.line())
    assert re.fullmatch(r"commit_s=\d+\.\d\d", lap.line())
