"""How a peer finds its place in a roster for a base: it asks the founder that it would choose, or is the founder for those who ask it.

A peer that is asked to be the founder, and would itself choose another one, says so. All waits are bounded; on any trouble the peer is
alone for that base.
"""

import asyncio
import logging
from dataclasses import dataclass

from manta_swarm.network import timeouts
from manta_swarm.peer.cohort.cohort_session import TROUBLE, CohortContext, CohortSession, MemberSession
from manta_swarm.peer.cohort.founder import FounderSession
from manta_swarm.peer.cohort.messages import JOIN, MAX_SMALL_BYTES, Join, JoinAnswer, PlaceAnswer
from manta_swarm.protocol.cohorts import OwnCohort
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.rosters import MAX_CONVENING_MS, Durations, Timetable, choose_founder, convening_ms, fits
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signing import PublicKey

_TRIES = 3  # founders that are asked for a place
_LATE, _NOT_YET, _OTHER_COHORT = (JoinAnswer(int(place)) for place in (PlaceAnswer.LATE, PlaceAnswer.NOT_YET, PlaceAnswer.OTHER_COHORT))

logger = logging.getLogger("manta.cohort")


@dataclass(frozen=True, slots=True)
class _Asking:
    """A cohort peer that asks this peer to be its founder, until it is answered."""

    key: PublicKey
    join: Join
    answer: "asyncio.Future[JoinAnswer]"

    def say(self, answer: JoinAnswer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Rosters:
    """Finds this peer's place in a roster, for one base after the other."""

    def __init__(self, context: CohortContext) -> None:
        """Stand nowhere yet."""
        self._context = context
        self._key = context.links.key
        self._durations = Durations()
        self._search = object()  # for a place, the newest
        self._round = 0  # of the work that a place is held for, or looked for
        self._base = b""
        self._own_cohort = OwnCohort("")  # the cohort on that base
        self._founder: PublicKey | None = None  # who is being asked
        self._roster: FounderSession | None = None  # this peer's own
        self._settled: PlaceAnswer | None = None  # what cohort peers are told where there is neither
        self._asking: dict[PublicKey, _Asking] = {}

    def close(self) -> None:
        """Look for no place any more."""
        self._founder, self._roster, self._settled = None, None, PlaceAnswer.LATE
        for asking in list(self._asking.values()):
            asking.say(_LATE)

    async def find(self, base: CommitRef, microbatch_ms: int, left_ms: float, own_cohort: OwnCohort) -> CohortSession:
        """Return this peer's place for work on ``base``; see ``Cohort.convene``. When it is called again the one before is over."""
        search = self._search = object()
        self._round, self._base, self._own_cohort = base.round + 1, base.commit, own_cohort
        self._founder, self._roster, self._settled = None, None, None
        cohort_session: CohortSession | None = None
        try:
            cohort_session = await self._look(search, base, microbatch_ms, left_ms, self._context.now_ms() + convening_ms(left_ms))
        except TROUBLE as error:
            logger.info("no place in a roster round=%d reason=%s", base.round + 1, error)
        finally:
            if self._search is search:
                self._founder, self._settled = None, self._settled or PlaceAnswer.LATE
                self._answer_all()
        return cohort_session or CohortSession(self._key)

    def _cohort_peers(self) -> set[PublicKey]:
        """Return who proved that it is a cohort peer and is in this peer's cohort, as far as is known."""
        fresh = set(self._context.cohort_peers.fresh())
        return fresh if self._own_cohort.members is None else fresh & self._own_cohort.members

    # Asking a founder.

    async def _look(self, search: object, base: CommitRef, microbatch_ms: int, left_ms: float, until_ms: float) -> CohortSession | None:
        context = self._context
        others: set[PublicKey] = set()  # who are of another cohort, as they say
        founder = choose_founder(self._key, self._cohort_peers(), context.silent, self._round)
        for _ in range(_TRIES):
            if founder == self._key:
                return self._found(base, microbatch_ms, left_ms, until_ms)
            answer = await self._ask(founder, base, microbatch_ms, until_ms)
            if self._search is not search:
                return None
            if answer is None or answer.place in (PlaceAnswer.NO_FOUNDER, PlaceAnswer.OTHER_COHORT):
                if answer is None or answer.place == PlaceAnswer.NO_FOUNDER:
                    context.silent.note(founder, self._round)
                else:
                    others.add(founder)
                if context.now_ms() >= until_ms:
                    return None
                founder = choose_founder(self._key, self._cohort_peers() - others, context.silent, self._round)
            elif answer.place == PlaceAnswer.ELSEWHERE:
                founder = PublicKey(answer.founder[0])
                if founder != self._key and not context.cohort_peers.knows(founder):
                    return None
            else:
                return self._answered(base, founder, answer)
        return None

    async def _ask(self, founder: PublicKey, base: CommitRef, microbatch_ms: int, until_ms: float) -> JoinAnswer | None:
        """Ask for a place; None: no answer."""
        self._founder = founder
        self._answer_all()
        timeout_ms = max(0, round(until_ms - self._context.now_ms()))
        request = pack(Join(base.commit, base.round + 1, microbatch_ms, timeout_ms, self._own_cohort.name))
        try:
            answer = await self._context.links.call(founder, JOIN, request, timeout_s=timeout_ms / 1000 + timeouts.NEAR_S)
            return unpack(JoinAnswer, answer, max_bytes=MAX_SMALL_BYTES)
        except TROUBLE as error:
            logger.info("no founder round=%d peer=%s reason=%s", base.round + 1, founder.hex()[:8], error)
            return None

    def _answered(self, base: CommitRef, founder: PublicKey, answer: JoinAnswer) -> CohortSession | None:
        if answer.place == PlaceAnswer.NOT_YET:
            self._context.silent.note_late(founder, self._round)
        if answer.place != PlaceAnswer.TAKEN:
            logger.info("no place round=%d peer=%s reason=%s", base.round + 1, founder.hex()[:8], PlaceAnswer(answer.place).name)
            return None
        members = [PublicKey(key) for key in answer.members]
        if self._key not in members or founder not in members:
            raise EncodingError("a roster without its founder, or without who was taken")
        self._context.silent.forgive(founder)
        return MemberSession(self._context, base, founder, members, self._context.now_ms() + answer.ends_ms, answer.step_ms)

    # Being the founder.

    def _found(self, base: CommitRef, microbatch_ms: int, left_ms: float, until_ms: float) -> CohortSession | None:
        """Take the founder's place; members may come until the first step is over."""
        context, steps, now_ms = self._context, self._context.manifest.exchange.local_steps, self._context.now_ms()
        if not fits(microbatch_ms, left_ms, steps):
            self._settled = PlaceAnswer.NO_FOUNDER
            return None
        expected = {key for key in self._cohort_peers() if not context.silent.covers(key, self._round)}
        timetable = Timetable(now_ms + left_ms, steps, self._durations.averaging_ms, self._durations.gathering_ms, now_ms)
        self._roster = FounderSession(context, base, self._own_cohort.name, expected, until_ms, timetable, self._durations)
        return self._roster

    async def on_join(self, caller: PublicKey, join: Join) -> JoinAnswer:
        """Answer a cohort peer that asks this peer to be its founder, as soon as it is known what this peer does on that base."""
        earlier = self._asking.get(caller)
        if earlier is not None:
            earlier.say(_LATE)
        asking = self._asking[caller] = _Asking(caller, join, asyncio.get_running_loop().create_future())
        try:
            self._answer(asking)
            async with asyncio.timeout(min(float(join.timeout_ms), MAX_CONVENING_MS) / 1000):
                return await asking.answer
        except TimeoutError:
            return _NOT_YET
        finally:
            if self._asking.get(caller) is asking:
                del self._asking[caller]

    def _answer_all(self) -> None:
        for asking in list(self._asking.values()):
            self._answer(asking)

    def _answer(self, asking: _Asking) -> None:
        """Say what there is to say by now."""
        join = asking.join
        if join.round > self._round:
            return  # this peer will be there in a moment, perhaps
        if (join.round, join.base) != (self._round, self._base):
            asking.say(_LATE)
        elif join.cohort != self._own_cohort.name:
            asking.say(_OTHER_COHORT)
        elif self._roster is not None:
            if not asking.answer.done():
                asking.say(self._roster.admit(asking.key, join.microbatch_ms))
        elif self._founder is not None:
            asking.say(JoinAnswer(int(PlaceAnswer.ELSEWHERE), (self._founder,)))
        elif self._settled is not None:
            asking.say(JoinAnswer(int(self._settled)))
