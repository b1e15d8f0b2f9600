"""Claims of lots that were really trained are found good, and what cheats hand in is found out: by a lot, by the sum, or as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from automl.data.images import ImageDataset
from automl.models.classifier import Classifier
from automl.spaces.cost import cost_table
from automl.spaces.space import space_named
from automl.training.auditing import FP32, Deviation, Mismatch, lot_of
from automl.training.given import Finding, Given
from automl.training.lots import Lot, LotResult, Worker, project
from automl.training.recomputing import Recomputer
from automl.training.schedule import Plan
from automl.training.update import State
from exact.coding import encode, parse
from exact.residuals import Vector, vector_digest
from protocol.encoding import pack
from protocol.evidence import Records
from protocol.lots import place_of_lot
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, Contribution, LotRecord
from protocol.rewards import architecture_cost
from protocol.signing import Identity, sha256
from tests.claim_steps import all_of, means_of, steps_of
from tests.runs import manifest_of

MANIFEST = manifest_of(Identity(b"\x0b" * 32), costs=cost_table(space_named("classifier-tiny")))
PLAN = Plan.of(MANIFEST)
BASE, FLOOR, LOTS = b"b" * 32, -30, 5  # three times a gradient has room, too
STATE = State(0, torch.zeros(0), ())  # of one step nothing follows from it


@dataclass(frozen=True)
class Work:
    """What one key did, or says that it did."""

    claim: Claim
    records: tuple[LotRecord, ...]
    mean: np.ndarray  # type: ignore[type-arg]


def worked(worker: Worker, key: bytes, seed: int = MANIFEST.seed, lots: Sequence[int] = range(LOTS)) -> Work:
    """Train the lots of a key that have these indices; of another ``seed`` than the run's they have other images."""
    asked = PLAN.architectures(1, "home")
    counts, places = [0] * len(asked), [place_of_lot(len(asked), BASE, key, index) for index in lots]
    for place in places:
        counts[place] += 1
    of = MANIFEST.lot_samples
    blank = [LotRecord(0, index, asked[place].text, of, "1", bytes(32)) for index, place in zip(lots, places, strict=True)]
    steps = steps_of(tuple(counts), BASE, key)
    claim = Claim(bytes(32), 1, BASE, key, key, key, "home", steps, tuple(counts), bytes(32), b"", bytes(32), b"", 10)
    results = [worker.train(replace(lot_of(MANIFEST, PLAN, claim, record), run_seed=seed)) for record in blank]
    records = tuple(
        replace(one, loss=f"{result.loss:.6g}", projection=result.projection) for one, result in zip(blank, results, strict=True)
    )
    mean = torch.stack([result.gradient for result in results]).mean(0).numpy()
    lots_root = root([leaf_hash(pack(record)) for record in records])
    return Work(replace(claim, lots_root=lots_root, vector=vector_digest(mean)), records, mean)


def given(*works: Work, mean: "np.ndarray | None" = None) -> Given:  # type: ignore[type-arg]
    """Return the contribution of these, of their mean or of another one."""
    values = np.mean([work.mean for work in works], axis=0, dtype=np.float32) if mean is None else mean.astype(np.float32)
    return coded(works, "int16", values, FLOOR)


def coded(works: Sequence[Work], codec: str, values: Vector, floor: int) -> Given:
    """Return the contribution of these with this body."""
    data = encode(codec, values, floor)
    claims = tuple(work.claim for work in works)
    digests = tuple(sha256(pack(claim)) for claim in claims)
    contribution = Contribution(bytes(32), 1, BASE, claims[0].key, digests, all_of(claims), means_of(claims), bytes(32), b"")
    records = tuple(Records(work.records, ()) for work in works)
    return Given(contribution, data, parse(codec, data, len(values)), floor, claims, records)


def whole(recomputer: Recomputer, handed: Given, work: Work) -> Finding:
    """Return what is found of all lots of a claim."""
    return recomputer.whole(handed.one(work.claim), STATE, lambda _claim, digest: {vector_digest(work.mean): work.mean}[digest])


@pytest.fixture(scope="module")
def parameters() -> torch.Tensor:
    net = Classifier(PLAN.space)
    net.initialise(torch.Generator().manual_seed(3))
    return net.flat_weights_N.clone()


@pytest.fixture(scope="module")
def worker(digits: ImageDataset, parameters: torch.Tensor) -> Worker:
    worker = Worker("classifier-tiny", digits)
    worker.load(parameters)
    return worker


@pytest.fixture(scope="module")
def recomputer(digits: ImageDataset, parameters: torch.Tensor) -> Recomputer:
    recomputer = Recomputer(MANIFEST, digits)
    recomputer.load(parameters, None)
    return recomputer


@pytest.fixture(scope="module")
def one(worker: Worker) -> Work:
    return worked(worker, b"k" * 32)


@pytest.fixture(scope="module")
def other(worker: Worker) -> Work:
    return worked(worker, b"l" * 32)


def test_honest_work_holds_by_its_lots_its_sum_and_as_a_whole(recomputer: Recomputer, one: Work, other: Work) -> None:
    for place, record in enumerate(one.records):
        found = recomputer.lot(one.claim, one.records, place)
        assert found.holds
        assert found.projection == record.projection
    assert recomputer.sum(given(one), one.claim).holds
    assert recomputer.sum(given(one, other), one.claim).holds
    assert whole(recomputer, given(one), one).holds
    assert whole(recomputer, given(one, other), other).holds


def test_lots_of_other_images_or_of_another_key_are_found_by_any_one_of_them(recomputer: Recomputer, worker: Worker, one: Work) -> None:
    false = worked(worker, b"k" * 32, seed=99)
    copied = replace(one, claim=replace(one.claim, key=b"o" * 32))  # 0x6f and 0x6b are the same modulo 4: the same architectures
    for work in (false, copied):
        assert not any(recomputer.lot(work.claim, work.records, place).holds for place in range(LOTS))
        assert recomputer.sum(given(work), work.claim).holds  # it is what its records say, and they are false
        assert not whole(recomputer, given(work), work).holds


def of_place(wanted: str, key: bytes, lots: int) -> list[int]:
    """Return which of a key's first lots are of its round's "dearest" architecture, or of its "cheapest"."""
    asked = PLAN.architectures(1, "home")
    costs = [architecture_cost(each.text, MANIFEST.cost_table()) for each in asked]
    place = costs.index(max(costs) if wanted == "dearest" else min(costs))
    return [index for index in range(lots) if place_of_lot(len(asked), BASE, key, index) == place]


def test_who_does_the_dearest_lots_alone_is_found_and_who_misses_a_few_or_does_the_cheapest_is_not(
    recomputer: Recomputer, worker: Worker
) -> None:
    key, some = b"k" * 32, 40
    picked = worked(worker, key, lots=of_place("dearest", key, some))
    found = recomputer.lot(picked.claim, picked.records, 1)
    assert not found.holds
    assert "left out lots that pay less" in found.reason
    for honest in (of_place("cheapest", key, some), [0, 1, 2, 3, 5, 6, 10, 11], range(0, 24, 3)):
        work = worked(worker, key, lots=honest)
        assert recomputer.lot(work.claim, work.records, 1).holds


def test_an_index_of_any_size_is_answered_at_once(recomputer: Recomputer, worker: Worker) -> None:
    key = b"k" * 32
    dearest = of_place("dearest", key, 40)
    far = 2**60 * len(PLAN.architectures(1, "home")) + dearest[0]  # a stranger's number: counting up to it would take for ever
    picked = worked(worker, key, lots=[*dearest, far])
    assert "left out lots that pay less" in recomputer.lot(picked.claim, picked.records, 1).reason
    work = worked(worker, key, lots=[0, 1, 2, 3, far])
    assert recomputer.lot(work.claim, work.records, 4).holds


def test_lots_that_come_to_nothing_finite_were_not_picked(recomputer: Recomputer, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"k" * 32
    picked = worked(worker, key, lots=of_place("dearest", key, 40))
    train = Worker.train

    def overflowing(own: Worker, lot: Lot) -> LotResult:
        result = train(own, lot)
        if lot.index in (record.index for record in picked.records):
            return result
        gradient = result.gradient / 0.0
        return replace(result, gradient=gradient, projection=project(gradient))

    monkeypatch.setattr(Worker, "train", overflowing)
    assert recomputer.lot(picked.claim, picked.records, 1).holds


def test_a_body_that_its_lots_do_not_lead_to_is_found_by_their_sum(recomputer: Recomputer, one: Work, other: Work) -> None:
    noise = np.random.default_rng(1).normal(size=len(one.mean))
    poison = noise * np.linalg.norm(one.mean) / np.linalg.norm(noise)
    for mean in (poison, -one.mean, other.mean, 3 * one.mean, np.zeros_like(one.mean)):
        assert not recomputer.sum(given(one, mean=mean), one.claim).holds
        assert not whole(recomputer, given(one, mean=mean), one).holds
    assert not recomputer.sum(given(one, other, mean=one.mean), one.claim).holds


@pytest.mark.parametrize(
    "says",
    [
        {"loss": ""},
        {"loss": "x"},
        {"loss": "1e999"},
        {"projection": b""},
        {"projection": b"odd"},
        {"samples": 0},
        {"index": -1},
        {"step": 2**40},
    ],
)
def test_records_of_which_nothing_can_be_computed_differ_and_what_computes_goes_on(
    recomputer: Recomputer, one: Work, other: Work, says: dict[str, Any]
) -> None:
    records = (replace(one.records[0], **says), *one.records[1:])
    junk = replace(one, records=records, claim=replace(one.claim, lots_root=root([leaf_hash(pack(record)) for record in records])))
    found = [
        recomputer.lot(junk.claim, records, 0),
        recomputer.sum(given(junk), junk.claim),
        whole(recomputer, given(junk), junk),
    ]
    for each in found:
        assert (each.holds, each.projection) == (False, bytes(32))
        assert each.reason == each.mismatch != ""
    with pytest.raises(Mismatch):
        recomputer.sum(given(other, junk), other.claim)  # nobody answers for what another says
    assert recomputer.sum(given(other, one), other.claim).holds


def test_poison_that_the_projections_do_not_see_is_found_as_a_whole(recomputer: Recomputer, one: Work) -> None:
    import hashlib

    kinds = np.frombuffer(hashlib.shake_256(b"manta/projection/v1").digest(len(one.mean)), np.uint8)
    first, second = np.flatnonzero(kinds == kinds[0])[:2]
    hidden = one.mean.copy()
    hidden[first] += np.linalg.norm(one.mean)  # the same signs: what one weight has more and another less no sum shows
    hidden[second] -= np.linalg.norm(one.mean)
    assert recomputer.sum(given(one, mean=hidden), one.claim).holds
    assert not whole(recomputer, given(one, mean=hidden), one).holds


def test_a_body_of_which_the_sum_says_nothing_is_left_to_whoever_computes_the_whole(recomputer: Recomputer, one: Work) -> None:
    saturated = coded([one], "int8", one.mean, -60)
    assert recomputer.sum(saturated, one.claim).holds
    assert whole(recomputer, saturated, one).holds
    false = coded([one], "int8", -one.mean, -60)
    assert recomputer.sum(false, one.claim).holds
    assert not whole(recomputer, false, one).holds


class Carried(Recomputer):
    """One whose lots deviate as it is told, by index."""

    apart: dict[int, float]

    def _computed(self, claim: Claim, record: LotRecord) -> tuple[LotResult, Deviation]:
        return LotResult(torch.zeros(1), 1.0, 16, bytes(32)), Deviation(self.apart.get(record.index, 0.0), 0.0)


@pytest.mark.parametrize(
    ("apart", "holds"),
    [
        ({0: 0.9}, True),
        ({0: 1.5}, True),  # alone among its claim's: roundings do that once in a long while
        ({0: 1.5, 3: 1.2}, False),
        ({0: 1.5, 4: 0.9}, True),
        ({0: 3.5}, False),
    ],
)
def test_a_lot_that_is_a_little_off_is_no_cheat_unless_another_one_is_too(
    digits: ImageDataset, one: Work, apart: dict[int, float], holds: bool
) -> None:
    recomputer = Carried(MANIFEST, digits)
    recomputer.apart = {index: times * FP32.projection for index, times in apart.items()}
    assert recomputer.lot(one.claim, one.records, 0).holds is holds
