"""The founder's place in a roster: it collects the members' vectors step by step, averages those that came, and tells all what came of it.

It waits for nobody longer than the timetable says. Who does not come, or brings what cannot be averaged, is told why, if it still listens,
and is left out from there on; the others don't notice. With several local steps a member's claim up to each step comes with its vector.
Where audits compute the steps again, the contribution lists the last one of whoever counted in any: so what a log refuses of a claim by
itself is refused before its vector is in a mean.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite

from exact.residuals import near_mean, vector_digest
from peer.cohort.messages import Give, GiveAnswer, HandOver, JoinAnswer, Place, Taken, Word
from peer.cohort.seat import GONE, TROUBLE, Accepted, Claimed, Desk, Gathered, Seat, Vector, norm_of
from protocol.errors import EncodingError, RemoteFault, Unreachable
from protocol.listed import trained_fault
from protocol.records import Claim
from protocol.rosters import Durations, Timetable, claim_bytes, fits, most_members, outliers
from protocol.rounds import Standing
from protocol.signed import Signed
from protocol.signing import PublicKey
from swarm import waits
from swarm.near import Offer, off_loop
from swarm.tasks import unless, within

LATE = "too late"
NOT_FINITE, TOO_LARGE = "values that are not finite", "much larger than the others' vectors"
NO_VECTOR, BAD_CLAIM = "its vector cannot be had", "its claim does not fit"

logger = logging.getLogger("manta.cohort")


@dataclass(frozen=True, slots=True)
class _Gift:
    """What a member gave."""

    vector: Vector
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
    way_ms: float = 0.0  # that the slowest vector took
    mean: Offer | None = None  # of a step
    ends_ms: float = 0.0  # when the next step does
    taken: dict[PublicKey, Taken] = field(default_factory=dict)  # at the end

    def leave_out(self, key: PublicKey, reason: str) -> None:
        """Drop what a member gave, or did not."""
        self.gifts.pop(key, None)
        self.refused.setdefault(key, reason)
        self.changed.set()


class FounderSeat(Seat):
    """The place of the member who convened the roster."""

    def __init__(
        self,
        desk: Desk,
        base: Standing,
        cohort: str,
        expected: Iterable[PublicKey],
        until_ms: float,
        timetable: Timetable,
        durations: Durations,
    ) -> None:
        """Begin with the first step.

        Args:
            desk: this peer's.
            base: of the work.
            cohort: its name, which the claims are to have.
            expected: mates who are waited for ...
            until_ms: ... so long at the end of the first step.
            timetable: of the steps.
            durations: learns how long it all takes.
        """
        super().__init__(desk.calls.key)
        self.base = base
        self.cohort = cohort
        self.timetable = timetable
        self._desk = desk
        self._durations = durations
        self._most = most_members(timetable.local_steps)
        self._expected = set(expected)
        self._until_ms = until_ms
        self._came: set[PublicKey] = set()  # who asked for a place
        self._asked = asyncio.Event()
        self._is_open = True  # for members
        self._others: set[PublicKey] = set()
        self._step = 0  # under way
        self._ends_ms = timetable.ends_ms(0, timetable.start_ms)
        self._given = _Collection()  # for that step
        self._handed = _Collection()
        self._so_far: dict[PublicKey, Signed[Claim]] = {}  # of whoever counted in a step: its claim up to the last one in which it did
        self._over_ms: float | None = None  # when the work was over
        self._own: tuple[Vector, bytes] | None = None  # what this peer gives at the end, and its digest, as its claim names it
        self._own_there = asyncio.Event()

    @property
    def is_alone(self) -> bool:
        """See ``Seat``."""
        return not self._others

    @property
    def is_founder(self) -> bool:
        """See ``Seat``."""
        return True

    @property
    def hands_in_alone(self) -> bool:
        """See ``Seat``."""
        return self.is_alone and not (self._desk.lists_dropped and self._so_far.keys() - {self.key})

    @property
    def members(self) -> tuple[PublicKey, ...]:
        """See ``Seat``."""
        return tuple(sorted({self.key, *self._others}))

    def step_ends(self, step: int) -> float | None:
        """See ``Seat``."""
        del step
        return None if self.is_alone else self._ends_ms

    def close(self, reason: str = GONE) -> None:
        """See ``Seat``."""
        self._is_open = False
        for collection in (self._given, self._handed):
            self._leave_out_all(collection, reason)
            collection.over.set()

    # Who takes part.

    def admit(self, key: PublicKey, lot_ms: int) -> JoinAnswer:
        """Answer a mate that asks for a place: there are some until the first step is over, or was due."""
        now_ms = self._desk.now_ms()
        self._came.add(key)
        self._asked.set()
        self._desk.silence.forgive(key)
        if not self._is_open or now_ms > self._ends_ms or len(self._others - {key}) >= self._most - 1:
            return JoinAnswer(int(Place.LATE))
        if not fits(lot_ms, self.timetable.last_ms - self.timetable.start_ms, self.timetable.local_steps):
            return JoinAnswer(int(Place.TOO_SLOW))
        self._others.add(key)
        ends_ms, step_ms = max(0, round(self._ends_ms - now_ms)), round(self.timetable.step_ms)
        return JoinAnswer(int(Place.TAKEN), (), self.members, ends_ms, step_ms)

    async def _close_roster(self) -> None:
        """Take no more members; before that, wait for those who are expected, but not for long."""
        while self._is_open and self._expected - self._came and (left_ms := self._until_ms - self._desk.now_ms()) > 0:
            self._asked.clear()
            await within(self._asked, left_ms / 1000)
        if self._is_open:
            self._is_open = False
            for key in self._expected - self._came:
                self._desk.silence.note(key, self.base.round + 1)

    # Steps.

    async def average(self, step: int, vector: Vector, claimed: Claimed) -> Vector:
        """See ``Seat``."""
        await self._close_roster()
        if self.is_alone:
            return vector
        if step != self._step:
            raise ValueError(f"step {step} where step {self._step} is under way")
        desk, collection = self._desk, self._given
        desk.count_values(vector)
        claim = await claimed()
        deadline_ms = max(self._ends_ms, desk.now_ms()) + self.timetable.patience_ms
        samples = desk.samples_of(claim.unchecked().steps[-1])
        own = _Gift(vector, await off_loop(vector.size, lambda: norm_of(vector)), samples, claim)
        await self._all_here(collection, deadline_ms)
        began_ms = desk.now_ms()
        made = await self._averaged(gifts := self._sift(collection, own))
        self._so_far[self.key] = claim
        if made is None:
            self._leave_out_all(collection, GONE)
        else:
            collection.mean = made[0]
            self._so_far.update((key, gift.claim) for key, gift in gifts.items())
            self._durations.averaged(desk.now_ms() - began_ms + 2 * collection.way_ms)
        self._begin_step(step + 1)
        if self._step == self.timetable.local_steps:
            self.work_over()
        collection.ends_ms = self._ends_ms
        collection.over.set()
        await asyncio.sleep(0)  # the members' answers go out first: what the caller does next may take a while
        return vector if made is None else made[1]

    async def _averaged(self, gifts: dict[PublicKey, _Gift]) -> tuple[Offer, Vector] | None:
        """Return the mean, and the way to it for the members."""
        if len(gifts) < 2:
            return None
        desk, vectors = self._desk, [gift.vector for gift in gifts.values()]
        weights = [desk.weight_of(gift.samples) for gift in gifts.values()]
        is_shared = any(map(desk.mates.share_host, self._others))
        try:
            return await desk.vectors.offer_made(
                vectors[0].size, lambda part: near_mean([vector[part] for vector in vectors], weights), self._others, is_shared=is_shared
            )
        except ValueError as error:  # of finite vectors the mean may not be
            logger.info("no mean round=%d reason=%s", self.base.round + 1, error)
            return None

    def _begin_step(self, step: int) -> None:
        self._step, self._given = step, _Collection()
        if step < self.timetable.local_steps:
            self._ends_ms = self.timetable.ends_ms(step, self._desk.now_ms())

    async def on_give(self, caller: PublicKey, give: Give) -> GiveAnswer:
        """Answer a member's vector of a step, once its mean is there."""
        desk, collection = self._desk, self._given
        if caller not in self._others or give.step != self._step or caller in collection.begun:
            return GiveAnswer((), LATE, 0)
        collection.begun.add(caller)
        try:
            claim = self._fitting(caller, give.claim, give.step + 1)
        except RemoteFault as error:
            logger.info("claim refused peer=%s reason=%s", caller.hex()[:8], error)
            collection.leave_out(caller, BAD_CLAIM)
            return GiveAnswer((), BAD_CLAIM, 0)
        await self._take(collection, caller, give.vector, desk.samples_of(claim.steps[-1]), give.claim, names=claim.steps[-1].vector)
        await self._until_over(collection)
        if collection.mean is None or caller not in collection.gifts:
            return GiveAnswer((), collection.refused.get(caller, GONE), 0)
        return GiveAnswer((collection.mean,), "", max(0, round(collection.ends_ms - self._desk.now_ms())))

    # The end.

    def work_over(self) -> None:
        """See ``Seat``."""
        if self._over_ms is None:
            self._over_ms = self._desk.now_ms()

    async def gather(self, claim: Signed[Claim], given: Vector, weight: int) -> Gathered | None:
        """See ``Seat``."""
        self.work_over()
        await self._close_roster()
        if self.hands_in_alone:
            return None
        desk, collection = self._desk, self._handed
        desk.count_values(given)
        opened = claim.unchecked()
        self._own = given, opened.given
        self._own_there.set()
        own = _Gift(given, await off_loop(given.size, lambda: norm_of(given)), weight, claim)
        await self._all_here(collection, max(self._ends_ms, desk.now_ms()) + self.timetable.last_patience_ms)
        if desk.manifest.is_audited:
            for key in [key for key, gift in collection.gifts.items() if not _is_consistent(gift.claim.unchecked(), opened)]:
                collection.leave_out(key, BAD_CLAIM)
        gathered = await self._gathered(self._sift(collection, own), own)
        # Sealing counts as well, everybody's: who was too late for want of time has more of it the next time.
        assert self._over_ms is not None
        self._durations.gathered(desk.now_ms() - self._over_ms)
        if gathered is None:
            self._leave_out_all(collection, GONE)
            collection.over.set()
            return None
        return gathered

    async def _gathered(self, gifts: dict[PublicKey, _Gift], own: _Gift) -> Gathered | None:
        so_far = self._so_far if self._desk.lists_dropped else None
        if len(gifts) < 2:
            if so_far is None or not so_far.keys() - {self.key}:
                return None
            gifts = {self.key: own}  # the others counted in steps
        claims = [gift.claim for gift in gifts.values()]
        vectors = [gift.vector for gift in gifts.values()]
        weights = [self._desk.weight_of(gift.samples) for gift in gifts.values()]
        try:
            return await off_loop(vectors[0].size, lambda: Gathered(list(gifts), claims, vectors, weights, so_far))
        except ValueError as error:  # of finite vectors the mean may not be
            logger.info("nothing gathered round=%d reason=%s", self.base.round + 1, error)
            return None

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
        samples = claim.lots * self._desk.manifest.lot_samples
        is_common = self.timetable.local_steps > 1  # all have learnt the same: what they give is likely this peer's own
        await self._take(collection, caller, handed.vector, samples, handed.claim, names=claim.given, may_be_own=is_common)
        await self._until_over(collection)
        taken = collection.taken.get(caller)
        return Word((), collection.refused.get(caller, GONE)) if taken is None else Word((taken,), "")

    def _fitting(self, caller: PublicKey, signed: Signed[Claim], steps: int, *, is_whole: bool = False) -> Claim:
        """Return a member's claim up to its first ``steps`` local steps, or its last one, which ``is_whole``.

        Raises:
            RemoteFault: it is not one that this founder's contribution may list.
        """
        desk, claim = self._desk, signed.open()
        expected = (desk.run, self.base.round + 1, self.base.commit, caller, self.key, self.cohort, steps)
        if (claim.run, claim.round, claim.base, claim.key, claim.founder, claim.cohort, len(claim.steps)) != expected:
            raise EncodingError("a claim of another base or cohort, another's, for another founder, or of other steps")
        before = self._so_far.get(caller)
        if before is not None and (told := before.unchecked().steps) != claim.steps[: len(told)]:
            raise EncodingError("a claim that says something else of a step than the one before")
        if bool(claim.given) != is_whole:
            raise EncodingError("a claim names what is given at the end, and only then")
        if fault := trained_fault(desk.manifest, desk.course, claim):
            raise EncodingError(fault)
        if len(signed.payload) > claim_bytes(self.timetable.local_steps):
            raise EncodingError(f"a claim of {len(signed.payload)} bytes")
        return claim

    async def tell(self, accepted: Accepted | None) -> None:
        """See ``Seat``."""
        collection = self._handed
        if accepted is not None:
            listed = set(accepted.contribution.open().claims)
            came = sorted(collection.gifts.items())  # in the order of the mean
            gifts = {key: gift for key, gift in came if gift.claim.digest in listed}
            for key, taken in (await self._word_of(accepted, gifts)).items():
                collection.taken[key] = taken
        collection.over.set()
        collection.gifts.clear()
        self._own = None
        self._others.clear()

    async def _word_of(self, accepted: Accepted, gifts: dict[PublicKey, _Gift]) -> dict[PublicKey, Taken]:
        """Return what each of the members listed is told; where they need the mean, they get the way to it that is shorter."""
        others = [key for key in gifts if key != self.key]
        weights: tuple[int, ...] = ()
        offers: tuple[Offer, ...] = ()
        if self._desk.tells_mean and accepted.mean is not None and self._own is not None:
            if all(gift.vector is self._own[0] for gift in gifts.values()):
                weights = tuple(self._desk.weight_of(gift.samples) for gift in gifts.values())
            else:
                is_shared = any(map(self._desk.mates.share_host, others))
                offers = (await self._desk.vectors.offer(accepted.mean, others, is_shared=is_shared),)
        return {key: Taken(accepted.contribution, accepted.ticket, weights, offers) for key in others}

    # Both.

    async def _take(
        self,
        collection: _Collection,
        caller: PublicKey,
        offer: Offer,
        samples: int,
        claim: Signed[Claim],
        *,
        names: bytes,
        may_be_own: bool = False,
    ) -> None:
        """Take a member's vector, which has the digest that its claim ``names``; whatever is wrong with it leaves the member out.

        It may be this peer's own, if that has the digest.
        """
        desk, began_ms = self._desk, self._desk.now_ms()
        try:
            found = await unless(collection.over, self._vector_of(caller, offer, names, may_be_own=may_be_own))
            if found is None:
                return
            vector, norm = found
            is_own = self._own is not None and vector is self._own[0]
            if not is_own and await off_loop(vector.size, lambda: vector_digest(vector)) != names:
                logger.info("vector refused peer=%s reason=its claim names another", caller.hex()[:8])
                collection.leave_out(caller, BAD_CLAIM)
                return
        except TROUBLE as error:
            logger.info("no vector peer=%s reason=%s", caller.hex()[:8], error)
            collection.leave_out(caller, NO_VECTOR)
            return
        if caller not in collection.refused and not collection.over.is_set():
            collection.way_ms = max(collection.way_ms, desk.now_ms() - began_ms)
            collection.gifts[caller] = _Gift(vector, norm, samples, claim)
            collection.changed.set()

    async def _vector_of(self, caller: PublicKey, offer: Offer, digest: bytes, *, may_be_own: bool) -> tuple[Vector, float]:
        """Return a member's vector and its norm; where it may be the same as this peer's own, and has its digest, that one.

        Raises:
            Unreachable, EncodingError: it cannot be had.
        """
        desk = self._desk
        await within(self._own_there if may_be_own else desk.counted, self._left_s)
        if may_be_own and self._own is not None and digest == self._own[1]:
            vector = self._own[0]
        elif desk.count is not None:
            vector = await desk.vectors.fetch(caller, offer, desk.count, timeout_s=self._left_s)
        else:
            raise Unreachable("this peer has no vector of its own to compare it with")
        return vector, await off_loop(vector.size, lambda: norm_of(vector))

    async def _all_here(self, collection: _Collection, deadline_ms: float) -> None:
        """Wait for all members, but not longer than that."""
        while not self._others <= collection.gifts.keys() | collection.refused.keys():
            left_ms = deadline_ms - self._desk.now_ms()
            if left_ms <= 0:
                return
            collection.changed.clear()
            await within(collection.changed, left_ms / 1000)

    def _sift(self, collection: _Collection, own: _Gift) -> dict[PublicKey, _Gift]:
        """Return what is averaged, in the order of the keys; all others are left out from here on.

        Where this peer's own vector does not fit those of the others, there is nothing to average it with.
        """
        for key in self._others - collection.gifts.keys():
            collection.leave_out(key, LATE)
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
        await within(collection.over, self._left_s + waits.HEADER_S + waits.BODY_S)

    @property
    def _left_s(self) -> float:
        return max(self.timetable.last_ms - self._desk.now_ms(), 0.0) / 1000 + waits.NEAR_S


def _is_consistent(claim: Claim, own: Claim) -> bool:
    """Return whether a claim gives what its steps come to, as far as the ``own`` one shows: audits compute it from them."""
    if len(own.steps) > 1:  # all went on with the same means: with the same residual they give the same
        return claim.residual != own.residual or claim.given == own.given
    return bool(claim.residual) or claim.given == claim.steps[0].vector
