"""Computes claimed lots again on one device, and says what was found: of a lot, of a body and the projections in it, or of a whole claim.

What is compared, and how near it has to be, is ``automl.training.auditing``'s; what follows exactly, ``automl.training.following``'s.
Weights are given by the caller, who knows of which commit, or of which local step.

Shapes: N all weights of the supernet.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from automl.data.dataset import Dataset, TrainingSet
from automl.data.shards.sharded_images import ShardedImages
from automl.data.shards.sharded_pairs import ShardedPairs
from automl.training.auditing import (
    FP32,
    Deviation,
    Mismatch,
    Tolerance,
    body_deviation,
    check_records,
    deviation,
    is_held,
    is_linear,
    lot_of,
    mean_projection,
    projection_of,
)
from automl.training.following import check_own_steps, weights_of_steps
from automl.training.given import NOTHING, Coded, Finding, Given, OneClaim, Vectors
from automl.training.left_out import left_out
from automl.training.lots import LotResult, Worker
from automl.training.schedule import Plan
from automl.training.update import State
from exact.coding import encode, parse
from exact.residuals import covered
from protocol.lots import held_shards
from protocol.manifest import Manifest
from protocol.records import Claim, LotRecord


class Recomputer:
    """Audits of one run's claims; not for several threads at once."""

    def __init__(self, manifest: Manifest, dataset: TrainingSet, *, device: str = "cpu", tolerance: Tolerance = FP32) -> None:
        """Compute on ``device``, with the samples of ``dataset``."""
        self._manifest = manifest
        self._plan = Plan.of(manifest)
        self._tolerance = tolerance
        self._worker = Worker(manifest.supernet, dataset, device)

    @property
    def num_weights(self) -> int:
        """N."""
        return self._worker.num_weights

    def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Take over the parameters (N,) of the base's state, and those of its teacher where the round has one."""
        self._worker.load(parameters)
        self._worker.teach(teacher)

    def lot(self, claim: Claim, records: Sequence[LotRecord], place: int) -> Finding:
        """Compute one lot of a claim again, the one whose record stands at ``place``; and one that was left out, if some were picked."""
        if (mismatch := self._mismatch(claim, records)) is not None:
            return mismatch
        missing = left_out(self._manifest, self._plan, claim, records, records[place].step)
        if missing is not None and self._is_good(claim, missing):
            return Finding(False, NOTHING, math.inf, f"it left out lots that pay less than others, as lot {missing.index}")
        result, apart = self._computed(claim, records[place])
        return Finding(self._holds(claim, records, place, apart), result.projection, apart.projection)

    def sum(self, given: Given, claim: Claim) -> Finding:
        """Compare a contribution's body with the mean of what the records in it say, which needs no gradient: projections are linear.

        It holds where nothing can be said of it so (``automl.training.auditing.is_linear``). ``claim`` is the one in it that it is about.

        Raises:
            Mismatch: the records of another claim in it cannot be an honest peer's.
        """
        if (mismatch := self._mismatch(claim, given.records_of(claim).lots)) is not None:
            return mismatch
        every = [records.lots for records in given.records]
        for other, lots in zip(given.claims, every, strict=True):
            check_records(self._manifest, self._plan, other, lots)
        decoded = projection_of(given.body.values(given.floor))
        if not is_linear(given.body):
            return Finding(True, decoded, 0.0)
        cap = self._manifest.exchange.weight_cap
        weights = [min(sum(record.samples for record in lots), cap) for lots in every]
        means = [mean_projection(lots) for lots in every]
        expected = np.average(np.array(means), axis=0, weights=weights)
        apart = body_deviation(given.body, given.floor, expected)
        return Finding(apart <= self._tolerance.projection, decoded, apart)

    def whole(self, one: OneClaim, state: State, vectors: Vectors, rest: Callable[[], None] = lambda: None) -> Finding:
        """Compute all lots of a claim again, on the weights that each step's was trained on, and compare its vectors with what they give.

        Of one step and a dense codec it is the body that is compared where the contribution has no other claim, and no vector is needed.
        The parameters of ``state``, the base's, are loaded already; after several steps others are. ``rest`` is called after each lot.

        Raises:
            OwnFault: as ``exact.scaling.check_denormals``.
        """
        claim, records = one.claim, one.records
        if (mismatch := self._mismatch(claim, records.lots)) is not None:
            return mismatch
        if len(claim.steps) == 1:
            holds, mean_N = self._step(claim, records.lots, 0, rest)
            far = _far(vectors(one.digest, claim.vector), mean_N) if one.coded is None else _far_coded(one.coded, mean_N)
            return Finding(holds and far <= self._tolerance.projection, projection_of(mean_N), far)
        try:
            return self._whole_steps(one, state, vectors, rest)
        except Mismatch as error:
            return Finding(False, NOTHING, math.inf, str(error))

    def _whole_steps(self, one: OneClaim, state: State, vectors: Vectors, rest: Callable[[], None]) -> Finding:
        claim, records = one.claim, one.records
        check_own_steps(one, state)
        means = (vectors(one.digest, step.mean) for step in records.steps)  # one at a time in memory
        holds, farthest, mean_N = True, 0.0, np.zeros(0, np.float32)
        for step, weights_N in enumerate(weights_of_steps(self._plan, state, claim, records.steps, means)):
            self._worker.load(weights_N)
            step_holds, mean_N = self._step(claim, records.lots, step, rest)
            farthest = max(farthest, _far(vectors(one.digest, records.steps[step].vector), mean_N))
            holds = holds and step_holds
        return Finding(holds and farthest <= self._tolerance.projection, projection_of(mean_N), farthest)

    def _step(self, claim: Claim, records: Sequence[LotRecord], step: int, rest: Callable[[], None]) -> tuple[bool, NDArray[np.float32]]:
        """Compute all lots of a step on the weights that are loaded; return whether each holds, and their mean gradient (N,)."""
        holds, samples = True, 0
        sum_N = np.zeros(self._worker.num_weights)
        for place, record in enumerate(records):
            if record.step != step:
                continue
            result, apart = self._computed(claim, record)
            holds = holds and self._holds(claim, records, place, apart)
            sum_N += result.gradient.numpy().astype(np.float64) * record.samples
            samples += record.samples
            rest()
        return holds, (sum_N / samples).astype(np.float32)

    def _mismatch(self, claim: Claim, records: Sequence[LotRecord]) -> Finding | None:
        """Return what is found of records that cannot be an honest peer's; None: they can."""
        try:
            check_records(self._manifest, self._plan, claim, records)
        except Mismatch as error:
            return Finding(False, NOTHING, math.inf, str(error))
        return None

    def _is_good(self, claim: Claim, record: LotRecord) -> bool:
        """Return whether the lot of a record comes to something finite here."""
        return self._worker.train(lot_of(self._manifest, self._plan, claim, record)).is_finite

    def _computed(self, claim: Claim, record: LotRecord) -> tuple[LotResult, Deviation]:
        result = self._worker.train(lot_of(self._manifest, self._plan, claim, record))
        return result, deviation(record, result)

    def _holds(self, claim: Claim, records: Sequence[LotRecord], place: int, apart: Deviation) -> bool:
        """Return whether a lot holds that is so far apart; others of its step are computed where that is in doubt."""
        others = (other for other in (*records[place + 1 :], *records[:place]) if other.step == records[place].step)
        return is_held(self._tolerance, apart, (self._computed(claim, other)[1] for other in others))


def _far_coded(coded: Coded, mean_N: NDArray[np.float32]) -> float:
    """Return how far a body is from that of ``mean_N``, in parts of its norm; what coding does to both is no difference."""
    codec, floor = coded.body.codec.name, coded.floor
    own = encode(codec, covered(mean_N, coded.coverage), floor)
    return _far(coded.body.values(floor), parse(codec, own, len(mean_N)).values(floor))


def _far(claimed_N: NDArray[np.float32], own_N: NDArray[np.float32]) -> float:
    """Return how far a vector (N,) is from what came out here, in parts of its norm; infinitely, where it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(own_N.astype(np.float64)))
        apart = float(np.linalg.norm(claimed_N.astype(np.float64) - own_N))
    if not math.isfinite(apart):
        return math.inf
    return apart / norm if norm else 0.0 if apart == 0.0 else math.inf


class Recomputers:
    """Those of one run: one for lots of all its data, and one for lots of the part that the last such claim was about."""

    def __init__(self, manifest: Manifest, dataset: Dataset) -> None:
        """Compute with the samples of ``dataset``, of which all is here."""
        self._manifest = manifest
        self._dataset = dataset
        self._whole = Recomputer(manifest, dataset)
        self._part: tuple[tuple[bytes, int], Recomputer] | None = None  # whose it is, and how much
        self._loaded: dict[Recomputer, Hashable] = {}

    @property
    def num_weights(self) -> int:
        """N."""
        return self._whole.num_weights

    def of(self, claim: Claim, state: Hashable, weights: Callable[[], tuple[Tensor, Tensor | None]]) -> Recomputer:
        """Return what computes a claim's lots on a ``state``; if it had another, it has loaded what ``weights`` returns."""
        found = self._found(claim)
        if self._loaded.get(found) != state:
            found.load(*weights())
            self._loaded[found] = state
        return found

    def forget(self) -> None:
        """What they have loaded is not known any more."""
        self._loaded.clear()

    def _found(self, claim: Claim) -> Recomputer:
        if not claim.shards:
            return self._whole
        whose = (claim.key, claim.shards)
        if self._part is None or self._part[0] != whose:
            if self._part is not None:
                self._loaded.pop(self._part[1], None)
            self._part = whose, Recomputer(self._manifest, _part_of(self._manifest, self._dataset, claim))
        return self._part[1]


def _part_of(manifest: Manifest, dataset: Dataset, claim: Claim) -> Dataset:
    """Return the part of the data that a claim's lots are drawn from."""
    assert isinstance(dataset, ShardedImages | ShardedPairs)
    (travelling,) = manifest.shards
    return dataset.with_part(held_shards(manifest.seed, claim.key, travelling.train_shards, claim.shards))
