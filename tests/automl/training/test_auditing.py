"""Records of lots that were really trained hold; each way of cheating that records or a body can show does not."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from automl.data.images import ImageDataset
from automl.models.classifier import Classifier
from automl.training.auditing import (
    FP32,
    Mismatch,
    body_deviation,
    check_records,
    deviation,
    is_linear,
    is_loss,
    lot_of,
    mean_projection,
    projection_of,
    values_of,
)
from automl.training.lots import Lot, LotResult, Worker
from automl.training.schedule import Plan
from exact.coding import encode, parse
from protocol.encoding import pack
from protocol.lots import place_of_lot
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, ClaimStep, LotRecord
from protocol.signing import Identity, sha256
from tests.claim_steps import steps_of
from tests.runs import manifest_of

OPERATOR, KEY, BASE = Identity(b"\x0b" * 32), b"k" * 32, b"b" * 32
MANIFEST = manifest_of(OPERATOR)
PLAN = Plan.of(MANIFEST)
FLOORS = {"int16": -30, "int8": -22}  # four times a gradient has room, too


def records_root(records: list[LotRecord]) -> bytes:
    return root([leaf_hash(pack(record)) for record in records])


def claimed(records: list[LotRecord], **changes: Any) -> Claim:
    asked = [each.text for each in PLAN.architectures(1, "home")]
    work = [0] * len(asked)
    for record in records:
        work[place_of_lot(len(asked), BASE, KEY, record.index)] += 1
    steps = steps_of(tuple(work), BASE, KEY)
    claim = Claim(bytes(32), 1, BASE, KEY, KEY, KEY, "home", steps, tuple(work), records_root(records), b"", sha256(b"vector"), b"", 10)
    return replace(claim, **changes)


def lot_at(index: int) -> Lot:
    architecture = PLAN.architectures(1, "home")[place_of_lot(4, BASE, KEY, index)]
    strength = PLAN.augmentation(1, architecture)
    return Lot(MANIFEST.seed, BASE, 0, KEY, index, architecture, MANIFEST.lot_samples, strength)


def record_of(lot: Lot, result: LotResult) -> LotRecord:
    return LotRecord(lot.step, lot.index, lot.architecture.text, lot.samples, f"{result.loss:.6g}", result.projection)


@pytest.fixture(scope="module")
def supernet_worker(digits: ImageDataset) -> Worker:
    net = Classifier(PLAN.space)
    net.initialise(torch.Generator().manual_seed(3))
    worker = Worker("classifier-tiny", digits)
    worker.load(net.flat_weights_N.clone())
    return worker


@pytest.fixture(scope="module")
def trained(supernet_worker: Worker) -> list[tuple[Lot, LotResult]]:
    return [(lot, supernet_worker.train(lot)) for lot in map(lot_at, range(6))]


@pytest.fixture(scope="module")
def records(trained: list[tuple[Lot, LotResult]]) -> list[LotRecord]:
    return [record_of(lot, result) for lot, result in trained]


def test_records_of_what_the_schedule_asks_for_hold_and_lead_to_the_same_lots(
    records: list[LotRecord], trained: list[tuple[Lot, LotResult]]
) -> None:
    claim = claimed(records)
    check_records(MANIFEST, PLAN, claim, records)
    assert [lot_of(MANIFEST, PLAN, claim, record) for record in records] == [lot for lot, _ in trained]


def test_a_lot_that_was_dropped_leaves_a_gap_that_is_nobodys_fault(records: list[LotRecord]) -> None:
    left = records[:2] + records[3:]
    check_records(MANIFEST, PLAN, claimed(left), left)


Change = Callable[[list[LotRecord]], list[LotRecord]]


def last_with(**changes: Any) -> Change:
    return lambda all_: [*all_[:-1], replace(all_[-1], **changes)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (last_with(architecture=PLAN.space.sample(random.Random(9)).text), "architecture"),
        (lambda all_: [all_[1], all_[0], *all_[2:]], "stands behind"),
        (lambda all_: [*all_, all_[-1]], "stands behind"),
        (last_with(samples=64), "samples"),
        (last_with(step=1), "stands behind"),
        (last_with(projection=b""), "projection"),
        (last_with(projection=np.full(8, np.nan, "<f4").tobytes()), "projection"),
        (last_with(loss="nan"), "loss"),
        (last_with(loss="2.30"), "loss"),
    ],
)
def test_records_that_no_honest_peer_makes_are_refused_even_under_the_claims_own_root(
    records: list[LotRecord], change: Change, reason: str
) -> None:
    changed = change(list(records))
    with pytest.raises(Mismatch, match=reason):
        check_records(MANIFEST, PLAN, claimed(changed), changed)


def test_a_claim_of_four_times_the_lots_or_of_the_dearest_ones_only_is_no_claim_of_its_records(records: list[LotRecord]) -> None:
    claim = claimed(records)
    with pytest.raises(Mismatch, match="records of"):
        check_records(
            MANIFEST,
            PLAN,
            replace(claim, steps=(ClaimStep(0, 4 * claim.lots - 1, (), bytes(32)),), work=tuple(4 * lots for lots in claim.work)),
            records,
        )
    dearest = (sum(claim.work), 0, 0, 0)
    with pytest.raises(Mismatch, match="claims other lots"):
        check_records(MANIFEST, PLAN, replace(claim, work=dearest), records)
    with pytest.raises(Mismatch, match="root"):
        check_records(MANIFEST, PLAN, replace(claim, lots_root=bytes(32)), records)


def test_claims_of_several_steps_have_lots_in_each(records: list[LotRecord]) -> None:
    stepped = [replace(record, step=place // 3) for place, record in enumerate(records)]
    work = claimed(records).work
    claim = claimed(stepped, steps=steps_of(work, BASE, KEY, steps=2), steps_root=bytes(32))
    check_records(MANIFEST, PLAN, claim, stepped)
    with pytest.raises(Mismatch, match="or other steps"):
        check_records(MANIFEST, PLAN, replace(claim, steps=steps_of(work, BASE, KEY, steps=3)), stepped)


def test_a_lot_computed_again_is_within_the_tolerance_with_other_threads_too(
    supernet_worker: Worker, trained: list[tuple[Lot, LotResult]], records: list[LotRecord]
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        for (lot, _), record in zip(trained, records, strict=True):
            assert deviation(record, supernet_worker.train(lot)).is_within(FP32)
    finally:
        torch.set_num_threads(threads)


def test_what_cheats_say_of_a_lot_is_not(supernet_worker: Worker, trained: list[tuple[Lot, LotResult]]) -> None:
    noise = np.random.default_rng(1)
    for lot, own in trained:
        norm = float(own.gradient.norm())
        false = [
            replace(own, projection=noise.normal(0, norm, 8).astype("<f4").tobytes()),
            replace(own, projection=bytes(32)),
            replace(own, loss=own.loss * 1.1),
            supernet_worker.train(replace(lot, run_seed=99)),
            supernet_worker.train(replace(lot, samples=lot.samples // 2)),
            supernet_worker.train(replace(lot, key=b"m" * 32)),
        ]
        for result in false:
            assert not deviation(record_of(lot, result), own).is_within(FP32)


def test_against_a_gradient_that_is_nothing_or_not_finite_only_the_same_holds() -> None:
    nothing = LotResult(torch.zeros(100), 0.5, 16, bytes(32))
    record = LotRecord(0, 0, "r32", 16, "0.5", bytes(32))
    assert deviation(record, nothing).is_within(FP32)
    assert not deviation(replace(record, projection=np.ones(8, "<f4").tobytes()), nothing).is_within(FP32)
    broken = LotResult(torch.full((100,), np.nan), np.nan, 16, np.full(8, np.nan, "<f4").tobytes())
    assert not deviation(record, broken).is_within(FP32)


@pytest.mark.parametrize("codec", ["int16", "int8"])
def test_a_body_that_is_the_lots_mean_gradient_has_their_mean_projection(
    codec: str, trained: list[tuple[Lot, LotResult]], records: list[LotRecord]
) -> None:
    mean = torch.stack([result.gradient for _, result in trained]).mean(0).numpy()
    expected, floor = mean_projection(records), FLOORS[codec]
    assert body_deviation(parse(codec, encode(codec, mean, floor), len(mean)), floor, expected) < FP32.projection / 10
    poison = np.random.default_rng(2).normal(0, 1, len(mean)).astype(np.float32)
    poison *= np.linalg.norm(mean) / np.linalg.norm(poison)
    for false in (poison, -mean, 4 * mean, trained[0][1].gradient.numpy()):
        assert body_deviation(parse(codec, encode(codec, false, floor), len(mean)), floor, expected) > FP32.projection


def test_a_body_that_leaves_out_values_or_cuts_them_is_not_compared_with_what_was_learnt() -> None:
    values = np.ones(5000, np.float32)
    for codec, floor in (("topk-256-4", -20), ("int8", -60)):
        body = parse(codec, encode(codec, values, floor), len(values))
        assert not is_linear(body)
        with pytest.raises(ValueError, match="rounding"):
            body_deviation(body, floor, np.zeros(8))
    assert is_linear(parse("int8", encode("int8", values, -24), len(values)))


def test_the_mean_projection_weighs_lots_by_their_samples() -> None:
    vectors = np.random.default_rng(4).normal(size=(2, 1000)).astype(np.float32)
    one, other = (LotRecord(0, place, "r32", samples, "1", projection_of(vectors[place])) for place, samples in ((0, 10), (1, 30)))
    both = (vectors[0] * 10 + vectors[1] * 30) / 40
    np.testing.assert_allclose(mean_projection([one, other]), values_of(projection_of(both)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "is_one"), [("2.30259", True), ("1e-05", True), ("-3", True), ("1e400", False), ("0x1", False), ("", False)]
)
def test_a_loss_is_what_c_writes_of_a_finite_number(text: str, is_one: bool) -> None:
    assert is_loss(text) is is_one
