"""What follows exactly from the vectors that claims name by their digests: the weights of their local steps, and a contribution's body.

From a step's mean gradient on all is exact, so whoever has the base and the means has the bits of every weight after it, and whoever has
what the members learnt, and their residuals, has the bytes of the body. One thing is inexact: whether a member's own vector of a step is
what its lots gave. That is compared by the projections in their records, within a tolerance.

What a founder answers for is what it could check: a member's vector by its digest, where there is nothing else in what the member gave,
or where the founder gave the same. Of what else members gave it nobody knows whose lie it is, and nothing is said.

Shapes: N all weights of the supernet.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from automl.training.auditing import FP32, Mismatch, Tolerance, check_records, check_steps, projection_of, vector_deviation
from automl.training.given import Finding, Given, OneClaim, Vectors
from automl.training.local import LocalSteps
from automl.training.schedule import Plan
from automl.training.update import State
from exact.coding import encode
from exact.residuals import Vector, covered, given, left_over, near_mean, residual_digest, vector_digest
from protocol.manifest import Manifest
from protocol.records import Claim, StepRecord
from protocol.vectors import are_answered_for


def tensor_of(vector: Vector) -> Tensor:
    """Return a vector (N,) as a tensor that may lie in the same memory; nobody writes into it."""
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())


def weights_of_steps(plan: Plan, state: State, claim: Claim, steps: tuple[StepRecord, ...], means: Iterable[Vector]) -> Iterator[Tensor]:
    """Yield the weights (N,) before each of a claim's first steps, one for each of their ``means``, each as its record names it.

    Then those after the last of them are compared too: with the record of the next step, or, behind the last of all, what was learnt.

    Raises:
        Mismatch: they are others than those that the claim names.
        OwnFault: as ``exact.scaling.check_denormals``.
    """
    local, taken = LocalSteps(state, plan), 0
    for number, mean in enumerate(means):
        if vector_digest(local.weights.numpy()) != steps[number].state:
            raise Mismatch(f"the weights before step {number} are not those that its records name")
        yield local.weights
        local.step(tensor_of(mean))
        taken = number + 1
    if taken == len(steps):
        if vector_digest(local.learnt().numpy()) != claim.vector:
            raise Mismatch("what it learnt is not what its steps lead to")
    elif vector_digest(local.weights.numpy()) != steps[taken].state:
        raise Mismatch(f"the weights before step {taken} are not those that its records name")


def follow(
    manifest: Manifest, plan: Plan, found: Given, claim: Claim, state: State, vectors: Vectors, step: int, tolerance: Tolerance = FP32
) -> Finding:
    """Return whether a claim's own vector of a ``step`` is what its lots gave, whether what it names follows up to there, and the body.

    The body is compared where the claim is the founder's, as far as a founder answers for it (``protocol.vectors.are_answered_for``).

    Args:
        manifest: of the run.
        plan: its.
        found: the contribution; the records in it are those of ``claim`` at least.
        claim: in it.
        state: of its base.
        vectors: that were shown, see ``protocol.wanted``.
        step: from 0; the one that is looked at. Where there is one step only, that.
        tolerance: for what is not exact.

    Raises:
        OwnFault: as ``exact.scaling.check_denormals``.
    """
    projection = projection_of(found.body.values(found.floor))
    try:
        check_records(manifest, plan, claim, found.records_of(claim).lots)
        check_own_steps(found.one(claim), state)
        apart = _apart(plan, found, claim, state, vectors, step)
        if claim.key == found.contribution.founder:
            check_body(manifest, found, vectors)
    except Mismatch as error:
        return Finding(False, projection, 0.0, str(error))
    return Finding(apart <= tolerance.projection, projection, apart)


def check_own_steps(one: OneClaim, state: State) -> None:
    """Check what the records of a claim's steps say by themselves: where they begin, and that a step that was taken alone is its own.

    Raises:
        Mismatch: they cannot be an honest peer's.
    """
    records = one.records
    check_steps(one.claim, records)
    if not records.steps:
        return
    if records.steps[0].state != vector_digest(state.parameters.numpy()):
        raise Mismatch("its first step begins with other weights than the base's")
    if one.is_alone and any(step.mean != step.vector for step in records.steps):
        raise Mismatch("it handed in alone what it had learnt with others")


def check_body(manifest: Manifest, found: Given, vectors: Vectors) -> None:
    """Check that a contribution's body, and the residual that it leaves, are what follows from what its members learnt and had left.

    Raises:
        Mismatch: they are not, and its founder answers for it.
        OwnFault: as ``exact.scaling.check_denormals``.
    """
    in_body = [claim for _, claim in found.in_body]
    first = in_body[0]
    if len(first.steps) > 1 and any(claim.vector != first.vector for claim in in_body):
        raise Mismatch("its members have learnt different things in the same steps")
    if not are_answered_for(in_body, is_sparse=found.is_sparse):
        return
    mean = _mean_given(manifest, found, vectors)
    if encode(found.body.codec.name, covered(mean, found.coverage), found.floor) != found.data:
        raise Mismatch("its body is not what follows from what its members learnt")
    left = residual_digest(left_over(mean, found.body, found.floor)) if found.is_sparse else b""
    if left != found.contribution.residual:
        raise Mismatch("the residual that it leaves is not what its body leaves out")


def _mean_given(manifest: Manifest, found: Given, vectors: Vectors) -> Vector:
    """Return the mean of what the members gave."""
    exchange = manifest.exchange

    def part(digest: bytes, claim: Claim) -> Vector:
        residual = vectors(digest, claim.residual) if claim.residual else None
        return given(vectors(digest, claim.vector), residual, exchange.residual_percent, found.coverage)

    every = found.in_body
    if len(every[0][1].steps) > 1:  # all gave the same
        parts = [part(*next(one for one in every if one[1].key == found.contribution.founder))] * len(every)
    else:
        parts = [part(*one) for one in every]
    weights = [min(claim.lots * manifest.lot_samples, exchange.weight_cap) for _, claim in every]
    try:
        return near_mean(parts, weights)
    except ValueError as error:
        raise Mismatch(f"no body follows from what its members learnt: {error}") from error


def _apart(plan: Plan, found: Given, claim: Claim, state: State, vectors: Vectors, step: int) -> float:
    """Return how far a claim's own vector of a step is from what its lots' records say, in parts of its norm; what is exact is checked."""
    records, digest = found.records_of(claim), found.digest_of(claim)
    if len(claim.steps) == 1:
        own = vectors(digest, claim.vector)
    else:
        means = [vectors(digest, each.mean) for each in records.steps[: step + 1]]
        for _ in weights_of_steps(plan, state, claim, records.steps, means):
            pass
        own = vectors(digest, records.steps[step].vector)
    if not np.isfinite(own).all():
        raise Mismatch(f"its vector of step {step} has values that are not finite")
    return vector_deviation(own, [record for record in records.lots if record.step == step])
