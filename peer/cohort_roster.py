"""How a peer finds its place in a roster for a base: it asks the founder that it would choose, or convenes those who ask it.

Whoever asks another than that one's own choice is told so. All waits are bounded; on any trouble the peer is alone for that base.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from peer.cohort_founder import Durations, FounderSeat
from peer.cohort_messages import JOIN, MAX_SMALL_BYTES, Join, JoinAnswer, Place
from peer.cohort_seat import TROUBLE, Desk, MemberSeat, Seat
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.exchange import MAX_COHORT
from protocol.rosters import MAX_CONVENING_MS, Timetable, choose_founder, convening_ms, fits
from protocol.rounds import Standing
from protocol.signing import PublicKey
from swarm import waits
from swarm.tasks import within

_TRIES = 3  # founders that are asked for a place
_LATE = JoinAnswer(int(Place.LATE))

logger = logging.getLogger("manta.cohort")


@dataclass(frozen=True, slots=True)
class _Asking:
    """A mate that asks this peer to be its founder, until it is answered."""

    key: PublicKey
    join: Join
    until_ms: float
    answer: "asyncio.Future[JoinAnswer]"

    def say(self, answer: JoinAnswer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass
class _Roster:
    """The roster that this peer convenes, while it is open."""

    left_ms: float  # for the work
    until_ms: float  # when it is closed, whoever is missing
    others: set[PublicKey] = field(default_factory=set)
    came: set[PublicKey] = field(default_factory=set)  # these, and those who were not taken
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Rosters:
    """This peer's places, one after the other."""

    def __init__(self, desk: Desk) -> None:
        """Stand nowhere yet."""
        self._desk = desk
        self._key = desk.calls.key
        self._durations = Durations()
        self._search = object()  # for a place, the newest
        self._round = 0  # of the work that a place is held for, or looked for
        self._base = b""
        self._founder: PublicKey | None = None  # who is being asked
        self._roster: _Roster | None = None  # that is being convened
        self._settled: Place | None = None  # what mates are told once no place is looked for any more
        self._asking: dict[PublicKey, _Asking] = {}

    def close(self) -> None:
        """Look for no place any more."""
        self._founder, self._roster, self._settled = None, None, Place.LATE
        for asking in list(self._asking.values()):
            asking.say(_LATE)

    async def find(self, base: Standing, lot_ms: int, left_ms: float) -> Seat:
        """Return this peer's place for work on ``base``; see ``Cohort.convene``. When it is called again the one before is over."""
        search = self._search = object()
        self._round, self._base = base.round + 1, base.commit
        self._founder, self._roster, self._settled = None, None, None
        until_ms = self._desk.now_ms() + convening_ms(left_ms)
        seat: Seat | None = None
        try:
            if self._desk.mates.fresh():
                seat = await self._look(search, base, lot_ms, left_ms, until_ms)
        except TROUBLE as error:
            logger.info("no place in a roster round=%d reason=%s", base.round + 1, error)
        finally:
            if self._search is search:
                self._founder, self._roster, self._settled = None, None, self._settled or Place.LATE
                self._answer_all()
        return seat or Seat(self._key)

    # Asking a founder.

    async def _look(self, search: object, base: Standing, lot_ms: int, left_ms: float, until_ms: float) -> Seat | None:
        desk = self._desk
        founder = choose_founder(self._key, desk.mates.fresh(), desk.silence, self._round)
        for _ in range(_TRIES):
            if founder == self._key:
                return await self._convene(base, lot_ms, left_ms, until_ms)
            answer = await self._ask(founder, base, lot_ms, until_ms)
            if self._search is not search:
                return None
            if answer is None or answer.place == Place.NO_FOUNDER:
                desk.silence.note(founder, self._round)
                if desk.now_ms() >= until_ms:
                    return None
                founder = choose_founder(self._key, desk.mates.fresh(), desk.silence, self._round)
            elif answer.place == Place.ELSEWHERE:
                founder = PublicKey(answer.founder[0])
                if founder != self._key and not desk.mates.knows(founder):
                    return None
            else:
                return self._as_member(base, founder, answer) if answer.place == Place.TAKEN else None
        return None

    async def _ask(self, founder: PublicKey, base: Standing, lot_ms: int, until_ms: float) -> JoinAnswer | None:
        """Ask for a place; None: no answer."""
        self._founder = founder
        self._answer_all()
        patience_ms = max(0, round(until_ms - self._desk.now_ms()))
        request = pack(Join(base.commit, base.round + 1, lot_ms, patience_ms))
        try:
            answer = await self._desk.calls.call(founder, JOIN, request, timeout_s=patience_ms / 1000 + waits.NEAR_S)
            return unpack(JoinAnswer, answer, max_bytes=MAX_SMALL_BYTES)
        except TROUBLE as error:
            logger.info("no founder round=%d peer=%s reason=%s", base.round + 1, founder.hex()[:8], error)
            return None

    def _as_member(self, base: Standing, founder: PublicKey, answer: JoinAnswer) -> Seat:
        members = [PublicKey(key) for key in answer.members]
        if self._key not in members or founder not in members:
            raise EncodingError("a roster without its founder, or without who was taken")
        self._desk.silence.forgive(founder)
        return MemberSeat(self._desk, base, founder, members, self._desk.now_ms() + answer.ends_ms, answer.step_ms)

    # Being the founder.

    async def _convene(self, base: Standing, lot_ms: int, left_ms: float, until_ms: float) -> Seat | None:
        """Wait for those who are expected, and take whoever comes until then."""
        desk, steps = self._desk, self._desk.manifest.exchange.local_steps
        if not fits(lot_ms, left_ms, steps):
            self._settled = Place.NO_FOUNDER
            return None
        last_ms = desk.now_ms() + left_ms
        expected = {key for key in desk.mates.fresh() if not desk.silence.covers(key, self._round)}
        roster = self._roster = _Roster(left_ms, until_ms)
        self._founder = None
        self._answer_all()
        while expected - roster.came and (left := roster.until_ms - desk.now_ms()) > 0:
            roster.changed.clear()
            await within(roster.changed, left / 1000)
            if self._roster is not roster:
                return None
        for key in expected - roster.came:
            desk.silence.note(key, self._round)
        self._roster = None
        if not roster.others:
            return None
        timetable = Timetable(last_ms, steps, self._durations.averaging_ms, self._durations.gathering_ms, desk.now_ms())
        seat = FounderSeat(desk, base, roster.others, timetable, self._durations)
        # From here to where the seat is taken nothing waits, so nobody calls before.
        ends_ms = max(0, round((seat.step_ends(0) or 0) - desk.now_ms()))
        answer = JoinAnswer(int(Place.TAKEN), (), seat.members, ends_ms, round(timetable.step_ms))
        for key in roster.others:
            self._asking[key].say(answer)
        return seat

    async def on_join(self, caller: PublicKey, join: Join) -> JoinAnswer:
        """Answer a mate that asks this peer to be its founder, as soon as it is known what this peer does on that base."""
        earlier = self._asking.get(caller)
        if earlier is not None:
            earlier.say(_LATE)
        patience_ms = min(float(join.patience_ms), MAX_CONVENING_MS)
        asking = _Asking(caller, join, self._desk.now_ms() + patience_ms, asyncio.get_running_loop().create_future())
        self._asking[caller] = asking
        try:
            self._answer(asking)
            async with asyncio.timeout(patience_ms / 1000 + waits.NEAR_S):
                return await asking.answer
        except TimeoutError:
            return _LATE
        finally:
            if self._asking.get(caller) is asking:
                del self._asking[caller]
                if self._roster is not None:
                    self._roster.others.discard(caller)

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
        elif self._roster is not None:
            self._take(self._roster, asking)
        elif self._founder is not None:
            asking.say(JoinAnswer(int(Place.ELSEWHERE), (self._founder,)))
        elif self._settled is not None:
            asking.say(JoinAnswer(int(self._settled)))

    def _take(self, roster: _Roster, asking: _Asking) -> None:
        roster.came.add(asking.key)
        roster.changed.set()
        self._desk.silence.forgive(asking.key)
        if not fits(asking.join.lot_ms, roster.left_ms, self._desk.manifest.exchange.local_steps):
            asking.say(JoinAnswer(int(Place.TOO_SLOW)))
        elif len(roster.others) >= MAX_COHORT - 1 and asking.key not in roster.others:
            asking.say(_LATE)
        else:
            roster.others.add(asking.key)  # answered when the roster is closed
            roster.until_ms = min(roster.until_ms, asking.until_ms)
