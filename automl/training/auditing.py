"""Lots computed again: which lots a claim's records must be of, and whether what they say came out is what comes out here.

What is exact is compared exactly: which lots, in which order, of which architecture. What floating point makes inexact, a lot's loss and
the projection of its gradient, is compared within a tolerance, which ``benchmarks/tolerances.py`` leads to. Nothing here knows who asks.

Shapes: N all weights of the supernet, P projections.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from automl.training.lots import NUM_PROJECTIONS, Lot, LotResult, project
from automl.training.schedule import Plan
from exact.coding import Body
from protocol.encoding import pack
from protocol.evidence import Records
from protocol.exchange import CHUNK
from protocol.fields import DIGEST_BYTES
from protocol.lots import place_of_lot
from protocol.manifest import Manifest
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, LotRecord

_SIGMAS = 6.0  # of the rounding of a body's values, by which its projection may miss that of the vector that was coded


class Mismatch(Exception):
    """Records say what honest ones cannot say; the message is what."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an honest lot may be from the same lot computed elsewhere."""

    projection: float  # root mean square of the eight differences, in parts of the gradient's norm
    loss: float  # in parts of the loss

    def times(self, factor: float) -> "Tolerance":
        """Return one that is so many times as wide."""
        return Tolerance(factor * self.projection, factor * self.loss)


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far a record is from what came out here, in the units of ``Tolerance``."""

    projection: float
    loss: float

    def is_within(self, tolerance: Tolerance) -> bool:
        """Return whether it may be an honest one."""
        return self.projection <= tolerance.projection and self.loss <= tolerance.loss


# By numeric profile. A few lots in a thousand are far from the others: a rounding decides a ReLU, or the sign of a small difference of
# disparities, and part of the gradient with it. So each is many times what was seen of honest lots, and well below what cheats come to.
TOLERANCES = {"fp32": Tolerance(projection=0.1, loss=0.005)}
FP32 = TOLERANCES["fp32"]
DOUBT = 3.0  # tolerances: what is off, but no farther than so many, is looked at more closely before anybody is accused
OTHERS = 4  # lots of the claim's step that are computed again then


def check_records(manifest: Manifest, plan: Plan, claim: Claim, records: Sequence[LotRecord]) -> None:
    """Check that these are the records of a claim: as many lots as it counts of each architecture, each one that the schedule gives its
    key, in order.

    Raises:
        Mismatch: they are not.
    """
    if len(records) != claim.lots:
        raise Mismatch(f"{len(records)} records of {claim.lots} lots")
    if root([leaf_hash(pack(record)) for record in records]) != claim.lots_root:
        raise Mismatch("its records are not under the claim's root")
    architectures = [each.text for each in plan.architectures(claim.round, claim.cohort)]
    counts, step, index = [0] * len(architectures), 0, -1
    for record in records:
        if record.index <= index or not step <= record.step <= min(step + 1, len(claim.steps) - 1):
            raise Mismatch(f"lot {record.index} of step {record.step} stands behind lot {index} of step {step}")
        step, index = record.step, record.index
        place = place_of_lot(len(architectures), claim.base, claim.key, index)
        if record.architecture != architectures[place]:
            raise Mismatch(f"lot {index} is of another architecture than the schedule gives it")
        if record.samples != manifest.lot_samples:
            raise Mismatch(f"lot {index} has {record.samples} samples, not {manifest.lot_samples}")
        _check_values(record)
        counts[place] += 1
    if step != len(claim.steps) - 1 or tuple(counts) != claim.work:
        raise Mismatch("it claims other lots of its architectures, or other steps, than its records have")


def check_steps(claim: Claim, records: Records) -> None:
    """Check that the records of a claim's steps are in order, and count the samples of its lots; those are checked already.

    Raises:
        Mismatch: they cannot be an honest peer's.
    """
    steps = records.steps
    if len(steps) != (len(claim.steps) if len(claim.steps) > 1 else 0):
        raise Mismatch(f"{len(steps)} records of {len(claim.steps)} steps")
    for number, step in enumerate(steps):
        if step.step != number:
            raise Mismatch(f"the record of step {number} is one of step {step.step}")
        if {len(step.state), len(step.vector), len(step.mean)} != {DIGEST_BYTES}:
            raise Mismatch(f"the record of step {number} names its weights or vectors by no digest")
        if step.samples != sum(lot.samples for lot in records.lots if lot.step == number):
            raise Mismatch(f"step {number} has other samples than its lots")


def lot_of(manifest: Manifest, plan: Plan, claim: Claim, record: LotRecord) -> Lot:
    """Return the lot that a record is of; it is one of ``check_records``."""
    architectures = plan.architectures(claim.round, claim.cohort)
    architecture = architectures[place_of_lot(len(architectures), claim.base, claim.key, record.index)]
    strength = plan.augmentation(claim.round, architecture)
    return Lot(manifest.seed, claim.base, record.step, claim.key, record.index, architecture, manifest.lot_samples, strength)


def deviation(record: LotRecord, found: LotResult) -> Deviation:
    """Return how far a record is from the lot that was computed again; infinitely, where that came to nothing finite."""
    norm = float(np.linalg.norm(found.gradient.numpy().astype(np.float64)))
    apart = values_of(record.projection) - values_of(found.projection)
    of_loss = abs(float(record.loss) - found.loss)
    return Deviation(_in_parts(_rms(apart), norm), _in_parts(of_loss, abs(found.loss)))


def is_held(tolerance: Tolerance, apart: Deviation, others: Iterable[Deviation]) -> bool:
    """Return whether a lot holds that is so far apart; ``others``, how far others of its claim's step are, are asked for only in doubt.

    One that is not far off may be honest, and roundings have carried it away: then others are computed too, and it holds unless there is
    none, or one of them is off as well. Cheats that come so near come as near in every lot.
    """
    if apart.is_within(tolerance):
        return True
    if not apart.is_within(tolerance.times(DOUBT)):
        return False
    is_alone = True
    for other in islice(others, OTHERS):
        if not other.is_within(tolerance):
            return False
        is_alone = False
    return not is_alone


def mean_projection(records: Sequence[LotRecord]) -> NDArray[np.float64]:
    """Return (P,) the projection of the mean gradient over the samples of these lots: projections are linear."""
    samples = np.array([record.samples for record in records], np.float64)
    each = np.array([values_of(record.projection) for record in records])
    mean: NDArray[np.float64] = samples @ each / samples.sum()
    return mean


def vector_deviation(vector_N: NDArray[np.float32], records: Sequence[LotRecord]) -> float:
    """Return how far a vector (N,) is from the mean gradient of the lots of these records, by their projections, in parts of its norm."""
    apart = _rms(values_of(projection_of(vector_N)) - mean_projection(records))
    return _in_parts(apart, float(np.linalg.norm(vector_N.astype(np.float64))))


def body_deviation(body: Body, floor: int, expected: NDArray[np.float64]) -> float:
    """Return how far the projection of what a dense body decodes to is from the ``expected`` one (P,), in parts of the vector's norm.

    What coding may have to do with it is taken off: the rounding of each value, as far as eight sums of so many of them go.

    Raises:
        ValueError: not a body for which that can be said, see ``is_linear``.
    """
    if not is_linear(body):
        raise ValueError("a body that is not, but for rounding, what was learnt")
    values_N = body.values(floor)
    units = np.ldexp(1.0, floor + body.exponents.astype(np.int64))
    counts = np.minimum(CHUNK, body.count - CHUNK * np.arange(len(units)))
    rounding = _SIGMAS * math.sqrt(float((units * units * counts).sum()) / 12)
    apart = _rms(values_of(projection_of(values_N)) - expected)
    return _in_parts(max(0.0, apart - rounding), float(np.linalg.norm(values_N.astype(np.float64))))


def is_linear(body: Body) -> bool:
    """Return whether a body is what was learnt but for rounding: every value has an integer, and none was too large for the window."""
    if body.codec.is_sparse:
        return False
    last = body.codec.window - 1
    return not any(
        (np.abs(block.integers.astype(np.int32)).max(axis=1)[block.exponents == last] == body.codec.limit).any() for block in body.blocks()
    )


def projection_of(values_N: NDArray[np.float32]) -> bytes:
    """Return the projection of a vector, as a lot's record has that of its gradient."""
    return project(torch.from_numpy(values_N))


def is_loss(text: str) -> bool:
    """Return whether a text is C's ``%.6g`` of a finite number."""
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and f"{value:.6g}" == text


def values_of(projection: bytes) -> NDArray[np.float64]:
    """Return (P,) the eight sums."""
    return np.frombuffer(projection, "<f4").astype(np.float64)


def _check_values(record: LotRecord) -> None:
    if len(record.projection) != 4 * NUM_PROJECTIONS or not np.isfinite(values_of(record.projection)).all():
        raise Mismatch(f"lot {record.index} has no projection of finite values")
    if not is_loss(record.loss):
        raise Mismatch(f"lot {record.index} has no finite loss")


def _rms(values: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.square(values).mean()))


def _in_parts(value: float, of: float) -> float:
    """Return value / of; of nothing, any difference is infinite."""
    if not math.isfinite(value) or not math.isfinite(of):
        return math.inf
    return 0.0 if value == 0.0 else value / of if of else math.inf
