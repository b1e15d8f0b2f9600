"""The round as the log sees it: a pure state machine that decides which contributions make a round, and when.

    IDLE ──first header──> OPEN ──deadline──> WAITING ──all bodies in, or grace over──> CLOSED ──open──> OPEN of the next round
                           ^  └─nothing in─┐
                           └───────────────┘

The caller says what happened (a header was checked, the last byte of a body came, it was found good, time passed); the answers say what it
means. Times are milliseconds of any clock that does not go back. What a header or body must be to count at all is not decided here
(``protocol.ledger``, ``exact.coding``), nor are bytes kept.

What holds at every moment: a founder has one contribution in, in this round or the next; what ``tick`` closed with was good, came in time,
and is never taken back; a header whose body misses the close is out, and counts when it is handed in again. Nobody who was not in the last
table is waited for after the deadline. Headers count in the next round only once this one is sure of a contribution: so what is good is in
the table of the round that ``header`` named, whatever else comes or fails to.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from protocol.errors import RemoteFault
from protocol.exchange import grace_ms


class NotTaken(RemoteFault):
    """A header or a body that this round has no place for; it may be handed in again."""


class Stage(Enum):
    """Where the log's round is; see the module's drawing."""

    IDLE = "idle"  # it opens at the first header
    OPEN = "open"  # until the deadline, and until one contribution is good
    WAITING = "waiting"  # past the deadline, for bodies whose headers came in time
    CLOSED = "closed"  # its table is settled; headers that come now are for the next round


class _Body(Enum):
    MISSING = 0
    ARRIVED = 1  # its last byte came; it is being checked
    GOOD = 2


@dataclass(slots=True)
class _Handed:
    founder: bytes
    contribution: bytes
    round: int  # that it counts in
    since: int  # when its header came
    body: _Body = _Body.MISSING


class Closing:
    """One log's rounds, one after the other."""

    def __init__(self, max_rows: int) -> None:
        """Prepare; ``open`` begins. A table has at most ``max_rows`` contributions."""
        self._max_rows = max_rows
        self._round = 0
        self._stage = Stage.CLOSED
        self._open_ms = 0
        self._deadline = 0
        self._expected: frozenset[bytes] = frozenset()  # founders of the last table
        self._handed: dict[bytes, _Handed] = {}  # by contribution, for this round and the next one
        self._by_founder: dict[bytes, _Handed] = {}
        self.dropped: Counter[str] = Counter()  # headers that came to nothing, by reason, over the whole life
        self._gone: list[tuple[bytes, str]] = []  # the same by founder, until somebody asks

    # What is.

    @property
    def round(self) -> int:
        """The round that is open, or being closed."""
        return self._round

    @property
    def stage(self) -> Stage:
        """Where the round is."""
        return self._stage

    def left_ms(self, now: int) -> int:
        """Return how long headers for this round still have; all of its time before it opens."""
        if self._stage is Stage.IDLE:
            return self._open_ms
        return max(0, self._deadline - now) if self._stage is Stage.OPEN else 0

    def next_ms(self, now: int) -> int | None:
        """Return after how long ``tick`` may have something to say without anything else happening; None: never."""
        self._pass_deadline(now)
        if self._stage is Stage.OPEN and now < self._deadline:
            return self._deadline - now
        if self._stage is Stage.WAITING and not self._in_round(_Body.ARRIVED):
            return 0 if self._may_close(now) else self._deadline + grace_ms(self._open_ms) - now
        return None  # in the other stages, and while a body is being checked

    def round_of(self, contribution: bytes) -> int | None:
        """Return the round in which a contribution that was handed in counts, or would; None: it is not in any more, or never was."""
        found = self._handed.get(contribution)
        return found.round if found is not None else None

    def is_good(self, contribution: bytes) -> bool:
        """Return whether a contribution is in with its body."""
        found = self._handed.get(contribution)
        return found is not None and found.body is _Body.GOOD

    def round_for_headers(self, now: int) -> int:
        """Return the round in which a header that comes now would count."""
        self._pass_deadline(now)
        return self._round + (1 if self._stage in (Stage.WAITING, Stage.CLOSED) else 0)

    def round_for_header(self, contribution: bytes, now: int) -> int:
        """Return the round in which this contribution would count if its header came, or came again, now."""
        round_ = self.round_for_headers(now)
        known = self._handed.get(contribution)
        return round_ if known is None or self._is_late(known, now) else known.round

    def take_gone(self) -> list[tuple[bytes, str]]:
        """Return founders whose headers came to nothing since this was asked last, each with the reason."""
        gone, self._gone = self._gone, []
        return gone

    # What happens.

    def open(self, round: int, open_ms: int, expected: frozenset[bytes], now: int | None) -> None:
        """Begin a round: after the commit before, or a start of the log. What came early is in it.

        Args:
            round: its number.
            open_ms: how long it is open.
            expected: the founders of the last table, for whose bodies it is worth waiting.
            now: None: it opens at its first header.
        """
        self._round, self._open_ms, self._expected = round, open_ms, expected
        for one in [one for one in self._handed.values() if one.round != round]:
            self._forget(one)
        self._stage = Stage.IDLE
        if now is not None:
            self._start(now)

    def restore(self, founder: bytes, contribution: bytes, round: int, now: int) -> None:
        """Take a contribution that has a ticket for ``round``, this one or the next, from before a crash."""
        self._put(_Handed(founder, contribution, round, now, _Body.GOOD))
        if self._stage is Stage.IDLE:
            self._start(now)

    def header(self, founder: bytes, contribution: bytes, now: int) -> int:
        """Take a checked header; return the round that it counts in. The same one again is welcome.

        Raises:
            NotTaken: another contribution of this founder is in, or there is no place left.
        """
        if self._stage is Stage.IDLE:
            self._start(now)
        round_ = self.round_for_headers(now)
        known = self._handed.get(contribution)
        if known is not None and not self._is_late(known, now):
            return known.round
        before = self._by_founder.get(founder)
        if before is not None and before.body is not _Body.MISSING:
            raise NotTaken("another contribution of this founder is in")
        if before is None or before.round != round_:
            self._make_place(founder, round_, now)
        if before is not None:
            self._forget(before)
        self._put(_Handed(founder, contribution, round_, now))
        return round_

    def arrived(self, contribution: bytes, now: int) -> int:
        """Note that the last byte of a body came; return the round that it counts in. Then comes ``good`` or ``bad``.

        Raises:
            NotTaken: it came too late, or its header was never taken.
        """
        self._pass_deadline(now)
        found = self._handed.get(contribution)
        if found is None or self._is_late(found, now):
            raise NotTaken("the round closed before this body was in: hand it in again")
        if found.body is _Body.MISSING:
            found.body = _Body.ARRIVED
        return found.round

    def good(self, contribution: bytes) -> None:
        """The body that arrived is what its header says."""
        found = self._handed[contribution]
        assert found.body is not _Body.MISSING
        found.body = _Body.GOOD

    def bad(self, contribution: bytes) -> None:
        """The body that arrived is not what its header says: contribution and header are out."""
        self._drop([self._handed[contribution]], "bad body")

    def tick(self, now: int) -> tuple[bytes, ...] | None:
        """Return the contributions that make the round, once; None: it is not closed, or was before.

        Nothing is left out that ``good`` was said of; without any the round is open for all of its time once more.
        """
        self._pass_deadline(now)
        if self._stage is not Stage.WAITING or not self._may_close(now):
            return None
        self._drop(self._in_round(_Body.MISSING), "no body")
        self._stage = Stage.CLOSED
        return tuple(one.contribution for one in sorted(self._in_round(_Body.GOOD), key=lambda one: one.founder))

    # What the methods above share.

    def _start(self, now: int) -> None:
        self._stage, self._deadline = Stage.OPEN, now + self._open_ms

    def _pass_deadline(self, now: int) -> None:
        """OPEN -> WAITING at the deadline, or OPEN again; who was not in the last table had to bring the body by then."""
        if self._stage is not Stage.OPEN or now < self._deadline:
            return
        if self._in_round(_Body.GOOD):
            self._stage = Stage.WAITING
        elif self._in_round(_Body.ARRIVED):
            return  # whether there is anything in is about to be known
        else:
            self._start(now)
        strangers = [one for one in self._in_round(_Body.MISSING) if one.founder not in self._expected]
        self._drop(strangers, "no body by the deadline")

    def _put(self, handed: _Handed) -> None:
        self._handed[handed.contribution] = self._by_founder[handed.founder] = handed

    def _forget(self, handed: _Handed) -> None:
        del self._handed[handed.contribution], self._by_founder[handed.founder]

    def _drop(self, dropped: list[_Handed], reason: str) -> None:
        for handed in dropped:
            self._forget(handed)
            self.dropped[reason] += 1
            self._gone.append((handed.founder, reason))

    def _in_round(self, body: _Body) -> list[_Handed]:
        return [one for one in self._handed.values() if one.body is body and one.round == self._round]

    def _is_over(self, now: int) -> bool:
        """Is it too late for a body of this round; once it is closed, none is missing."""
        return self._stage is Stage.WAITING and now >= self._deadline + grace_ms(self._open_ms)

    def _is_late(self, handed: _Handed, now: int) -> bool:
        return handed.body is _Body.MISSING and handed.round == self._round and self._is_over(now)

    def _may_close(self, now: int) -> bool:
        if self._in_round(_Body.ARRIVED):
            return False  # it came in time, and checking it takes no longer than it takes
        return not self._in_round(_Body.MISSING) or self._is_over(now)

    def _make_place(self, founder: bytes, round: int, now: int) -> None:
        """Keep places for those in the table before, so that any number of newcomers cannot push them out.

        Nor can headers alone keep newcomers out: where their places are taken, that of one whose body did not come within a grace is free.

        Raises:
            NotTaken: there is no place.
        """
        expected = self._expected if round == self._round else {one.founder for one in self._handed.values() if one.round == self._round}
        in_round = [one for one in self._handed.values() if one.round == round]
        newcomers = [one for one in in_round if one.founder not in expected]
        places = max(self._max_rows - len(expected), self._max_rows // 8, 1)
        is_full = len(in_round) >= self._max_rows
        if not is_full and (founder in expected or len(newcomers) < places):
            return
        idle = [one for one in newcomers if one.body is _Body.MISSING and now - one.since >= grace_ms(self._open_ms)]
        if not idle:
            raise NotTaken("the round's table is full" if is_full else "the round's places for newcomers are taken")
        self._drop([min(idle, key=lambda one: one.since)], "no body while others wait")
