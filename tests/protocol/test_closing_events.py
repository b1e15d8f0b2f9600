"""The log's rounds: any order of events, of peers alone and in cohorts, against a simple account of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from manta_swarm.protocol.closing import Closing, NotTaken, Stage
from manta_swarm.protocol.exchange import grace_ms
from manta_swarm.protocol.signing import sha256

KEYS = sorted(sha256(b"key %d" % i) for i in range(8))
OPEN_MS, START = 1_000, 50_000
GRACE = grace_ms(OPEN_MS)


@dataclass(frozen=True)
class Work:
    """A contribution."""

    founder: bytes
    keys: frozenset[bytes]
    base: int
    number: int

    @property
    def digest(self) -> bytes:
        return sha256(repr((self.founder, sorted(self.keys), self.base, self.number)).encode())

    @property
    def claims(self) -> dict[bytes, bytes]:
        """The claims by key; whoever trained twice on a base has two, told apart by the number."""
        return {key: sha256(repr((key, self.base, self.number)).encode()) for key in self.keys}

    @property
    def is_alone(self) -> bool:
        return len(self.keys) == 1


class Rounds(RuleBasedStateMachine):
    """Events in any order; the test's own books say what must hold of each answer."""

    @initialize(max_rows=st.integers(2, 7), is_first=st.booleans())
    def begin(self, max_rows: int, is_first: bool) -> None:
        self.now = START
        self.closing = Closing(max_rows)
        self.max_rows = max_rows
        self.expected: frozenset[bytes] = frozenset()
        self.works: list[Work] = []  # all that were ever handed in, the newest last
        self.since: dict[Work, int] = {}  # when a header came
        self.bringer: dict[Work, bytes] = {}
        self.promised: dict[Work, int] = {}  # the round that its header was taken for
        self.checking: set[Work] = set()
        self.good: set[Work] = set()
        self.closed: set[Work] | None = None
        self.gone: Counter[tuple[bytes, str]] = Counter()
        self.deadline: int | None = None if is_first else START + OPEN_MS
        self.closing.open(1, OPEN_MS, frozenset(), None if is_first else START)

    # The books.

    def those(self, works: Iterable[Work], round: int) -> set[Work]:
        return {one for one in works if self.promised.get(one) == round}

    def is_missing(self, one: Work) -> bool:
        return one not in self.good | self.checking

    def is_superseded(self, one: Work) -> bool:
        return one.is_alone and any(other.keys > one.keys for other in self.those(self.good, self.promised[one]))

    @property
    def is_past(self) -> bool:
        return self.deadline is not None and self.now >= self.deadline

    @property
    def is_over(self) -> bool:
        return self.closed is not None or (self.is_past and self.now >= (self.deadline or 0) + GRACE and bool(self.in_now))

    @property
    def in_now(self) -> set[Work]:
        return self.those(self.good, self.closing.round)

    @property
    def is_early(self) -> bool:
        """Whether what comes now is for the next round."""
        return self.closed is not None or (self.is_past and bool(self.in_now))

    def is_late(self, one: Work) -> bool:
        return self.is_over and self.is_missing(one) and self.promised.get(one) == self.closing.round

    def drop(self, works: Iterable[Work], reason: str) -> None:
        for one in list(works):
            del self.promised[one]
            self.gone[self.bringer[one], reason] += 1

    def settle_deadline(self) -> None:
        """Let the deadline pass: strangers without a body are out, and with nothing in the round runs again."""
        round_ = self.closing.round
        if not self.is_past or self.closed is not None or (not self.in_now and self.those(self.checking, round_)):
            return
        missing = [one for one in self.those(self.promised, round_) if self.is_missing(one)]
        self.drop((one for one in missing if not one.keys & self.expected), "no body by the deadline")
        if not self.in_now:
            self.deadline = self.now + OPEN_MS

    # Time.

    @rule(ms=st.sampled_from([0, 1, 100, 249, 250, OPEN_MS - 1, OPEN_MS]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(ms=st.sampled_from([0, 0, 1]))
    def time_passes_until_something_is_due(self, ms: int) -> None:
        self.settle_deadline()
        due = self.closing.next_ms(self.now)
        assert due is None or due >= 0
        if due is not None:
            self.now += max(0, due - ms)

    # Headers.

    @rule(
        founder=st.sampled_from(KEYS),
        members=st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(KEYS), max_size=2)),
        base=st.sampled_from([7, 7, 7, 8]),
        number=st.sampled_from([1, 1, 1, 2]),
        bringer=st.integers(0, 5),
    )
    def a_header_comes(self, founder: bytes, members: frozenset[bytes], base: int, number: int, bringer: int) -> None:
        round_number = self.closing.round * 10 + number  # each round they have new ones
        self.hand_in(Work(founder, members | {founder}, base, round_number), bringer)

    @rule(
        founder=st.sampled_from(KEYS),
        members=st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(KEYS), max_size=2)),
        alone=st.integers(0, 2),
        is_cohort_first=st.booleans(),
    )
    def a_cohort_and_some_of_its_members_hand_in_whole(
        self, founder: bytes, members: frozenset[bytes], alone: int, is_cohort_first: bool
    ) -> None:
        """Have much handed in that is good."""
        number = self.closing.round * 10
        works = [Work(key, frozenset({key}), 7, number) for key in sorted(members | {founder})[:alone]]
        works.insert(0 if is_cohort_first else len(works), Work(founder, members | {founder}, 7, number))
        for one in works:
            self.hand_in(one, 0)
        for back in range(len(works), 0, -1):
            self.a_body_comes_and_is_checked(back, True)

    @rule(back=st.integers(1, 6), bringer=st.integers(0, 5))
    def a_header_comes_again(self, back: int, bringer: int) -> None:
        if self.works:
            self.hand_in(self.works[-min(back, len(self.works))], bringer)

    @rule(back=st.integers(1, 6), which=st.integers(0, 5))
    def a_member_hands_in_alone(self, back: int, which: int) -> None:
        if self.works:
            of = self.works[-min(back, len(self.works))]
            member = sorted(of.keys)[which % len(of.keys)]
            self.hand_in(Work(member, frozenset({member}), of.base, of.number), which)

    def hand_in(self, one: Work, which: int) -> None:
        self.works.append(one)
        bringer = sorted(one.keys)[which % len(one.keys)]
        if self.deadline is None:
            self.deadline = self.now + OPEN_MS
        self.settle_deadline()
        target = self.closing.round + self.is_early
        is_known = one in self.promised and not self.is_late(one)
        assert self.closing.round_for_header(one.digest, self.now) == (self.promised[one] if is_known else target)
        beside = [other for other in self.promised if other != one and other.keys & one.keys]
        outdone = [other for other in beside if not self.may_stand_beside(other, one, target)]
        in_the_way = [other for other in outdone if not self.gives_way(other, one)]
        idle = self.idle(target) if self.is_crowded(one, target, outdone) else None
        keys: tuple[bytes, ...] | None = None
        try:
            answer = self.closing.header(one.founder, one.claims, one.base, one.digest, self.now, bringer)
        except NotTaken as error:
            keys = error.keys
        if keys is not None:
            assert not is_known
            assert keys == tuple(sorted({key for other in in_the_way for key in other.keys & one.keys}))
            assert in_the_way or idle == []
            return
        if is_known:
            assert answer == self.promised[one]
            self.bringer[one] = bringer
            return
        assert answer == target
        assert not in_the_way
        assert idle != []
        if idle:
            self.drop([min(idle, key=lambda each: self.since[each])], "no body while others wait")
        for other in [*outdone, one]:
            self.promised.pop(other, None)
        self.promised[one], self.since[one], self.bringer[one] = answer, self.now, bringer

    def may_stand_beside(self, other: Work, one: Work, target: int) -> bool:
        """A cohort's that may fail, and a member's same claim alone, for the same round."""
        is_same = (other.base, other.number) == (one.base, one.number)
        if other.is_alone == one.is_alone or not is_same or self.promised[other] != target:
            return False
        return other.is_alone or other not in self.good

    def gives_way(self, other: Work, one: Work) -> bool:
        """Its founder may take it back while it brought no body; but alone it takes nothing back from its cohort on this base."""
        if not self.is_missing(other):
            return False
        is_given_up = (other.base, other.number) != (one.base, one.number)
        if other.founder != one.founder:
            return is_given_up and self.now - self.since[other] >= GRACE
        return is_given_up or other.is_alone or not one.is_alone

    def before(self, round: int) -> set[bytes]:
        """The keys of the table before a round, as far as it is known."""
        if round == self.closing.round:
            return set(self.expected)
        return {key for one in self.those(self.promised, round - 1) for key in one.keys}

    def idle(self, round: int) -> list[Work]:
        """Headers of newcomers in a round whose bodies have had the time of a grace and did not come, the first first."""
        waiting = [one for one in self.promised if self.promised[one] == round and self.is_missing(one) and not self.is_late(one)]
        return [one for one in waiting if not one.keys & self.before(round) and self.now - self.since[one] >= GRACE]

    def is_crowded(self, one: Work, round: int, outdone: list[Work]) -> bool:
        """Whether there is no place: all are taken, or those of newcomers are."""
        there = [other for other in self.those(self.promised, round) if other not in outdone and other != one]
        rows = [other for other in there if not self.is_superseded(other)]
        before = self.before(round)
        newcomers = [other for other in rows if not other.keys & before]
        places = max(self.max_rows - len(before), self.max_rows // 8, 1)
        is_full = len(rows) >= self.max_rows or len(there) >= 2 * self.max_rows
        return is_full or (not one.keys & before and len(newcomers) >= places)

    # Bodies.

    @rule(back=st.integers(1, 6))
    def a_body_comes(self, back: int) -> None:
        if not self.works:
            return
        one = self.works[-min(back, len(self.works))]
        self.settle_deadline()
        is_late = self.is_late(one)
        try:
            answer = self.closing.arrived(one.digest, self.now)
        except NotTaken:
            assert one not in self.promised or is_late
            return
        assert answer == self.promised[one]
        assert not is_late
        if one not in self.good:
            self.checking.add(one)

    @rule(back=st.integers(1, 6), is_good=st.sampled_from([True, True, True, False]))
    def a_body_comes_and_is_checked(self, back: int, is_good: bool) -> None:
        self.a_body_comes(back)
        if self.works and self.works[-min(back, len(self.works))] in self.checking:
            self.check(self.works[-min(back, len(self.works))], is_good)

    @rule(is_good=st.sampled_from([True, True, True, False]), data=st.data())
    def a_check_is_over(self, is_good: bool, data: st.DataObject) -> None:
        if self.checking:
            self.check(data.draw(st.sampled_from(sorted(self.checking, key=lambda each: each.digest))), is_good)

    def check(self, one: Work, is_good: bool) -> None:
        self.checking.discard(one)
        if not is_good:
            self.closing.bad(one.digest)
            self.drop([one], "bad body")
            return
        self.closing.good(one.digest)
        self.good.add(one)
        for other in [each for each in self.promised if self.is_superseded(each) and self.is_missing(each)]:
            del self.promised[other]  # nobody's fault

    # The log.

    @rule()
    def the_log_looks(self) -> None:
        self.settle_deadline()
        round_ = self.closing.round
        missing = [one for one in self.those(self.promised, round_) if self.is_missing(one)]
        may_close = self.closed is None and self.is_past and bool(self.in_now) and not self.those(self.checking, round_)
        closed = self.closing.tick(self.now)
        assert (closed is not None) == (may_close and (self.is_over or not missing))
        if closed is None:
            return
        table = sorted((one for one in self.in_now if not self.is_superseded(one)), key=lambda one: one.founder)
        assert closed == tuple(one.digest for one in table)
        keys = [key for one in table for key in one.keys]
        assert len(set(keys)) == len(keys)
        assert set(keys) == {key for one in self.in_now for key in one.keys}  # nobody's work that was good is missing
        assert 0 < len(table) <= self.max_rows
        self.closed = set(table)
        self.drop(missing, "no body")

    @rule(ms=st.sampled_from([0, 1, GRACE]), is_committed=st.booleans())
    def the_round_comes_to_its_close(self, ms: int, is_committed: bool) -> None:
        """Bring the round to its close, so that a history has many rounds."""
        self.settle_deadline()
        self.now = max(self.now, (self.deadline or self.now) + ms)
        self.the_log_looks()
        if is_committed:
            self.the_log_commits()

    @rule()
    def the_log_commits(self) -> None:
        if self.closed is None:
            return
        self.expected = frozenset(key for one in self.closed for key in one.keys)
        for one in self.those(self.promised, self.closing.round):
            del self.promised[one]
            self.good.discard(one)
        self.closed = None
        self.deadline = self.now + OPEN_MS
        self.closing.open(self.closing.round + 1, OPEN_MS, self.expected, self.now)

    @rule(data=st.data())
    def the_log_crashes(self, data: st.DataObject) -> None:
        """Forget all but what was found good, which has inclusion promises."""
        round_, self.closing = self.closing.round, Closing(self.max_rows)
        self.promised = {one: its for one, its in self.promised.items() if one in self.good}
        self.checking, self.closed = set(), None
        self.gone.clear()
        self.deadline = None if round_ == 1 and not self.promised else self.now + OPEN_MS
        self.closing.open(round_, OPEN_MS, self.expected, None if round_ == 1 else self.now)
        for one in data.draw(st.permutations(sorted(self.good, key=lambda each: each.digest))):
            self.closing.restore(one.founder, one.claims, one.base, one.digest, self.promised[one], self.now)

    # What always holds.

    @invariant()
    def each_contribution_is_where_its_header_was_told(self) -> None:
        self.settle_deadline()
        self.closing.next_ms(self.now)
        for one in set(self.works):
            assert self.closing.round_of(one.digest) == self.promised.get(one)
            assert self.closing.is_good(one.digest) == (one in self.good)
            assert self.closing.is_superseded(one.digest) == (one in self.promised and self.is_superseded(one))

    @invariant()
    def a_key_is_in_one_contribution_and_in_one_alone_beside_it(self) -> None:
        for key in KEYS:
            those = [one for one in self.promised if key in one.keys]
            assert len([one for one in those if one.is_alone]) <= 1
            assert len([one for one in those if not one.is_alone]) <= 1
            assert len({(self.promised[one], one.base) for one in those}) <= 1

    @invariant()
    def those_whose_headers_came_to_nothing_are_told_apart_from_the_superseded(self) -> None:
        self.gone.subtract(self.closing.take_gone())
        assert not +self.gone
        assert not -self.gone

    @invariant()
    def a_round_that_has_what_it_needs_is_never_asked_to_wait(self) -> None:
        due = self.closing.next_ms(self.now)
        if self.is_past and self.closed is None and self.is_over and not self.those(self.checking, self.closing.round):
            assert due == 0
        if self.closing.stage is Stage.OPEN and not self.is_past:
            assert due == (self.deadline or 0) - self.now


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=100, stateful_step_count=50)
