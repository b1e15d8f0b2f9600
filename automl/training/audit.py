"""The audit of a contribution: all its microbatches computed again, and what is found of each claim in it.

Step by step, on the weights to which the means lead, the mean of a step is compared with what the microbatches of all who counted give,
within the tolerance of ``automl.training.microbatches``. From the means on all is exact: what was learnt, the body, and the residual that
it leaves. Where a step's mean does not fit, the own vectors of those who counted are asked for, and tell whose fault it is: who signed a
vector that its microbatches do not give, or the founder, who made another mean of them than section 12 of docs/protocol.md does.

Nothing here knows who asks, who brings, how long anybody waits, or what an operator makes of the outcome.

Shapes: N all weights of the supernet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from automl.training.coverage import coverage_of
from automl.training.local import LocalSteps
from automl.training.microbatches import FP32, Microbatches, NotFinite, Part, StepGradient, Tolerance, rounding_of
from automl.training.schedule import Plan
from automl.training.skipped import skipped_cheap
from automl.training.update import State
from exact.coding import encode, parse
from exact.residuals import Vector, covered, given, left_over, near_mean, residual_digest, vector_digest
from protocol.exchange import codec_named
from protocol.manifest import Manifest
from protocol.records import Claim, Contribution


class Verdict(StrEnum):
    """What becomes of a claim, and of its key."""

    GOOD = "good"  # the key: one more good contribution
    VOID = "void"  # the key: guilty
    DEMOTED = "demoted"  # the claim is not paid; the key: no longer proven
    UNPAID = "unpaid"  # the claim is not paid; the key: nothing is said against it
    NOT_JUDGED = "not judged"  # nothing is said at all


_GRAVITY = (Verdict.GOOD, Verdict.NOT_JUDGED, Verdict.UNPAID, Verdict.DEMOTED, Verdict.VOID)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found of one claim."""

    verdict: Verdict
    reason: str = ""  # for people; empty: all fits


GOOD = Outcome(Verdict.GOOD)
Outcomes = tuple[Outcome, ...]  # of each claim, in the contribution's order


@dataclass(frozen=True, slots=True)
class Lacks:
    """Vectors without which nothing can be computed are not there."""

    means: tuple[int, ...]  # steps whose mean is not
    residuals: tuple[int, ...]  # places of the claims whose residual is not
    outcomes: Outcomes  # what is found if they are not brought in time


@dataclass(frozen=True, slots=True)
class Needs:
    """A step's mean does not fit: the own vectors of these claims say whose fault it is."""

    step: int
    places: tuple[int, ...]  # of the claims


class Brought(Protocol):
    """The vectors that were brought, each of N values of float32 with the digest that the records name; None: it is not there."""

    def mean(self, step: int) -> Vector | None:
        """Return the mean of a step."""
        ...

    def residual(self, place: int) -> Vector | None:
        """Return the residual of the claim at this place."""
        ...

    def own(self, place: int, step: int) -> Vector | None:
        """Return the own vector of a step of the claim at this place."""
        ...


@dataclass(frozen=True, slots=True)
class Audited:
    """A contribution as it stands in the log."""

    contribution: Contribution
    claims: tuple[Claim, ...]
    body: bytes = field(repr=False)
    floor: int  # of its base
    residuals: tuple[bytes | None, ...]  # digest of what the last listed contribution of each claim's key left it; None: not known


class Audit:
    """One audit, which may have to wait for vectors in between; not for several threads at once."""

    def __init__(
        self,
        manifest: Manifest,
        plan: Plan,
        audited: Audited,
        microbatches: Microbatches,
        state: State,
        teacher: Tensor | None,
        tolerance: Tolerance = FP32,
    ) -> None:
        """Begin at the base's ``state``, with the parameters (N,) of its teacher where the round has one.

        Raises:
            ValueError: a contribution that no log takes.
        """
        contribution, claims = audited.contribution, audited.claims
        self._num_steps = manifest.exchange.local_steps
        counted = [tuple(place for place in range(len(claims)) if each.counted >> place & 1) for each in contribution.steps]
        having = [tuple(place for place, claim in enumerate(claims) if len(claim.steps) > step) for step in range(self._num_steps)]
        if counted != having or max(len(claim.steps) for claim in claims) > self._num_steps:
            raise ValueError("the claims that count in a step are not those that have it")
        self._manifest = manifest
        self._plan = plan
        self._audited = audited
        self._microbatches = microbatches
        self._teacher = teacher
        self._tolerance = tolerance
        self._local = LocalSteps(state, plan)
        self._coverage = coverage_of(plan, contribution.round, claims[0].cohort)
        self._founder = next(place for place, claim in enumerate(claims) if claim.key == contribution.founder)
        self._counted = counted
        self._step = 0
        self._failed: dict[int, StepGradient] | None = None  # what came out of the step at hand, if its mean does not fit
        self._found: dict[int, Outcome] = {}  # by place; who is not in it is good
        self._check_residuals()

    def run(self, brought: Brought, rest: Callable[[], None] = lambda: None) -> Lacks | Needs | Outcomes:
        """Go on as far as what was brought leads; ``rest`` is called after each microbatch.

        After ``Lacks`` call it again once more was brought, or take the outcomes that it has. After ``Needs`` call it again once the
        vectors were brought, or when nobody waits for them any longer: what is not there then was not brought.

        Raises:
            OwnFault: as ``exact.scaling.check_denormals``.
        """
        if (lacks := self._lacks(brought)) is not None:
            return lacks
        try:
            while self._step < self._num_steps:
                needs = self._take_step(brought, rest)
                if needs is not None:
                    return needs
                if len(self._found) == len(self._audited.claims) and all(one.verdict is Verdict.VOID for one in self._found.values()):
                    return self._outcomes()
            self._judge_body(brought)
        except NotFinite as error:
            return self.not_judged(str(error))
        return self._outcomes()

    def not_judged(self, reason: str) -> Outcomes:
        """Return what is found where the audit ends here, for a ``reason`` that is nobody's fault: never that anything is good."""
        return self._outcomes(Outcome(Verdict.NOT_JUDGED, reason))

    def _lacks(self, brought: Brought) -> Lacks | None:
        means = tuple(step for step in range(self._num_steps) if brought.mean(step) is None)
        claims = self._audited.claims
        residuals = tuple(place for place in self._giving if claims[place].residual and brought.residual(place) is None)
        if means:  # each who counted in the step had it
            reason, had = f"nobody brought the mean of step {means[0]}", {place for step in means for place in self._counted[step]}
        elif residuals:
            reason, had = f"the residual of claim {residuals[0]} was not brought", {*residuals, self._founder}
        else:
            return None
        demoted = Outcome(Verdict.DEMOTED, reason)
        unpaid = self._outcomes(Outcome(Verdict.UNPAID, reason))
        return Lacks(means, residuals, tuple(_graver(one, demoted) if place in had else one for place, one in enumerate(unpaid)))

    @property
    def _giving(self) -> tuple[int, ...]:
        """The places of those whose vectors are in the body: who dropped out of a later step has none in it."""
        return tuple(place for place in range(len(self._audited.claims)) if self._audited.contribution.counted >> place & 1)

    def _check_residuals(self) -> None:
        for place in self._giving:
            named, left = self._audited.claims[place].residual, self._audited.residuals[place]
            if not named or named == left:  # zeros are always allowed
                continue
            if left is None:
                self._find(place, Verdict.NOT_JUDGED, "nobody knows here which residual its key had")
            else:
                self._find(place, Verdict.VOID, "its residual is not the one that its key's last listed contribution left")

    # Steps.

    def _take_step(self, brought: Brought, rest: Callable[[], None]) -> Needs | None:
        step, mean = self._step, brought.mean(self._step)
        assert mean is not None
        if self._failed is None:
            gradients = self._computed(step, rest)
            if not self._fits(step, mean, gradients, brought):
                self._failed = gradients
                unknown = tuple(place for place in gradients if not self._is_mean(step, place))
                if unknown:
                    return Needs(step, unknown)
        if self._failed is not None:
            self._judge_own(step, mean, self._failed, brought)
            self._failed = None
        if self._num_steps > 1:
            self._local.step(torch.tensor(mean))
        self._step += 1
        return None

    def _computed(self, step: int, rest: Callable[[], None]) -> dict[int, StepGradient]:
        """Return what the microbatches of each who counted in a step give, by place."""
        gradients: dict[int, StepGradient] = {}
        for place in self._counted[step]:
            claim = self._audited.claims[place]
            gradients[place] = self._microbatches.of_step(claim, step, self._local.weights, self._teacher, rest)
            skipped = skipped_cheap(self._manifest, self._plan, claim, step)
            if skipped is not None and self._microbatches.is_finite(claim, step, skipped, self._local.weights, self._teacher):
                self._find(place, Verdict.VOID, f"it skipped microbatches that pay less than others, as {skipped} of step {step}")
        return gradients

    def _fits(self, step: int, mean: Vector, gradients: Mapping[int, StepGradient], brought: Brought) -> bool:
        """Return whether a step's mean is as near to that of the gradients as an honest one."""
        parts = self._given({place: gradient.mean for place, gradient in gradients.items()}, brought)
        weights = self._weights_of_step(step)
        shares = [weight / sum(weights) for weight in weights]
        expected = _mean_of(parts, weights)
        if expected is None:
            raise NotFinite(f"the mean of step {step} is not finite here")
        rounding = rounding_of(list(zip(shares, parts, strict=True)))
        return self._tolerance.is_honest(mean, expected, list(map(Part, shares, gradients.values())), rounding)

    def _judge_own(self, step: int, mean: Vector, gradients: Mapping[int, StepGradient], brought: Brought) -> None:
        """Find whose fault it is that a step's mean does not fit."""
        own: dict[int, Vector] = {}
        for place, gradient in gradients.items():
            vector = mean if self._is_mean(step, place) else brought.own(place, step)
            if vector is None:
                self._find(place, Verdict.DEMOTED, f"it did not bring its own vector of step {step}")
                continue
            own[place] = vector
            rounding = rounding_of([(1.0, gradient.mean)])
            if not self._tolerance.is_honest(vector, gradient.mean, [Part(1.0, gradient)], rounding):
                self._find(place, Verdict.VOID, f"its own vector of step {step} is not what its microbatches give")
        if len(own) < len(gradients):
            return
        made = _mean_of(self._given(own, brought), self._weights_of_step(step))
        if made is None or vector_digest(made) != self._audited.contribution.steps[step].mean:
            self._find(self._founder, Verdict.VOID, f"the mean of step {step} is not that of the own vectors of those who counted")

    def _is_mean(self, step: int, place: int) -> bool:
        """Return whether a claim's own vector of a step is the mean itself, as that of whoever trains alone."""
        return self._audited.claims[place].steps[step].vector == self._audited.contribution.steps[step].mean

    def _given(self, own: Mapping[int, Vector], brought: Brought) -> list[Vector]:
        """Return what the members gave of their own vectors: with one local step a part of the residual comes with it at once."""
        if self._num_steps > 1:
            return list(own.values())
        return [self._with_residual(vector, place, brought) for place, vector in own.items()]

    def _with_residual(self, learnt: Vector, place: int, brought: Brought) -> Vector:
        residual = brought.residual(place) if self._audited.claims[place].residual else None
        return given(learnt, residual, self._manifest.exchange.residual_percent, self._coverage)

    def _weights_of_step(self, step: int) -> list[int]:
        return [self._weight_of(self._audited.claims[place].steps[step].count) for place in self._counted[step]]

    def _weight_of(self, count: int) -> int:
        """Return what so many microbatches weigh in a cohort."""
        return min(count * self._manifest.lot_samples, self._manifest.exchange.weight_cap)

    # The body.

    def _judge_body(self, brought: Brought) -> None:
        """Find whether the body, and the residual that it leaves, follow from the means and the members' residuals."""
        audited, codec = self._audited, self._manifest.exchange.codec
        whole = self._whole(brought)
        if whole is None or encode(codec, covered(whole, self._coverage), audited.floor) != audited.body:
            self._find(self._founder, Verdict.VOID, "its body is not what follows from the means of its steps")
            return
        left = b""
        if codec_named(codec).is_sparse:
            left = residual_digest(left_over(whole, parse(codec, audited.body, whole.size), audited.floor))
        if left != audited.contribution.residual:
            self._find(self._founder, Verdict.VOID, "the residual that it leaves is not what its body leaves out")

    def _whole(self, brought: Brought) -> Vector | None:
        """Return the mean of what the members gave at the end; None: it is not finite, and no body follows from it."""
        if self._num_steps == 1:
            mean = brought.mean(0)
            return mean if mean is not None and np.isfinite(mean).all() else None
        learnt, claims = self._local.learnt().numpy(), self._audited.claims
        parts: dict[bytes, Vector] = {}  # by the digest of the residual, which members that stay together share
        for place in self._giving:
            if claims[place].residual not in parts:
                parts[claims[place].residual] = self._with_residual(learnt, place, brought)
        weights = [self._weight_of(claims[place].lots) for place in self._giving]
        return _mean_of([parts[claims[place].residual] for place in self._giving], weights)

    # What is found.

    def _find(self, place: int, verdict: Verdict, reason: str) -> None:
        new = Outcome(verdict, reason)
        self._found[place] = _graver(self._found[place], new) if place in self._found else new

    def _outcomes(self, otherwise: Outcome = GOOD) -> Outcomes:
        """Return what was found of each claim; ``otherwise``: of those of which nothing graver was."""
        return tuple(_graver(self._found.get(place, otherwise), otherwise) for place in range(len(self._audited.claims)))


def _graver(one: Outcome, other: Outcome) -> Outcome:
    """Return the graver of two; of equally grave ones the first."""
    return max(one, other, key=lambda each: _GRAVITY.index(each.verdict))


def _mean_of(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector | None:
    """Return the mean of a cohort's vectors; None: it is not finite."""
    try:
        return near_mean(vectors, weights)
    except ValueError:
        return None
