"""The round as the log sees it: a pure state machine that decides which contributions make a round, and when.

    IDLE ──first header──> OPEN ──deadline──> WAITING ──all bodies in, or grace over──> CLOSED ──open──> OPEN of the next round
                           ^  └─nothing in─┐
                           └───────────────┘

The caller says what happened (a header was checked, the last byte of a body came, it was found good, time passed); the answers say what it
means. Times are milliseconds of any clock that does not go back. What a header or body must be to count at all is not decided here
(``protocol.ledger``, ``codec.coding``), nor are bytes kept.

A claim may stand in its cohort's contribution and, in case that one's body never comes, in one of its key's alone, in the same round. Once
the cohort's is good, the lone ones of its members are *superseded*: nothing is wrong with them, but the round does not list them; whoever
has an inclusion promise for one is served by the cohort's contribution, which has the same claim. Otherwise a key is in one contribution
only, but where local steps are audited: there a cohort's is taken though another one has keys of its members, as long as its founder's is
not among them, and the round lists both. So a member's second claim does not cost its cohort what they learnt together.

What holds at every moment: a key stands so in what ``tick`` closed with; all of that was good, came in time, and is never taken back;
what was good and is not in it was superseded; a header whose body misses the close is out, and counts when it is handed in again. Nobody is
waited for after the deadline whose keys were all missing in the last round. Headers count in the next round only once this one is sure of a
contribution: so the work of whatever is good is in the round that ``header`` named, whatever else comes or fails to.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.exchange import grace_ms

BAD_BODY, NO_BODY, LATE_BODY = "bad body", "no body", "no body by the deadline"
CROWDED_OUT = "no body while others wait"
_MAX_ADDRESSES = 4096  # that are remembered
GONE = (BAD_BODY, NO_BODY, LATE_BODY, CROWDED_OUT)  # why a header came to nothing


class NotTaken(RemoteFault):
    """A header or a body that this round has no place for; it may be handed in again.

    ``keys`` are those of its keys that stand in another contribution, if that is why: for the others there may be a place.
    """

    def __init__(self, reason: str, keys: tuple[bytes, ...] = ()) -> None:
        super().__init__(reason)
        self.keys = keys


class Stage(Enum):
    """Where the log's round is; see the module's drawing."""

    IDLE = "idle"  # it opens at the first header
    OPEN = "open"  # until the deadline, and until one contribution is good
    WAITING = "waiting"  # past the deadline, for bodies whose headers came in time
    CLOSED = "closed"  # what it lists is settled; headers that come now are for the next round


class _Body(Enum):
    MISSING = 0
    ARRIVED = 1  # its last byte came; it is being checked
    GOOD = 2


_SHOWN = {_Body.MISSING: "header", _Body.ARRIVED: "body", _Body.GOOD: "good"}


@dataclass(slots=True, eq=False)
class _Handed:
    founder: bytes
    keys: frozenset[bytes]  # of its claims
    claims: frozenset[bytes]  # their digests
    base_round: int  # the round after its base
    contribution: bytes
    round: int  # that it counts in
    since: int  # when its header came
    bringer: bytes  # whom it is put down to if it comes to nothing
    address: str = ""  # from which its header came first; empty: this is not counted
    body: _Body = _Body.MISSING
    is_superseded: bool = False  # by the cohort's, which is good

    @property
    def is_alone(self) -> bool:
        return len(self.keys) == 1

    def goes_with(self, other: "_Handed") -> bool:
        """May both be in, though they have keys in common: a cohort's that may yet fail, and the same claim of a member alone."""
        lone, of_cohort = (self, other) if self.is_alone else (other, self)
        is_same = lone.is_alone and lone.claims < of_cohort.claims and self.round == other.round
        return is_same and of_cohort.body is not _Body.GOOD

    def gives_way_to(self, other: "_Handed", is_idle: bool) -> bool:
        """Is it out for ``other``: without a body, and of the same founder, or ``is_idle`` and one of its keys has another claim.

        What a founder signed for its cohort stays beside the same work of its own: others may bring that.
        """
        if self.body is not _Body.MISSING:
            return False
        is_given_up = len(self.claims & other.claims) < len(self.keys & other.keys)
        if self.founder == other.founder:
            return is_given_up or self.is_alone or not other.is_alone
        return is_given_up and is_idle


class Closing:
    """Opens and closes one log's rounds, one after the other."""

    def __init__(self, max_rows: int, address_percent: int = 100, *, shares_keys: bool = False) -> None:
        """Prepare; ``open`` begins.

        Args:
            max_rows: a round takes at most so many contributions.
            address_percent: of these places, and of those for newcomers, what one address has at most while others ask for the rest.
            shares_keys: a cohort's is taken though others have keys of its members, which the round pays once: where local steps are
                audited no cohort can do without one.
        """
        self._max_rows = max_rows
        self._shares_keys = shares_keys
        self._address_percent = address_percent
        self._round = 0
        self._stage = Stage.CLOSED
        self._open_ms = 0
        self._deadline = 0
        self._expected: frozenset[bytes] = frozenset()  # keys of the last round
        self._handed: dict[bytes, _Handed] = {}  # by contribution, for this round and the next one
        self._by_key: defaultdict[bytes, list[_Handed]] = defaultdict(list)
        self.dropped: Counter[str] = Counter()  # headers that came to nothing, by reason, over the whole life
        self._gone: list[tuple[bytes, str]] = []  # the same by key, until somebody asks
        self._asking: dict[str, int] = {}  # address -> the newest round in which headers came from it: this one or the one before

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

    def standing(self) -> list[tuple[int, frozenset[bytes], str]]:
        """Return what is in for this round and the next: the round, the keys, and "header", "body" (it came) or "good"."""
        return [(one.round, one.keys, _SHOWN[one.body]) for one in self._handed.values()]

    @property
    def open_ms(self) -> int:
        """How long the round is open."""
        return self._open_ms

    @property
    def expected(self) -> frozenset[bytes]:
        """The keys of the last round, for which bodies are waited for."""
        return self._expected

    def is_good(self, contribution: bytes) -> bool:
        """Return whether a contribution is in with its body."""
        found = self._handed.get(contribution)
        return found is not None and found.body is _Body.GOOD

    def is_superseded(self, contribution: bytes) -> bool:
        """Return whether a contribution of one key is in, but its cohort's will be in the round: nobody needs its body any more."""
        found = self._handed.get(contribution)
        return found is not None and found.is_superseded

    def round_for_header(self, contribution: bytes, now: int) -> int:
        """Return the round in which this contribution would count if its header came, or came again, now."""
        round_ = self._round_for_headers(now)
        known = self._handed.get(contribution)
        return round_ if known is None or self._is_late(known, now) else known.round

    def take_gone(self) -> list[tuple[bytes, str]]:
        """Return the keys whose headers came to nothing since this was asked last, each with the reason."""
        gone, self._gone = self._gone, []
        return gone

    # What happens.

    def open(self, round: int, open_ms: int, expected: frozenset[bytes], now: int | None) -> None:
        """Begin a round: after the commit before, or a start of the log. What came early is in it.

        Args:
            round: its number.
            open_ms: how long it is open.
            expected: the keys of the last round, for whose bodies it is worth waiting.
            now: None: it opens at its first header.
        """
        self._round, self._open_ms, self._expected = round, open_ms, expected
        for one in [one for one in self._handed.values() if one.round != round]:
            self._forget(one)
        self._asking = {address: asked for address, asked in self._asking.items() if asked >= round - 1}
        self._stage = Stage.IDLE
        if now is not None:
            self._start(now)

    def restore(self, founder: bytes, claims: Mapping[bytes, bytes], base_round: int, contribution: bytes, round: int, now: int) -> None:
        """Take a contribution that has an inclusion promise for ``round``, this one or the next, from before a crash; see ``header``."""
        handed = _Handed(
            founder, frozenset(claims), frozenset(claims.values()), base_round, contribution, round, now, founder, body=_Body.GOOD
        )
        self._put(handed)
        self._supersede(handed)
        if self._stage is Stage.IDLE:
            self._start(now)

    def header(
        self,
        founder: bytes,
        claims: Mapping[bytes, bytes],
        base_round: int,
        contribution: bytes,
        now: int,
        bringer: bytes | None = None,
        address: str = "",
    ) -> int:
        """Take a checked header; return the round that it counts in. The same one again is welcome.

        Args:
            founder: the contribution's; one of the keys.
            claims: by key, their digests.
            base_round: the round after its base.
            contribution: its digest.
            now: the time.
            bringer: to whom it is put down from now on if it comes to nothing; None: to the founder, or to whom it was before.
            address: from which it comes; empty: nobody knows, or it is this computer's.

        Raises:
            NotTaken: another contribution of one of the keys is in, or there is no place left.
        """
        if self._stage is Stage.IDLE:
            self._start(now)
        known = self._handed.get(contribution)
        if known is not None and not self._is_late(known, now):
            known.bringer = bringer or known.bringer
            return known.round
        if len(self._asking) < _MAX_ADDRESSES or address in self._asking:
            self._asking[address] = self._round
        keys, round_ = frozenset(claims), self._round_for_headers(now)
        digests = frozenset(claims.values())
        new = _Handed(founder, keys, digests, base_round, contribution, round_, now, bringer or founder, address=address)
        outdone = self._outdone_by(new, now)
        self._make_place(new, outdone, now)
        for one in outdone:
            self._forget(one)
        self._put(new)
        return new.round

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
        self._supersede(found)

    def bad(self, contribution: bytes) -> None:
        """The body that arrived is not what its header says: contribution and header are out."""
        self._drop([self._handed[contribution]], BAD_BODY)

    def tick(self, now: int) -> tuple[bytes, ...] | None:
        """Return the contributions that make the round, once; None: it is not closed, or was before.

        Nothing is left out that ``good`` was said of, unless it is superseded; without any the round is open for all of its time once more.
        """
        self._pass_deadline(now)
        if self._stage is not Stage.WAITING or not self._may_close(now):
            return None
        self._drop(self._in_round(_Body.MISSING), NO_BODY)
        self._stage = Stage.CLOSED
        good = [one for one in self._in_round(_Body.GOOD) if not one.is_superseded]
        return tuple(one.contribution for one in sorted(good, key=lambda one: one.founder))

    # What the methods above share.

    def _start(self, now: int) -> None:
        self._stage, self._deadline = Stage.OPEN, now + self._open_ms

    def _round_for_headers(self, now: int) -> int:
        self._pass_deadline(now)
        return self._round + (1 if self._stage in (Stage.WAITING, Stage.CLOSED) else 0)

    def _pass_deadline(self, now: int) -> None:
        """OPEN -> WAITING at the deadline, or OPEN again; whose keys were all missing in the last round had to bring the body by then."""
        if self._stage is not Stage.OPEN or now < self._deadline:
            return
        if self._in_round(_Body.GOOD):
            self._stage = Stage.WAITING
        elif self._in_round(_Body.ARRIVED):
            return  # whether there is anything in is about to be known
        else:
            self._start(now)
        strangers = [one for one in self._in_round(_Body.MISSING) if one.keys.isdisjoint(self._expected)]
        self._drop(strangers, LATE_BODY)

    def _outdone_by(self, new: _Handed, now: int) -> list[_Handed]:
        """Return what is out once ``new`` is in: what its founder handed in before, itself if it was late, and what its keys gave up.

        Raises:
            NotTaken: what is in stays.
        """
        beside = {one for key in new.keys for one in self._by_key.get(key, ())}
        beside = {one for one in beside if not (self._shares_keys and not new.is_alone and new.founder not in one.keys)}
        others = [one for one in beside if one.contribution != new.contribution and not one.goes_with(new)]
        staying = [one for one in others if not one.gives_way_to(new, is_idle=now - one.since >= grace_ms(self._open_ms))]
        if staying:
            keys = {key for one in staying for key in one.keys & new.keys}
            raise NotTaken("another contribution of these keys is in", tuple(sorted(keys)))
        late = self._handed.get(new.contribution)
        return others if late is None else [*others, late]

    def _supersede(self, good: _Handed) -> None:
        """Mark the lone contributions that a cohort's makes superfluous, now that ``good`` is; those without a body are out."""
        beside = {one for key in good.keys for one in self._by_key[key]}
        of_cohorts = [one.claims for one in beside if not one.is_alone and one.body is _Body.GOOD]
        for lone in [one for one in beside if one.is_alone and any(one.claims <= claims for claims in of_cohorts)]:
            lone.is_superseded = True
            if lone.body is _Body.MISSING:
                self._forget(lone)

    def _put(self, handed: _Handed) -> None:
        self._handed[handed.contribution] = handed
        for key in handed.keys:
            self._by_key[key].append(handed)

    def _forget(self, handed: _Handed) -> None:
        del self._handed[handed.contribution]
        for key in handed.keys:
            self._by_key[key].remove(handed)
            if not self._by_key[key]:
                del self._by_key[key]

    def _drop(self, dropped: list[_Handed], reason: str) -> None:
        for handed in dropped:
            self._forget(handed)
            self.dropped[reason] += 1
            self._gone.append((handed.bringer, reason))

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

    def _make_place(self, new: _Handed, outdone: list[_Handed], now: int) -> None:
        """Keep places for the keys of the round before, so that any number of newcomers cannot push them out.

        Nor can headers alone keep newcomers out: where their places are taken, that of one whose body did not come within a grace is free.
        What is superseded takes no place, but of everything together there is no more than twice what a round takes. And of all places, as
        of those for newcomers, one address has its share, however many keys it has.

        Raises:
            NotTaken: there is no place.
        """
        expected = self._expected
        if new.round != self._round:
            expected = frozenset(key for one in self._handed.values() if one.round == self._round for key in one.keys)
        in_round = [one for one in self._handed.values() if one.round == new.round and one not in outdone]
        listed = [one for one in in_round if not one.is_superseded]
        newcomers = [one for one in listed if one.keys.isdisjoint(expected)]
        places = max(self._max_rows - len(expected), self._max_rows // 8, 1)
        is_newcomer = new.keys.isdisjoint(expected)
        if self._has_its_share(new.address, listed, self._max_rows) or (
            is_newcomer and self._has_its_share(new.address, newcomers, places)
        ):
            raise NotTaken("its address has its share of the round's places")
        is_full = len(listed) >= self._max_rows or len(in_round) >= 2 * self._max_rows
        if not is_full and (len(newcomers) < places or not is_newcomer):
            return
        idle = [one for one in newcomers if one.body is _Body.MISSING and now - one.since >= grace_ms(self._open_ms)]
        if not idle:
            raise NotTaken("the round is full" if is_full else "the round's places for newcomers are taken")
        self._drop([min(idle, key=lambda one: one.since)], CROWDED_OUT)

    def _has_its_share(self, address: str, of: list[_Handed], places: int) -> bool:
        """Has an address all that it may have of these places: its share, and what no other address asks for."""
        if not address:
            return False
        kept = places - max(places * self._address_percent // 100, 1)
        return sum(one.address == address for one in of) >= places - min(kept, len(self._asking.keys() - {address}))
