"""The audit of a contribution: all its microbatches computed again, and what is found of each claim in it.

Step by step, on the weights to which the means lead, the mean of a step is compared with what the microbatches of all who counted give,
within the tolerance of ``automl.training.audited_step``. From the means on all is exact: what was learnt, what each member gave, the
body, and the residual that it leaves. Where a step's mean does not fit, the own vectors of those who counted are asked for, and tell whose
fault it is: who signed a vector that its microbatches do not give, who gave another vector than follows from it, or the founder, who made
another mean of them than section 12 of docs/protocol.md does.

A founder answers for what it made of the vectors that it was given, and never for these. Where one of them is not known, because its key
lied about it or did not bring it, nobody can say what the founder made of it: its own claim is not paid.

Nothing here knows who asks, who brings, how long anybody waits, or what an operator makes of the outcome.

Shapes: N all weights of the supernet.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.training.audited_step import (
    FP32,
    AuditedMicrobatches,
    NotFinite,
    StepGradient,
    Tolerance,
    WeightedGradient,
    rounding_of,
    skipped_cheap,
)
from manta_swarm.automl.training.coverage import coverage_of
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import LocalSteps, State
from manta_swarm.codec.coding import encode, parse
from manta_swarm.codec.residuals import Vector, covered, given, left_over, near_mean, residual_digest, vector_digest
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, Contribution
from manta_swarm.protocol.verdicts import Outcome


@dataclass(frozen=True, slots=True)
class Judged:
    """What is found of one claim."""

    outcome: Outcome
    reason: str = ""  # for people; empty: all fits


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A claim could not be judged, through nobody's fault."""

    reason: str  # for people


GOOD = Judged(Outcome.GOOD)
Judgement = Judged | NotJudged
Judgements = tuple[Judgement, ...]  # of each claim, in the contribution's order


@dataclass(frozen=True, slots=True)
class Lacks:
    """Vectors without which nothing can be computed are not there."""

    means: tuple[int, ...]  # steps whose mean is not
    residuals: tuple[int, ...]  # places of the claims whose residual is not
    judgements: Judgements  # what is found if they are not brought in time


@dataclass(frozen=True, slots=True)
class Needs:
    """A step's mean does not fit: the own vectors of those who counted say whose fault it is."""

    step: int
    places: tuple[int, ...]  # of the claims whose own vectors are not there


class BroughtForAudit(Protocol):
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
class Submission:
    """A contribution as it was handed in and stands in the log."""

    contribution: Contribution
    claims: tuple[Claim, ...]
    body: bytes = field(repr=False)
    min_exponent: int  # of its base
    left: tuple[bool | None, ...]  # by claim: whether the residual that it names was left to its key; None: not known


class Recomputation:
    """The audit of one contribution, which may have to wait for vectors in between; not for several threads at once."""

    def __init__(
        self,
        manifest: Manifest,
        plan: Plan,
        submission: Submission,
        microbatches: AuditedMicrobatches,
        state: State,
        teacher: Tensor | None,
        tolerance: Tolerance = FP32,
    ) -> None:
        """Begin at the base's ``state``, with the parameters (N,) of its teacher where the round has one.

        Raises:
            ValueError: a contribution that no log takes.
        """
        contribution, claims = submission.contribution, submission.claims
        self._num_steps = manifest.exchange.local_steps
        counted = [tuple(place for place in range(len(claims)) if each.included >> place & 1) for each in contribution.steps]
        having = [tuple(place for place, claim in enumerate(claims) if len(claim.steps) > step) for step in range(self._num_steps)]
        if counted != having or max(len(claim.steps) for claim in claims) > self._num_steps:
            raise ValueError("the claims that count in a step are not those that have it")
        self._manifest = manifest
        self._plan = plan
        self._submission = submission
        self._microbatches = microbatches
        self._teacher = teacher
        self._tolerance = tolerance
        self._local = LocalSteps(state, plan)
        self._coverage = coverage_of(plan, contribution.round, claims[0].cohort)
        self._founder = next(place for place, claim in enumerate(claims) if claim.key == contribution.founder)
        self._counted = counted
        self._step = 0
        self._failed: dict[int, StepGradient] | None = None  # what came out of the step at hand, if its mean does not fit
        self._found: dict[int, Judgement] = {}  # by place; who is not in it is good
        self._check_residuals()

    def run(
        self, brought: BroughtForAudit, rest: Callable[[], None] = lambda: None, over: Collection[int] = ()
    ) -> Lacks | Needs | Judgements:
        """Go on as far as what was brought leads; ``rest`` is called after each microbatch.

        After ``Lacks`` call it again once more was brought, or take the judgements that it has. After ``Needs`` call it again once the
        vectors were brought, or with the step among those that are ``over``: what is not there of their own vectors was not brought.

        Raises:
            OwnFault: as ``codec.scaling.check_denormals``.
        """
        if (lacks := self._lacks(brought)) is not None:
            return lacks
        try:
            while self._step < self._num_steps:
                needs = self._take_step(brought, rest, over)
                if needs is not None:
                    return needs
                if len(self._found) == len(self._submission.claims) and all(map(_is_void, self._found.values())):
                    return self._judgements()
            self._judge_body(brought)
        except NotFinite as error:
            return self.not_judged(str(error))
        return self._judgements()

    def not_judged(self, reason: str) -> Judgements:
        """Return what is found where the audit ends here, for a ``reason`` that is nobody's fault: never that anything is good."""
        return self._judgements(NotJudged(reason))

    def _lacks(self, brought: BroughtForAudit) -> Lacks | None:
        means = tuple(step for step in range(self._num_steps) if brought.mean(step) is None)
        claims = self._submission.claims
        residuals = tuple(place for place in self._giving if claims[place].residual and brought.residual(place) is None)
        if means:  # each who counted in the step had it
            reason, had = f"nobody brought the mean of step {means[0]}", {place for step in means for place in self._counted[step]}
        elif residuals:
            reason, had = f"the residual of claim {residuals[0]} was not brought", set(residuals)
        else:
            return None
        demoted = Judged(Outcome.DEMOTED, reason)
        unpaid = self._judgements(Judged(Outcome.UNPAID, reason))
        return Lacks(means, residuals, tuple(_graver(one, demoted) if place in had else one for place, one in enumerate(unpaid)))

    @property
    def _giving(self) -> tuple[int, ...]:
        """The places of those whose vectors are in the body: who dropped out of a later step has none in it."""
        return tuple(place for place in range(len(self._submission.claims)) if self._submission.contribution.included >> place & 1)

    def _check_residuals(self) -> None:
        for place in self._giving:
            named, left = self._submission.claims[place].residual, self._submission.left[place]
            if not named or left:  # zeros are always allowed
                continue
            if left is None:
                self._find(place, NotJudged("nobody knows here which residuals were left to its key"))
            else:
                self._find(place, Judged(Outcome.VOID, "its residual is not one that a contribution left to its key"))

    # Steps.

    def _take_step(self, brought: BroughtForAudit, rest: Callable[[], None], over: Collection[int]) -> Needs | None:
        step, mean = self._step, brought.mean(self._step)
        assert mean is not None
        if self._failed is None:
            gradients = self._computed(step, rest)
            if not self._fits(step, mean, gradients, brought):
                self._failed = gradients
        if self._failed is not None:
            own = {place: mean if self._is_mean(step, place) else brought.own(place, step) for place in self._failed}
            lacking = tuple(place for place, vector in own.items() if vector is None)
            if lacking and step not in over:
                return Needs(step, lacking)
            self._judge_own(step, own, self._failed, brought)
            self._failed = None
        if self._num_steps > 1:
            self._local.step(torch.tensor(mean))
        self._step += 1
        return None

    def _computed(self, step: int, rest: Callable[[], None]) -> dict[int, StepGradient]:
        """Return what the microbatches of each who counted in a step give, by place."""
        gradients: dict[int, StepGradient] = {}
        for place in self._counted[step]:
            claim = self._submission.claims[place]
            gradients[place] = self._microbatches.of_step(claim, step, self._local.weights, self._teacher, rest)
            skipped = skipped_cheap(self._manifest, self._plan, claim, step)
            if skipped is not None and self._microbatches.is_finite(claim, step, skipped, self._local.weights, self._teacher):
                self._find(place, Judged(Outcome.VOID, f"it skipped microbatches that pay less than others, as {skipped} of step {step}"))
        return gradients

    def _fits(self, step: int, mean: Vector, gradients: Mapping[int, StepGradient], brought: BroughtForAudit) -> bool:
        """Return whether a step's mean is as near to that of the gradients as an honest one."""
        parts = [gradient.mean for gradient in gradients.values()]
        if self._num_steps == 1:
            parts = [self._given(gradient.mean, place, brought) for place, gradient in gradients.items()]
        weights = self._weights_of_step(step)
        shares = [weight / sum(weights) for weight in weights]
        expected = _mean_of(parts, weights)
        if expected is None:
            raise NotFinite(f"the mean of step {step} is not finite here")
        rounding = rounding_of(list(zip(shares, parts, strict=True)))
        return self._tolerance.is_honest(mean, expected, list(map(WeightedGradient, shares, gradients.values())), rounding)

    def _judge_own(
        self, step: int, own: Mapping[int, Vector | None], gradients: Mapping[int, StepGradient], brought: BroughtForAudit
    ) -> None:
        """Find whose fault it is that a step's mean does not fit."""
        gave: list[Vector] = []
        for place, gradient in gradients.items():
            if (vector := own[place]) is None:
                self._find(place, Judged(Outcome.DEMOTED, f"it did not bring its own vector of step {step}"))
                continue
            rounding = rounding_of([(1.0, gradient.mean)])
            if not self._tolerance.is_honest(vector, gradient.mean, [WeightedGradient(1.0, gradient)], rounding):
                self._find(place, Judged(Outcome.VOID, f"its own vector of step {step} is not what its microbatches give"))
            if self._num_steps == 1:
                vector = self._given(vector, place, brought)
                if not self._is_given(vector_digest(vector), place):
                    continue
            gave.append(vector)
        if len(gave) < len(gradients):
            self._find(self._founder, Judged(Outcome.UNPAID, f"nobody knows the vectors that the mean of step {step} was made of"))
            return
        made = _mean_of(gave, self._weights_of_step(step))
        if made is None or vector_digest(made) != self._submission.contribution.steps[step].mean:
            reason = f"the mean of step {step} is not that of the vectors of those who counted"
            self._find(self._founder, Judged(Outcome.VOID, reason))

    def _is_mean(self, step: int, place: int) -> bool:
        """Return whether a claim's own vector of a step is the mean itself, as that of whoever trains alone."""
        return self._submission.claims[place].steps[step].vector == self._submission.contribution.steps[step].mean

    def _given(self, learnt: Vector, place: int, brought: BroughtForAudit) -> Vector:
        """Return what the member at a place has to give of what it learnt: a part of its residual comes with it."""
        residual = brought.residual(place) if self._submission.claims[place].residual else None
        return given(learnt, residual, self._manifest.exchange.residual_percent, self._coverage)

    def _is_given(self, digest: bytes, place: int) -> bool:
        """Find whether the claim at a place names the vector of this digest as what it gave, and return it."""
        if self._submission.claims[place].given == digest:
            return True
        self._find(place, Judged(Outcome.VOID, "what it gave is not what it learnt with the part of its residual"))
        return False

    def _weights_of_step(self, step: int) -> list[int]:
        return [self._weight_of(self._submission.claims[place].steps[step].count) for place in self._counted[step]]

    def _weight_of(self, count: int) -> int:
        """Return what so many microbatches weigh in a cohort."""
        return min(count * self._manifest.microbatch_samples, self._manifest.exchange.weight_cap)

    # The body.

    def _judge_body(self, brought: BroughtForAudit) -> None:
        """Find whether the body, and the residual that it leaves, follow from what the members gave."""
        submission, codec = self._submission, self._manifest.exchange.codec
        if self._num_steps == 1:  # the step's mean is that of what they gave
            self._check_digests()
            whole = brought.mean(0)
        else:
            gave = self._given_at_the_end(brought)
            if gave is None:
                self._find(self._founder, Judged(Outcome.UNPAID, "nobody knows the vectors that its body was made of"))
                return
            whole = _mean_of(gave, [self._weight_of(submission.claims[place].microbatches) for place in self._giving])
        is_finite = whole is not None and bool(np.isfinite(whole).all())  # of what is not finite no body follows
        if whole is None or not is_finite or encode(codec, covered(whole, self._coverage), submission.min_exponent) != submission.body:
            self._find(self._founder, Judged(Outcome.VOID, "its body is not what follows from the vectors that its members gave"))
            return
        left = b""
        if codec_named(codec).is_sparse:
            left = residual_digest(left_over(whole, parse(codec, submission.body, whole.size), submission.min_exponent))
        if left != submission.contribution.residual:
            self._find(self._founder, Judged(Outcome.VOID, "the residual that it leaves is not what its body leaves out"))

    def _check_digests(self) -> None:
        """Check, after one step, that claims name as given what is known by digest: of who gave alone, or had no residual."""
        for place in self._giving:
            claim = self._submission.claims[place]
            if len(self._giving) == 1:
                self._is_given(self._submission.contribution.steps[0].mean, place)
            elif not claim.residual:
                self._is_given(claim.steps[0].vector, place)

    def _given_at_the_end(self, brought: BroughtForAudit) -> list[Vector] | None:
        """Return what each member gave after the last step, in order; None: the claim of one names another vector."""
        learnt, claims = self._local.learnt().numpy(), self._submission.claims
        known: dict[bytes, tuple[Vector, bytes]] = {}  # with its digest, by that of the residual, which who stays together shares
        for place in self._giving:
            if claims[place].residual not in known:
                vector = self._given(learnt, place, brought)
                known[claims[place].residual] = vector, vector_digest(vector)
        are_given = [self._is_given(known[claims[place].residual][1], place) for place in self._giving]
        return [known[claims[place].residual][0] for place in self._giving] if all(are_given) else None

    # What is found.

    def _find(self, place: int, new: Judgement) -> None:
        self._found[place] = _graver(self._found[place], new) if place in self._found else new

    def _judgements(self, otherwise: Judgement = GOOD) -> Judgements:
        """Return what was found of each claim; ``otherwise``: of those of which nothing graver was."""
        claims = self._submission.claims
        return tuple(_told(_graver(self._found.get(place, otherwise), otherwise), claim) for place, claim in enumerate(claims))


def _told(one: Judgement, claim: Claim) -> Judgement:
    """Return what is said of a claim: of who had one view of its samples never that it is guilty, for nobody knows which site lied."""
    return Judged(Outcome.DEMOTED, one.reason) if claim.partner and _is_void(one) else one


def _is_void(one: Judgement) -> bool:
    return isinstance(one, Judged) and one.outcome is Outcome.VOID


def _graver(one: Judgement, other: Judgement) -> Judgement:
    """Return the graver of two; of equally grave ones the first."""
    return max(one, other, key=_gravity)


def _gravity(one: Judgement) -> float:
    """Return how grave a judgement is: what is not judged is never good, and nothing is taken away for that."""
    return (Outcome.GOOD + Outcome.UNPAID) / 2 if isinstance(one, NotJudged) else one.outcome


def _mean_of(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector | None:
    """Return the mean of a cohort's vectors; None: it is not finite."""
    try:
        return near_mean(vectors, weights)
    except ValueError:
        return None
