"""A peer's place in a roster for one base: alone, or as a member who gives its vectors to the founder. On any trouble a member is alone.

The founder's place is in ``peer.cohort.founder``; what they say to each other in ``peer.cohort.messages``.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.residuals import PART_VALUES, near_mean
from manta_swarm.network import timeouts
from manta_swarm.network.links import Links
from manta_swarm.network.near_cohort_peers import CohortPeers
from manta_swarm.peer.cohort.all_reduce import AllReduce, described, squared_norms
from manta_swarm.peer.cohort.messages import (
    GIVE,
    HAND_OVER,
    MAX_WORD_BYTES,
    SUM,
    Add,
    AddAnswer,
    AskSum,
    Give,
    GiveAnswer,
    HandOver,
    Plan,
    PlanAnswer,
    Taken,
    Word,
)
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Weather
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, ClaimStep, Contribution, InclusionPromise
from manta_swarm.protocol.rosters import PassedOver
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import off_loop

Vector = NDArray[np.float32]

GONE = "the founder has given this up"
TROUBLE = (Weather, RemoteFault)  # the network's or another's: a peer is alone then

logger = logging.getLogger("manta.cohort")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The log has the cohort's contribution, which lists this peer's claim, on its disk."""

    contribution: Signed[Contribution]
    inclusion_promise: Signed[InclusionPromise]
    mean: Vector | None  # (N,): what was coded, where a member needs it for its residual; None: it does not, or it could not be had


class Means(Protocol):
    """Averages what members gave at the end of a round's work; a founder's session does."""

    async def mean_of(self, keys: Sequence[PublicKey], weights: Sequence[int]) -> Vector:
        """Return the mean (N,) of what these gave, with these weights.

        Raises:
            ValueError: it is not finite.
            Unreachable: an owner of a part of the vectors is gone.
        """


class Gathered:
    """The claims of a roster's members who came, in the order of their keys, and the mean of what they gave.

    Where audits compute local steps again, the claims of those who counted in a step and did not come are in it: up to their last step.
    """

    def __init__(
        self,
        claims: Mapping[PublicKey, Signed[Claim]],
        weights: Sequence[int],
        mean: Vector,
        means: Means,
        so_far: Mapping[PublicKey, Signed[Claim]] | None = None,
    ) -> None:
        """Take what came.

        Args:
            claims: of those who came, in the order of their keys.
            weights: what each one's vector weighs.
            mean: the mean (N,) of what they gave.
            means: make the mean of some of them.
            so_far: of all who counted in a local step, came or not, their claims up to the last one; None: nobody has to be listed.
        """
        self.keys = tuple(claims)
        self.claims = tuple(claims.values())
        self.weights = tuple(weights)
        self.mean = mean
        self._means = means
        self._so_far = so_far or {}
        self.dropped = tuple(claim for key, claim in self._so_far.items() if key not in claims)  # counted in a step, not in the body

    async def without(self, keys: frozenset[PublicKey]) -> "Gathered":
        """Return what there is without the members of these keys; who counted in a step that is computed again stays listed up to there.

        Raises:
            ValueError: nothing, or one of them counted in a step, and its claim up to there is not taken either.
            Unreachable: an owner of a part of the vectors is gone.
        """
        if self._so_far and not keys <= set(self.keys):
            raise ValueError("a claim is not taken whose vector is in the mean of a step")
        left = [place for place, key in enumerate(self.keys) if key not in keys]
        if not left:
            raise ValueError("nobody is left")
        claims, weights = {self.keys[place]: self.claims[place] for place in left}, [self.weights[place] for place in left]
        return Gathered(claims, weights, await self._means.mean_of(tuple(claims), weights), self._means, self._so_far)


@dataclass
class CohortContext:
    """What all cohort sessions of a peer share."""

    run_context: RunContext
    links: Links
    cohort_peers: CohortPeers
    may_share: bool  # whether members own parts of the vectors: where nobody is blamed for what another one adds
    silent: PassedOver = field(default_factory=PassedOver)
    poor_owners: PassedOver = field(default_factory=PassedOver)  # with whom a step went wrong: they add no part for some rounds

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self.run_context.manifest

    def now_ms(self) -> float:
        """Return the time."""
        return self.run_context.clock.now_ms()

    @property
    def is_sparse(self) -> bool:
        """Whether members are left with a residual."""
        return codec_named(self.manifest.exchange.codec).is_sparse

    @property
    def lists_dropped(self) -> bool:
        """Whether a contribution lists whoever counted in a local step: audits compute each step again, of all who did."""
        return self.manifest.audits_steps

    @property
    def tells_mean(self) -> bool:
        """Whether members need the mean of what was given: for their residuals, or to bring it to an audit."""
        return self.is_sparse or (self.manifest.is_audited and not self.manifest.audits_steps)

    def samples_of(self, step: ClaimStep) -> int:
        """Return how many samples a claim's step is of."""
        return step.count * self.manifest.microbatch_samples

    def weight_of(self, samples: int) -> int:
        """Return what so many samples weigh."""
        return min(samples, self.manifest.exchange.weight_cap)


class CohortSession:
    """A peer's place in a roster. This class is the place of a peer that is alone; others extend it."""

    def __init__(self, key: PublicKey) -> None:
        self.key = key

    @property
    def founder(self) -> PublicKey:
        """The key that the claim names as its founder."""
        return self.key

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is in the roster, any more."""
        return True

    @property
    def is_founder(self) -> bool:
        """Whether members give this peer their vectors."""
        return False

    @property
    def hands_in_alone(self) -> bool:
        """Whether there is nobody with whom, or for whom, this peer could hand in."""
        return self.is_alone

    @property
    def may_be_listed(self) -> bool:
        """Whether somebody else may list this peer's work up to a local step, where audits compute steps again: it cannot go alone then."""
        return False

    @property
    def members(self) -> tuple[PublicKey, ...]:
        """The roster as far as this peer knows it, in the order of the keys; who came late is known to the founder only."""
        return (self.key,)

    def step_ends(self, step: int) -> float | None:
        """Return when the vector of the local step that is under way (from 0) is due, in ms of the clock; None: nobody waits for it."""
        del step
        return None

    async def is_shared(self) -> bool:
        """Return whether there are others to average a step with, once nobody else can come: who is alone needs no claim of it."""
        return False

    async def average(self, step: int, vector: Vector, claim: Signed[Claim], digests: bytes | None = None) -> Vector:
        """Return the roster's mean of a step; the same object where this peer is alone, from here on.

        Nobody may change ``vector`` after this: a cohort peer may still be reading it. ``claim`` is that up to this step, which names the
        vector. ``digests`` are those of the vector's parts, where they are known.
        """
        del step, claim, digests
        return vector

    def work_over(self) -> None:
        """The last microbatch is trained: from here on what was learnt is signed, and then gathered."""

    async def gather(self, claim: Signed[Claim], given: Vector, weight: int) -> Gathered | None:
        """Founder: return what the members hand over in time, with its own; None: nobody did. What comes of it is said by ``tell``."""
        del claim, given, weight
        return None

    async def hand_over(self, claim: Signed[Claim], given: Vector, weight: int, until_ms: float) -> Accepted | None:
        """Member: give what was learnt to the founder, and return what the log said to it; None: hand in alone."""
        del claim, given, weight, until_ms
        return None

    async def tell(self, accepted: Accepted | None) -> None:
        """Founder: tell the members that ``accepted`` lists their claims; None, or for those whom it does not list: hand in alone."""
        del accepted

    def nothing_learnt(self) -> None:
        """The work is over, and there is nothing to hand in."""
        self.close("it has nothing to hand in")

    def close(self, reason: str = GONE) -> None:
        """Give the place up; who waits for this peer goes on alone."""
        del reason

    def forget(self) -> None:
        """Keep nothing of it any more, not even what may still be asked."""


class MemberSession(CohortSession):
    """The place of a member who is not the founder."""

    def __init__(
        self, context: CohortContext, base: CommitRef, founder: PublicKey, members: Sequence[PublicKey], ends_ms: float, step_ms: float
    ) -> None:
        """Begin with the first step, whose vector is due at ``ends_ms``."""
        super().__init__(context.links.key)
        self._context = context
        self._base = base
        self._founder = founder
        self._members = tuple(members)
        self._ends_ms = ends_ms
        self._step_ms = step_ms
        self._is_alone = False
        self._may_be_listed = False
        self._reducing: dict[int, AllReduce] = {}  # by step, the newest two

    @property
    def _end_step(self) -> int:
        return self._context.manifest.exchange.local_steps

    @property
    def founder(self) -> PublicKey:
        """See ``CohortSession``."""
        return self.key if self._is_alone else self._founder

    @property
    def is_alone(self) -> bool:
        """See ``CohortSession``."""
        return self._is_alone

    @property
    def members(self) -> tuple[PublicKey, ...]:
        """See ``CohortSession``."""
        return (self.key,) if self._is_alone else self._members

    def step_ends(self, step: int) -> float | None:
        """See ``CohortSession``."""
        del step
        return None if self._is_alone else self._ends_ms

    @property
    def may_be_listed(self) -> bool:
        """See ``CohortSession``."""
        return self._may_be_listed

    async def is_shared(self) -> bool:
        """See ``CohortSession``."""
        return not self._is_alone

    async def average(self, step: int, vector: Vector, claim: Signed[Claim], digests: bytes | None = None) -> Vector:
        """See ``CohortSession``."""
        if self._is_alone:
            return vector
        context, now_ms = self._context, self._context.now_ms()
        # The founder may be late by a microbatch, waits for others as long, then for parts and for sums, perhaps twice: each is a third of
        # a step.
        timeout_s = (max(self._ends_ms - now_ms, 0.0) + 2 * self._step_ms) / 1000 + timeouts.NEAR_S
        reducing = self._begin(step, vector)
        try:
            request = pack(Give(self._base.commit, step, claim, await described(vector, context.links.linked(), digests)))
            counted_before, self._may_be_listed = self._may_be_listed, context.lists_dropped
            answer = await context.links.call(self._founder, GIVE, request, timeout_s=timeout_s, largest=MAX_WORD_BYTES)
            opened = unpack(GiveAnswer, answer, max_bytes=MAX_WORD_BYTES)
            if not opened.digests:
                self._may_be_listed = counted_before
                self._go_alone(f"left out: {opened.reason}")
                return vector
            mean = await self._mean(reducing, step, opened.turn, opened.digests)
            await off_loop(mean.size, lambda: _check_finite(mean))
        except TROUBLE as error:
            context.silent.note(self._founder, self._base.round + 1)
            self._go_alone(str(error))
            return vector
        self._ends_ms = context.now_ms() + opened.ends_ms
        return mean

    def _begin(self, step: int, vector: Vector) -> AllReduce:
        """Take part in adding the vectors of a step; H stands for what is given at the end."""
        for earlier in [earlier for earlier in self._reducing if earlier < step - 1]:
            self._reducing.pop(earlier).close()
        reducing = self._reducing[step] = AllReduce(
            self._context.links, self._founder, self._base.commit, step, vector, is_audited=self._context.manifest.is_audited
        )
        return reducing

    async def _mean(self, reducing: AllReduce, step: int, turn: int, digests: bytes) -> Vector:
        """Return the mean that the founder names; what the owners did not send is asked of the founder."""
        timeout_s = reducing.timeout_s + timeouts.NEAR_S

        async def ask(part: int) -> bytes:
            request = pack(AskSum(self._base.commit, step, turn, part))
            return await self._context.links.call(self._founder, SUM, request, timeout_s=timeout_s, largest=4 * PART_VALUES)

        return await reducing.mean(turn, digests, timeout_s, ask)

    async def on_plan(self, caller: PublicKey, plan: Plan) -> PlanAnswer:
        """Do what the founder's plan says; answer with what came to this peer.

        Raises:
            RemoteFault: it is not the founder, or has no such plan to make.
        """
        return PlanAnswer(await self._reducing_of(caller, plan.base, plan.step).follow(plan))

    async def on_add(self, caller: PublicKey, add: Add) -> AddAnswer:
        """Add what the founder says.

        Raises:
            RemoteFault: it is not the founder, or what is to be added is not here.
        """
        return AddAnswer(await self._reducing_of(caller, add.base, add.step).add(add))

    def _reducing_of(self, caller: PublicKey, base: bytes, step: int) -> AllReduce:
        reducing = self._reducing.get(step)
        if reducing is None or self._is_alone or caller != self._founder or base != self._base.commit:
            raise EncodingError("nothing of that is under way here")
        return reducing

    def close(self, reason: str = GONE) -> None:
        """See ``CohortSession``."""
        del reason
        for reducing in self._reducing.values():
            reducing.close()
        self._reducing.clear()

    async def hand_over(self, claim: Signed[Claim], given: Vector, weight: int, until_ms: float) -> Accepted | None:
        """See ``CohortSession``."""
        del weight  # the founder reads it off the claim
        if self._is_alone:
            return None
        context, timeout_s = self._context, (until_ms - self._context.now_ms()) / 1000
        if timeout_s <= 0:
            self._go_alone("there is no time left to hand anything over")
            return None
        self._begin(self._end_step, given)
        try:
            request = pack(HandOver(self._base.commit, claim, await described(given, context.links.linked())))
            answer = await context.links.call(self._founder, HAND_OVER, request, timeout_s=timeout_s, largest=MAX_WORD_BYTES)
            word = unpack(Word, answer, max_bytes=MAX_WORD_BYTES)
            if not word.taken:
                self._go_alone(f"left out: {word.reason}")
                return None
            self._check(word.taken[0], claim)
        except Weather as error:  # its own hand-in may take long: whether it is silent shows in the next round
            self._go_alone(str(error))
            return None
        except RemoteFault as error:
            context.silent.note(self._founder, self._base.round + 1)
            self._go_alone(str(error))
            return None
        mean = await self._mean_of(word.taken[0], given) if context.tells_mean else None
        return Accepted(word.taken[0].contribution, word.taken[0].inclusion_promise, mean)

    def _check(self, taken: Taken, claim: Signed[Claim]) -> None:
        """Check that the log has a contribution that lists this claim.

        Raises:
            RemoteFault: the founder's word does not show it.
        """
        contribution, inclusion_promise = taken.contribution.open(), taken.inclusion_promise.open_by(self._context.manifest.operators)
        base = (self._context.run_context.run, self._base.round + 1, self._base.commit, self._founder)
        if (contribution.run, contribution.round, contribution.base, contribution.founder) != base:
            raise EncodingError("the founder names a contribution of another base, or another's")
        if claim.digest not in contribution.claims:
            raise EncodingError("the founder names a contribution that does not list this peer's claim")
        if (inclusion_promise.run, inclusion_promise.contribution) != (self._context.run_context.run, taken.contribution.digest):
            raise EncodingError("the founder shows an inclusion promise for something else")

    async def _mean_of(self, taken: Taken, given: Vector) -> Vector | None:
        """Return the mean that was coded; None: it cannot be had, and the residual is lost."""
        try:
            if taken.weights:
                vectors = [given] * len(taken.weights)
                return await off_loop(given.size, lambda: near_mean(vectors, taken.weights))
            if taken.digests:
                mean = await self._mean(self._reducing[self._end_step], self._end_step, taken.turn, taken.digests)
                await off_loop(mean.size, lambda: _check_finite(mean))
                return mean
        except (*TROUBLE, ValueError) as error:
            logger.info("mean not fetched round=%d reason=%s", self._base.round + 1, error)
        return None

    def _go_alone(self, reason: str) -> None:
        self._is_alone = True
        logger.info("alone round=%d reason=%s", self._base.round + 1, reason)


def norm_of(vector: Vector) -> float:
    """Return about how long a vector is; not finite if a value of it is not, or its square is none."""
    return float(np.sqrt(np.frombuffer(squared_norms(vector), "<f8").sum()))


def _check_finite(vector: Vector) -> None:
    """Check that a mean from the founder is finite.

    Raises:
        EncodingError: its values are not finite, or so large that they might as well not be.
    """
    if not isfinite(norm_of(vector)):
        raise EncodingError("a mean holds values that are not finite")
