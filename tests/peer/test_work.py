import re

import pytest
import torch

from automl.space import TINY, Architecture
from automl.training import Lot, LotResult
from exact.coding import encode
from peer.work import Lap, Pile, made_of
from protocol.encoding import pack
from protocol.merkle import leaf_hash, root
from protocol.records import LotRecord
from protocol.rounds import Standing
from protocol.signing import Identity, sha256

PEER = Identity(b"\x0b" * 32)
LARGEST, SMALLEST = TINY.largest(), TINY.smallest()
ASKED = (LARGEST, SMALLEST, LARGEST)  # a round may ask for the same twice


def lot(index: int, architecture: Architecture, samples: int) -> Lot:
    return Lot(7, sha256(b"base"), 0, PEER.public_key, index, architecture, samples)


def result(gradient: list[float], samples: int, loss: float, projection: bytes = b"p") -> LotResult:
    return LotResult(gradient=torch.tensor(gradient), loss=loss, samples=samples, projection=projection)


def three_lots() -> Pile:
    pile = Pile(2, ASKED)
    pile.add(lot(0, LARGEST, 16), 2, result([1.0, 0.0], 16, 2.0, b"a"))
    pile.add(lot(1, SMALLEST, 48), 1, result([0.0, 4.0], 48, 1.0, b"b"))
    pile.add(lot(3, LARGEST, 16), 2, result([-1.0, 8.0], 16, 0.123456789, b"c"))
    return pile


def test_the_gradient_is_the_mean_over_samples_not_over_lots() -> None:
    assert three_lots().gradient().tolist() == [(16 - 16) / 80, (48 * 4 + 16 * 8) / 80]


def test_the_loss_is_the_mean_over_samples() -> None:
    assert three_lots().loss == pytest.approx((16 * 2 + 48 * 1 + 16 * 0.123456789) / 80)


def test_a_pile_has_as_many_lots_as_were_added() -> None:
    assert len(Pile(2, ASKED)) == 0
    assert len(three_lots()) == 3


def test_lots_are_counted_by_the_place_of_their_architecture_in_what_the_round_asks_for() -> None:
    assert Pile(2, ASKED).work == (0, 0, 0)
    assert three_lots().work == (0, 1, 2)


def test_the_lots_gradients_are_not_changed() -> None:
    pile, one = Pile(2, ASKED), result([1.0, 2.0], 16, 1.0)
    pile.add(lot(0, LARGEST, 16), 0, one)
    pile.add(lot(1, LARGEST, 16), 0, result([5.0, 5.0], 16, 1.0))
    assert one.gradient.tolist() == [1.0, 2.0]


def test_a_gradient_that_was_taken_does_not_change_with_later_lots() -> None:
    pile = three_lots()
    taken = pile.gradient()
    before = taken.clone()
    pile.add(lot(4, LARGEST, 16), 0, result([100.0, 100.0], 16, 1.0))
    assert torch.equal(taken, before)


def test_the_root_is_over_the_lots_records_in_the_order_of_their_index_a_gap_where_one_was_dropped() -> None:
    leaves = [
        LotRecord(0, 0, LARGEST.text, 16, "2", b"a"),
        LotRecord(0, 1, SMALLEST.text, 48, "1", b"b"),
        LotRecord(0, 3, LARGEST.text, 16, "0.123457", b"c"),
    ]
    assert three_lots().lots_root() == root([leaf_hash(pack(leaf)) for leaf in leaves])


BASE = Standing(6, sha256(b"base"), sha256(b"state"), -20, None)


def test_what_is_made_of_lots_claims_them_and_has_the_body_of_their_mean_gradient() -> None:
    pile = three_lots()
    made = made_of(pile, BASE, PEER, sha256(b"run"), "home", codec="int16", lot_ms=12)
    assert made is not None
    (signed,), contribution = made.header.claims, made.header.contribution.open()
    claim = signed.open()
    assert (claim.run, claim.round, claim.base, claim.cohort) == (sha256(b"run"), 7, BASE.commit, "home")
    assert (claim.key, claim.founder, claim.local_steps, claim.residual, claim.lot_ms) == (PEER.public_key, PEER.public_key, 1, b"", 12)
    assert (claim.work, claim.lots_root) == (pile.work, pile.lots_root())
    vector = pile.gradient().numpy()
    assert claim.vector == sha256(vector.astype("<f4").tobytes())
    assert (contribution.run, contribution.round, contribution.base, contribution.founder) == (
        claim.run,
        claim.round,
        claim.base,
        claim.founder,
    )
    assert contribution.claims == (signed.digest,)
    assert made.blob.join() == encode("int16", vector, -20)
    assert contribution.body == made.blob.root
    assert made.body.values(-20).tolist() == vector.tolist()  # these few bits fit


def test_of_lots_whose_sum_is_no_number_nothing_is_made() -> None:
    pile = Pile(2, ASKED)
    for index in range(2):
        pile.add(lot(index, LARGEST, 16), 0, result([3e38, 0.0], 16, 1.0))
    assert made_of(pile, BASE, PEER, sha256(b"run"), "home", codec="int16", lot_ms=12) is None


def test_times_add_up_by_name_until_the_line_is_told() -> None:
    lap = Lap()
    for name in ("train", "wait", "train"):
        lap.mark(name)
    assert re.fullmatch(r"train_s=\d+\.\d\d wait_s=\d+\.\d\d", lap.line())
    lap.mark("hand_in")
    assert re.fullmatch(r"hand_in_s=\d+\.\d\d", lap.line())
