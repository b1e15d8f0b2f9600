"""The founder's place in a roster: step by step it says who adds which part of the members' vectors, who counts, and what comes of it.

Who has direct links to all others, and the founder itself, own a part each of the vectors: all send an owner its part, it adds and sends
the sums round (``peer.cohort.all_reduce``). Whatever goes wrong with an owner, the founder adds everything itself, once more.

It waits for nobody longer than the timetable says. Who does not come, or brings what cannot be averaged, is told why, if it still listens,
and is left out from there on; the others don't notice. With several local steps a member's claim up to each step comes with its vector.
Where audits compute the steps again, the contribution lists the last claim of each member that counted in any step: so a claim that a log
would refuse by itself is refused before its vector is in a mean.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from manta_swarm.codec.residuals import digest_of_parts, near_mean
from manta_swarm.network import timeouts
from manta_swarm.peer.cohort.all_reduce import AllReduce, described, norm_of
from manta_swarm.peer.cohort.cohort_session import GONE, TROUBLE, Accepted, CohortContext, CohortSession, Gathered, Vector
from manta_swarm.peer.cohort.coordinator import LATE, NO_VECTOR, Coordinator, Reduced
from manta_swarm.peer.cohort.messages import AskSum, Give, GiveAnswer, HandOver, JoinAnswer, PlaceAnswer, Taken, VectorSummary, Word
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Unreachable
from manta_swarm.protocol.listed import trained_fault
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rosters import Durations, Timetable, claim_bytes, fits, most_members, outliers
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import off_loop, wait_within

NOT_FINITE, TOO_LARGE = "values that are not finite", "much larger than the others' vectors"
BAD_CLAIM = "its claim does not fit"

logger = logging.getLogger("manta.cohort")


@dataclass(frozen=True, slots=True)
class _Gift:
    """What a member gave, or says that it has to give."""

    vector: VectorSummary
    norm: float
    samples: int
    claim: Signed[Claim]


@dataclass
class _Collection:
    """What the members give for a step, or at the end, and what it came to."""

    begun: set[PublicKey] = field(default_factory=set)  # who called
    gifts: dict[PublicKey, _Gift] = field(default_factory=dict)
    refused: dict[PublicKey, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    mean: Reduced | None = None  # of a step
    ends_ms: float = 0.0  # when the next step does
    taken: dict[PublicKey, Taken] = field(default_factory=dict)  # at the end

    def leave_out(self, key: PublicKey, reason: str) -> None:
        """Drop what a member gave, or did not."""
        self.gifts.pop(key, None)
        self.refused.setdefault(key, reason)
        self.changed.set()


class FounderSession(CohortSession):
    """The place of the member who convened the roster."""

    def __init__(
        self,
        context: CohortContext,
        base: CommitRef,
        cohort: str,
        expected: Iterable[PublicKey],
        until_ms: float,
        timetable: Timetable,
        durations: Durations,
    ) -> None:
        """Begin with the first step.

        Args:
            context: what this peer's cohort sessions share.
            base: of the work.
            cohort: its name, which the claims are to have.
            expected: cohort peers who are waited for ...
            until_ms: ... so long at the end of the first step.
            timetable: of the steps.
            durations: learns how long it all takes.
        """
        super().__init__(context.links.key)
        self.base = base
        self.cohort = cohort
        self.timetable = timetable
        self._context = context
        self._durations = durations
        self._most = most_members(timetable.local_steps)
        self._expected = set(expected)
        self._until_ms = until_ms
        self._came: set[PublicKey] = set()  # who asked for a place
        self._asked = asyncio.Event()
        self._is_open = True  # for members
        self._others: set[PublicKey] = set()
        self._took_part: set[PublicKey] = set()  # who was ever among them
        self._step = 0  # under way
        self._ends_ms = timetable.ends_ms(0, timetable.start_ms)
        self._given = _Collection()  # for that step
        self._handed = _Collection()
        self._so_far: dict[PublicKey, Signed[Claim]] = {}  # of whoever counted in a step: its claim up to the last one in which it did
        self._over_ms: float | None = None  # when the work was over
        self._reducing: dict[int, AllReduce] = {}  # by step, the newest two
        self._given_at_end: Vector | None = None  # by this peer
        self._coordinator: Coordinator | None = None  # of what was given at the end
        self._is_common = False  # what all gave at the end is the same
        self._gathered_sum: Reduced | None = None  # the newest one of what was given at the end

    @property
    def is_alone(self) -> bool:
        """See ``CohortSession``."""
        return not self._others

    @property
    def is_founder(self) -> bool:
        """See ``CohortSession``."""
        return True

    @property
    def hands_in_alone(self) -> bool:
        """See ``CohortSession``."""
        return self.is_alone and not (self._context.lists_dropped and self._so_far.keys() - {self.key})

    @property
    def members(self) -> tuple[PublicKey, ...]:
        """See ``CohortSession``."""
        return tuple(sorted({self.key, *self._others}))

    def step_ends(self, step: int) -> float | None:
        """See ``CohortSession``."""
        del step
        return None if self.is_alone else self._ends_ms

    def close(self, reason: str = GONE) -> None:
        """See ``CohortSession``."""
        self._is_open = False
        for collection in (self._given, self._handed):
            self._leave_out_all(collection, reason)
            collection.over.set()

    def forget(self) -> None:
        """See ``CohortSession``."""
        for reducing in self._reducing.values():
            reducing.close()
        self._reducing.clear()

    # Who takes part.

    def admit(self, key: PublicKey, microbatch_ms: int) -> JoinAnswer:
        """Answer a cohort peer that asks for a place: there are some until the first step is over, or was due."""
        now_ms = self._context.now_ms()
        self._came.add(key)
        self._asked.set()
        self._context.silent.forgive(key)
        if not self._is_open or now_ms > self._ends_ms or len(self._others - {key}) >= self._most - 1:
            return JoinAnswer(int(PlaceAnswer.LATE))
        if not fits(microbatch_ms, self.timetable.last_ms - self.timetable.start_ms, self.timetable.local_steps):
            return JoinAnswer(int(PlaceAnswer.TOO_SLOW))
        self._others.add(key)
        self._took_part.add(key)
        ends_ms, step_ms = max(0, round(self._ends_ms - now_ms)), round(self.timetable.step_ms)
        return JoinAnswer(int(PlaceAnswer.TAKEN), (), self.members, ends_ms, step_ms)

    async def _close_roster(self) -> None:
        """Take no more members; before that, wait for those who are expected, but not for long."""
        while self._is_open and self._expected - self._came and (left_ms := self._until_ms - self._context.now_ms()) > 0:
            self._asked.clear()
            await wait_within(self._asked, left_ms / 1000)
        if self._is_open:
            self._is_open = False
            for key in self._expected - self._came:
                self._context.silent.note(key, self.base.round + 1)

    # Steps.

    async def is_shared(self) -> bool:
        """See ``CohortSession``."""
        await self._close_roster()
        return not self.is_alone

    async def average(self, step: int, vector: Vector, claim: Signed[Claim], digests: bytes | None = None) -> Vector:
        """See ``CohortSession``."""
        if not await self.is_shared():
            return vector
        if step != self._step:
            raise ValueError(f"step {step} where step {self._step} is under way")
        context, collection, reducing = self._context, self._given, self._begin(step, vector)
        deadline_ms = max(self._ends_ms, context.now_ms()) + self.timetable.timeout_ms
        own = await self._own_gift(vector, context.samples_of(claim.unchecked().steps[-1]), claim, digests)
        await self._all_here(collection, deadline_ms)
        began_ms = context.now_ms()
        gifts = self._sift(collection, own)
        made = collection.mean = await self._mean_of_step(collection, gifts, Coordinator(context, self.base, step, reducing))
        self._so_far[self.key] = claim
        if made is None:
            self._leave_out_all(collection, GONE)
        else:
            self._so_far.update((key, gift.claim) for key, gift in gifts.items())
            self._durations.averaged(context.now_ms() - began_ms)
        self._begin_step(step + 1)
        if self._step == self.timetable.local_steps:
            self.work_over()
        collection.ends_ms = self._ends_ms
        collection.over.set()
        await asyncio.sleep(0)  # the members' answers go out first: what the caller does next may take a while
        return vector if made is None else made.mean

    async def _mean_of_step(self, collection: _Collection, gifts: dict[PublicKey, _Gift], coordinator: Coordinator) -> Reduced | None:
        """Return the mean of these, without who does not bring what it said; None: there is none."""
        timeout_ms = self.timetable.timeout_ms
        if not await self._brought(collection, gifts, coordinator, timeout_ms):
            return None
        try:
            return await coordinator.add(tuple(gifts), self._weights(gifts), tuple(gifts), timeout_ms)
        except (ValueError, *TROUBLE) as error:  # of finite vectors the mean may not be
            logger.info("no mean round=%d reason=%s", self.base.round + 1, error)
            return None

    async def _brought(self, collection: _Collection, gifts: dict[PublicKey, _Gift], coordinator: Coordinator, timeout_ms: float) -> bool:
        """Let all bring what they said; who does not is taken out of ``gifts``. Return whether anybody but this peer is left."""
        if len(gifts) > 1:
            await coordinator.gather({key: gift.vector for key, gift in gifts.items()}, timeout_ms)
            for key, reason in coordinator.refused.items():
                logger.info("left out round=%d peer=%s reason=%s", self.base.round + 1, key.hex()[:8], reason)
                collection.leave_out(key, reason)
                self._others.discard(key)
                gifts.pop(key, None)
        return len(gifts) > 1

    def _weights(self, gifts: dict[PublicKey, _Gift]) -> list[int]:
        return [self._context.weight_of(gift.samples) for gift in gifts.values()]

    async def _own_gift(self, vector: Vector, samples: int, claim: Signed[Claim], digests: bytes | None = None) -> _Gift:
        said = await described(vector, self._context.links.linked(), digests)
        return _Gift(said, norm_of(said), samples, claim)

    def _begin(self, step: int, vector: Vector) -> AllReduce:
        """Take part in adding the vectors of a step; H stands for what is given at the end."""
        for earlier in [earlier for earlier in self._reducing if earlier < step - 1]:
            self._reducing.pop(earlier).close()
        reducing = self._reducing[step] = AllReduce(
            self._context.links, self.key, self.base.commit, step, vector, is_audited=self._context.manifest.is_audited
        )
        return reducing

    def _begin_step(self, step: int) -> None:
        self._step, self._given = step, _Collection()
        if step < self.timetable.local_steps:
            self._ends_ms = self.timetable.ends_ms(step, self._context.now_ms())

    async def on_give(self, caller: PublicKey, give: Give) -> GiveAnswer:
        """Answer a member's vector of a step, once its mean is there."""
        context, collection = self._context, self._given
        if caller not in self._others or give.step != self._step or caller in collection.begun:
            return _no_mean(LATE)
        collection.begun.add(caller)
        try:
            claim = self._fitting(caller, give.claim, give.step + 1)
        except RemoteFault as error:
            logger.info("claim refused peer=%s reason=%s", caller.hex()[:8], error)
            collection.leave_out(caller, BAD_CLAIM)
            return _no_mean(BAD_CLAIM)
        self._take(collection, caller, give.vector, context.samples_of(claim.steps[-1]), give.claim, names=claim.steps[-1].vector)
        await self._until_over(collection)
        if collection.mean is None or caller not in collection.gifts:
            return _no_mean(collection.refused.get(caller, GONE))
        return GiveAnswer(collection.mean.digests, collection.mean.turn, "", max(0, round(collection.ends_ms - self._context.now_ms())))

    def on_sum(self, caller: PublicKey, ask: AskSum) -> bytes:
        """Return a part of a mean that an owner did not send.

        Raises:
            Unreachable: there is no such mean, or it is not for the caller.
        """
        reducing = self._reducing.get(ask.step)
        if reducing is None or caller not in self._took_part:
            raise Unreachable("no such mean is here")
        return reducing.part_of_mean(ask.turn, ask.part)

    # The end.

    def work_over(self) -> None:
        """See ``CohortSession``."""
        if self._over_ms is None:
            self._over_ms = self._context.now_ms()

    async def gather(self, claim: Signed[Claim], given: Vector, weight: int) -> Gathered | None:
        """See ``CohortSession``."""
        self.work_over()
        await self._close_roster()
        if self.hands_in_alone:
            return None
        context, collection = self._context, self._handed
        opened, reducing = claim.unchecked(), self._begin(self.timetable.local_steps, given)
        own = await self._own_gift(given, weight, claim)
        await self._all_here(collection, max(self._ends_ms, context.now_ms()) + self.timetable.last_timeout_ms)
        if context.manifest.is_audited:
            for key in [key for key, gift in collection.gifts.items() if not _is_consistent(gift.claim.unchecked(), opened)]:
                collection.leave_out(key, BAD_CLAIM)
        gathered = await self._gathered(collection, self._sift(collection, own), own, given, reducing)
        # Signing counts as well, everybody's: who was too late for want of time has more of it the next time.
        assert self._over_ms is not None
        self._durations.gathered(context.now_ms() - self._over_ms)
        if gathered is None:
            self._leave_out_all(collection, GONE)
            collection.over.set()
            return None
        return gathered

    async def _gathered(
        self, collection: _Collection, gifts: dict[PublicKey, _Gift], own: _Gift, given: Vector, reducing: AllReduce
    ) -> Gathered | None:
        so_far = self._so_far if self._context.lists_dropped else None
        self._is_common = all(gift.vector.digests == own.vector.digests for gift in gifts.values())
        coordinator = self._coordinator = Coordinator(self._context, self.base, self.timetable.local_steps, reducing)
        self._given_at_end = given
        if not self._is_common and not await self._brought(collection, gifts, coordinator, self.timetable.last_adding_ms):
            gifts = {}
        if len(gifts) < 2:
            if so_far is None or not so_far.keys() - {self.key}:
                return None
            gifts = {self.key: own}  # the others counted in steps
        weights = self._weights(gifts)
        try:
            mean = await self.mean_of(tuple(gifts), weights)
        except (ValueError, *TROUBLE) as error:  # of finite vectors the mean may not be
            logger.info("nothing gathered round=%d reason=%s", self.base.round + 1, error)
            return None
        return Gathered({key: gift.claim for key, gift in gifts.items()}, weights, mean, self, so_far)

    async def mean_of(self, keys: Sequence[PublicKey], weights: Sequence[int]) -> Vector:
        """See ``peer.cohort.cohort_session.Means``."""
        given, coordinator = self._given_at_end, self._coordinator
        assert given is not None
        assert coordinator is not None
        if self._is_common or len(keys) == 1:
            return await off_loop(given.size, lambda: near_mean([given] * len(keys), weights))
        made = self._gathered_sum = await coordinator.add(keys, weights, self._readers(keys), self.timetable.last_adding_ms)
        return made.mean

    def _readers(self, keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
        """Return who needs the mean of what was given at the end."""
        return tuple(sorted({self.key, *keys})) if self._context.tells_mean else (self.key,)

    async def on_hand_over(self, caller: PublicKey, handed: HandOver) -> Word:
        """Answer what a member hands over, once it is known what the log says."""
        collection = self._handed
        if caller not in self._others or caller in collection.begun or collection.over.is_set():
            return Word((), LATE)
        collection.begun.add(caller)
        try:
            claim = self._fitting(caller, handed.claim, self.timetable.local_steps, is_whole=True)
        except RemoteFault as error:
            logger.info("claim refused peer=%s reason=%s", caller.hex()[:8], error)
            collection.leave_out(caller, BAD_CLAIM)
            return Word((), BAD_CLAIM)
        samples = claim.microbatches * self._context.manifest.microbatch_samples
        self._take(collection, caller, handed.vector, samples, handed.claim, names=claim.given)
        await self._until_over(collection)
        taken = collection.taken.get(caller)
        return Word((), collection.refused.get(caller, GONE)) if taken is None else Word((taken,), "")

    def _fitting(self, caller: PublicKey, signed: Signed[Claim], steps: int, *, is_whole: bool = False) -> Claim:
        """Return a member's claim up to its first ``steps`` local steps, or its last one, which ``is_whole``.

        Raises:
            RemoteFault: it is not one that this founder's contribution may list.
        """
        context, claim = self._context, signed.open()
        expected = (context.run_context.run, self.base.round + 1, self.base.commit, caller, self.key, self.cohort, steps)
        if (claim.run, claim.round, claim.base, claim.key, claim.founder, claim.cohort, len(claim.steps)) != expected:
            raise EncodingError("a claim of another base or cohort, another's, for another founder, or of other steps")
        before = self._so_far.get(caller)
        if before is not None and (told := before.unchecked().steps) != claim.steps[: len(told)]:
            raise EncodingError("a claim that says something else of a step than the one before")
        if bool(claim.given) != is_whole:
            raise EncodingError("a claim names what is given at the end, and only then")
        if fault := trained_fault(context.manifest, context.run_context.training_spec, claim):
            raise EncodingError(fault)
        if len(signed.payload) > claim_bytes(self.timetable.local_steps):
            raise EncodingError(f"a claim of {len(signed.payload)} bytes")
        return claim

    async def tell(self, accepted: Accepted | None) -> None:
        """See ``CohortSession``."""
        collection = self._handed
        if accepted is not None:
            listed = set(accepted.contribution.open().claims)
            came = sorted(collection.gifts.items())  # in the order of the mean
            gifts = {key: gift for key, gift in came if gift.claim.digest in listed}
            for key, taken in self._word_of(accepted, gifts).items():
                collection.taken[key] = taken
        collection.over.set()
        collection.gifts.clear()
        self._others.clear()

    def _word_of(self, accepted: Accepted, gifts: dict[PublicKey, _Gift]) -> dict[PublicKey, Taken]:
        """Return what each of the members listed is told; where they need the mean, they get the way to it that is shorter."""
        weights: tuple[int, ...] = ()
        digests, turn = b"", 0
        if self._context.tells_mean and accepted.mean is not None:
            if self._is_common:
                weights = tuple(self._context.weight_of(gift.samples) for gift in gifts.values())
            elif self._gathered_sum is not None:
                digests, turn = self._gathered_sum.digests, self._gathered_sum.turn
        return {key: Taken(accepted.contribution, accepted.inclusion_promise, weights, digests, turn) for key in gifts if key != self.key}

    # Both.

    def _take(
        self, collection: _Collection, caller: PublicKey, vector: VectorSummary, samples: int, claim: Signed[Claim], *, names: bytes
    ) -> None:
        """Take a member's word of its vector; it is left out if that has another digest than its claim ``names``."""
        if digest_of_parts(vector.digests) != names:
            logger.info("vector refused peer=%s reason=its claim names another", caller.hex()[:8])
            collection.leave_out(caller, BAD_CLAIM)
        elif caller not in collection.refused and not collection.over.is_set():
            collection.gifts[caller] = _Gift(vector, norm_of(vector), samples, claim)
            collection.changed.set()

    async def _all_here(self, collection: _Collection, deadline_ms: float) -> None:
        """Wait until all members are here or refused, but not longer than the deadline."""
        while not self._others <= collection.gifts.keys() | collection.refused.keys():
            left_ms = deadline_ms - self._context.now_ms()
            if left_ms <= 0:
                return
            collection.changed.clear()
            await wait_within(collection.changed, left_ms / 1000)

    def _sift(self, collection: _Collection, own: _Gift) -> dict[PublicKey, _Gift]:
        """Return what is averaged, in the order of the keys; all others are left out from here on.

        Where this peer's own vector does not fit those of the others, there is nothing to average it with.
        """
        for key in self._others - collection.gifts.keys():
            collection.leave_out(key, LATE)
        size = own.vector.count, len(own.vector.digests)
        for key in [key for key, gift in collection.gifts.items() if (gift.vector.count, len(gift.vector.digests)) != size]:
            collection.leave_out(key, NO_VECTOR)
        for key in [key for key, gift in collection.gifts.items() if not isfinite(gift.norm)]:
            collection.leave_out(key, NOT_FINITE)
        collection.gifts[self.key] = own
        gifts = dict(sorted(collection.gifts.items()))
        if isfinite(own.norm):
            places = outliers([gift.norm for gift in gifts.values()], [gift.samples for gift in gifts.values()])
            for key in [list(gifts)[place] for place in places]:
                collection.leave_out(key, TOO_LARGE)
        else:
            collection.leave_out(self.key, NOT_FINITE)
        for key, reason in collection.refused.items():
            logger.info("left out round=%d peer=%s reason=%s", self.base.round + 1, key.hex()[:8], reason)
        self._others -= collection.refused.keys()
        return {} if self.key in collection.refused else {key: gift for key, gift in gifts.items() if key in collection.gifts}

    def _leave_out_all(self, collection: _Collection, reason: str) -> None:
        for key in self._others:
            collection.leave_out(key, reason)
        self._others.clear()

    async def _until_over(self, collection: _Collection) -> None:
        await wait_within(collection.over, self._left_s + timeouts.HEADER_S + timeouts.BODY_S)

    @property
    def _left_s(self) -> float:
        return max(self.timetable.last_ms - self._context.now_ms(), 0.0) / 1000 + timeouts.NEAR_S


def _no_mean(reason: str) -> GiveAnswer:
    return GiveAnswer(b"", 0, reason, 0)


def _is_consistent(claim: Claim, own: Claim) -> bool:
    """Return whether a claim gives what its steps come to, as far as the ``own`` one shows: audits compute it from them."""
    if len(own.steps) > 1:  # all went on with the same means: with the same residual they give the same
        return claim.residual != own.residual or claim.given == own.given
    return bool(claim.residual) or claim.given == claim.steps[0].vector
