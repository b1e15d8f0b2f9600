"""The microbatches of a claim's local step, computed again: their mean gradient, and how far an honest one may be from it.

Floating point makes a microbatch's gradient inexact: another number of threads, another layout in memory, other instructions, a GPU. Its
error is usually far below a thousandth of its norm; now and then a rounding switches a ReLU, and it is some per cent. Errors of different
microbatches are independent, so that of a mean is their sum in quadrature. What a cheat changes is as large as the gradients themselves,
and adds up. ``benchmarks/tolerances.py`` measures the errors, ``benchmarks/audit_limits.py`` what part of a claim may be false unnoticed.

Microbatches may be missing for honest reasons: a gradient that is not finite, samples that are not here, workers that were lost. None of
these picks architectures by their cost. So where far fewer of a cheaper one were trained than of a dearer one, one of the skipped is
computed.

Shapes: N all weights of the supernet.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import Dataset, TrainingSet
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.codec.residuals import Vector
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.microbatches import held_shards, place_of_microbatch
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rewards import architecture_cost

_ROUNDING = 2.0**-24  # of one float32 operation, in parts of its result
_OPERATIONS = 4  # of a mean's value, besides an addition for each member

_FREE = 4  # missing microbatches of one architecture of which nobody asks why


class NotFinite(Exception):
    """A gradient that came out here has values that are not finite."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far the error of an honest mean gradient may be, in parts of its microbatches, weighted as they enter the mean.

    By norm, and by coordinate: an optimiser that divides each coordinate by its own size makes much of what is small in a norm.
    """

    each: float  # of the norms of all of them, in quadrature
    one: float  # of the largest norm
    each_coordinate: float  # the same, for the error of a coordinate in parts of its own values: the root of the mean square over all
    one_coordinate: float

    def is_honest(self, brought: Vector, expected: Vector, parts: Sequence["WeightedGradient"], rounding_N: Vector) -> bool:
        """Return whether a mean that was brought is as near to the ``expected`` one as an honest one.

        Args:
            brought: (N,), whatever is in it.
            expected: (N,) the mean of the ``parts``, and what is added to them.
            parts: what it is the mean of.
            rounding_N: (N,) how far its arithmetic may carry each value.
        """
        if not np.isfinite(brought).all():
            return False
        apart_N = np.abs(brought.astype(np.float64) - expected)
        if not float(np.linalg.norm(apart_N)) <= self.bound(parts, norm_of(rounding_N)):
            return False
        square_N = np.zeros(len(expected))
        for part in parts:
            square_N += part.weight**2 * part.gradient.squares.astype(np.float64)
        allowed_N = np.sqrt(square_N) + rounding_N
        with np.errstate(divide="ignore", invalid="ignore"):
            parts_N = np.where(apart_N > 0.0, np.minimum(1.0, apart_N / allowed_N), 0.0)
        return math.sqrt(float(np.square(parts_N).mean())) <= self.coordinate_bound(parts)

    def coordinate_bound(self, parts: Iterable["WeightedGradient"]) -> float:
        """Return how far coordinates may be off, in parts of their own values."""
        energy, peak = _strength(parts)
        return math.sqrt(self.each_coordinate**2 + (self.one_coordinate**2 * peak**2 / energy if energy else 0.0))

    def bound(self, parts: Iterable["WeightedGradient"], rounding: float = 0.0) -> float:
        """Return how far a mean of these may be from what comes out here; ``rounding`` is what its arithmetic may add."""
        energy, peak = _strength(parts)
        return math.sqrt(self.each**2 * energy + (self.one * peak) ** 2) + rounding


# By numeric profile. ``one`` is more than twice the farthest of 200,000 comparisons of honest microbatches: a mean may be of a single one.
# ``each`` is more than twice what a GPU's microbatches, which are all farther off than a CPU's, were found to be.
TOLERANCES = {"fp32": Tolerance(each=0.05, one=0.2, each_coordinate=0.1, one_coordinate=0.3)}
FP32 = TOLERANCES["fp32"]


@dataclass(frozen=True, slots=True)
class StepGradient:
    """What the microbatches of one claim's step give."""

    mean: Vector = field(repr=False)  # (N,)
    energy: float  # sum of the squares of the microbatches' norms, each divided by their number
    peak: float  # the largest of these norms, divided so
    squares: Vector = field(repr=False)  # (N,) sum of the squares of their values, divided so


@dataclass(frozen=True, slots=True)
class WeightedGradient:
    """A step's gradient in the mean of a cohort."""

    weight: float  # its part of all weights
    gradient: StepGradient


class AuditedMicrobatches:
    """Computes the microbatches of one run's claims on one device; not for several threads at once."""

    def __init__(self, manifest: Manifest, plan: Plan, dataset: TrainingSet, *, device: str = "cpu") -> None:
        """Compute with the samples of ``dataset``; where a claim's key has a part of them only, it is a ``Dataset`` that has all."""
        self._manifest = manifest
        self._plan = plan
        self._dataset = dataset
        self._device = device
        self._whole = Worker(manifest.supernet, dataset, device)
        self._part: tuple[tuple[bytes, int], Worker] | None = None  # whose data it has, and how many shards

    @property
    def num_weights(self) -> int:
        """N."""
        return self._whole.num_weights

    def of_step(
        self, claim: Claim, step: int, weights: Tensor, teacher: Tensor | None, rest: Callable[[], None] = lambda: None
    ) -> StepGradient:
        """Return what a claim's microbatches of a step give on these weights (N,); ``rest`` is called after each.

        Gradients are added up as a peer adds them, in float32 and in the order of their indices.

        Raises:
            NotFinite: one of them is not.
        """
        worker = self._worker_of(claim, weights, teacher)
        sum_N, square_N = torch.zeros(worker.num_weights), torch.zeros(worker.num_weights)
        samples, squares, largest = 0, 0.0, 0.0
        for index in claim.steps[step].indices():
            result = worker.train(self._microbatch(claim, step, index))
            if not result.is_finite:
                raise NotFinite(f"the gradient of microbatch {index} of step {step} is not finite here")
            square = _square(result.gradient)
            squares, largest = squares + square, max(largest, square)
            sum_N.add_(result.gradient, alpha=result.samples)
            square_N.addcmul_(result.gradient, result.gradient)
            samples += result.samples
            rest()
        count = claim.steps[step].count
        squares_N = (square_N / float(count**2)).numpy()
        return StepGradient((sum_N / float(samples)).numpy(), squares / count**2, math.sqrt(largest) / count, squares_N)

    def is_finite(self, claim: Claim, step: int, index: int, weights: Tensor, teacher: Tensor | None) -> bool:
        """Return whether a microbatch of a step comes to a finite gradient on these weights."""
        return self._worker_of(claim, weights, teacher).train(self._microbatch(claim, step, index)).is_finite

    def _microbatch(self, claim: Claim, step: int, index: int) -> Microbatch:
        manifest, architectures = self._manifest, self._plan.architectures(claim.round, claim.cohort)
        architecture = architectures[place_of_microbatch(len(architectures), claim.base, claim.key, index)]
        strength = self._plan.augmentation(claim.round, architecture)
        return Microbatch(manifest.seed, claim.base, step, claim.key, index, architecture, manifest.microbatch_samples, strength)

    def _worker_of(self, claim: Claim, weights: Tensor, teacher: Tensor | None) -> Worker:
        worker = self._whole
        if claim.shards:
            whose = (claim.key, claim.shards)
            if self._part is None or self._part[0] != whose:
                self._part = whose, Worker(self._manifest.supernet, part_of(self._manifest, self._dataset, claim), self._device)
            worker = self._part[1]
        worker.load(weights)
        worker.teach(teacher)
        return worker


def part_of(manifest: Manifest, dataset: TrainingSet, claim: Claim) -> Dataset:
    """Return the part of the data that a claim's microbatches are drawn from."""
    assert isinstance(dataset, ShardedImages | ShardedPairs)
    (travelling,) = manifest.shards
    return dataset.with_part(held_shards(manifest.seed, claim.key, travelling.train_shards, claim.shards))


def norm_of(vector: Vector) -> float:
    """Return a vector's norm; of one that is not finite it is not."""
    return float(np.linalg.norm(vector.astype(np.float64)))


def rounding_of(parts: Sequence[tuple[float, Vector]]) -> Vector:
    """Return (N,) how far the float32 arithmetic of a mean of weighted vectors may carry each value of two of its results apart."""
    size_N = np.zeros(len(parts[0][1]), np.float32)
    for weight, vector in parts:
        size_N += np.abs(vector) * np.float32(weight)
    rounding_N: Vector = size_N * np.float32((len(parts) + _OPERATIONS) * _ROUNDING)
    return rounding_N


def _strength(parts: Iterable["WeightedGradient"]) -> tuple[float, float]:
    """Return the sum of the squares of the microbatches' norms as they enter a mean, and the largest norm."""
    energy = peak = 0.0
    for part in parts:
        energy += part.weight**2 * part.gradient.energy
        peak = max(peak, part.weight * part.gradient.peak)
    return energy, peak


def _square(gradient: Tensor) -> float:
    wide = gradient.double()
    return float(torch.dot(wide, wide))


def skipped_cheap(manifest: Manifest, plan: Plan, claim: Claim, step: int) -> int | None:
    """Return the index of a microbatch that a step skipped though its claim has dearer ones; None: nothing was picked by its cost.

    Nobody is asked about microbatches after the last one, or between two steps, nor about missing ones of the dearest architecture: light
    contributors train the cheapest one's alone.
    """
    last = claim.steps[-1].last
    if claim.microbatches + _FREE > last:
        return None
    costs = [architecture_cost(each.text, manifest.cost_table()) for each in plan.architectures(claim.round, claim.cohort)]
    count = len(costs)
    sweeps, rest = divmod(last + 1, count)  # an index may be any number: nothing here may take as long as it is large
    begun = {place_of_microbatch(count, claim.base, claim.key, index) for index in range(rest)}
    due = [sweeps + (place in begun) for place in range(count)]
    shares = [done / of if of else 1.0 for done, of in zip(claim.work, due, strict=True)]
    picked = {
        place
        for place in range(count)
        if due[place] - claim.work[place] > _FREE
        and any(costs[place] < costs[other] and 2 * shares[place] < shares[other] for other in range(count))
    }
    trained = claim.steps[step]
    skipped = trained.skipped
    if trained.every > 1:  # of each sweep all the others: the first one shows them
        skipped = tuple(index for index in range(trained.first, min(trained.last, trained.first + count)) if index not in trained)
    return next((index for index in skipped if place_of_microbatch(count, claim.base, claim.key, index) in picked), None)
