"""How much may be in flight at a time: calls of others, connections, answers; and own calls, which wait for their turn.

Keys cost nothing, so a limit for each does not keep a crowd of strangers from filling all places. Whoever has as many as one key may have
gives its own idlest for one more. When all places are taken and one more is wanted, another is cut for it:

1. an idle one. Those of an address that has more places than its share go first, of the one with the most; then whichever is the idlest;
2. else the newest one of the address that has the most, if that has two more than the newcomer's: its key with the most gives it. Whose
   address is not known is counted by its key alone.

Where the bytes held for all become too many the same is done among those that hold any.

A call is idle by its *pace*. A place costs its key a second each second. What the caller sends makes up for seconds, and so does what it
has taken of an answer when its call ends; for some minutes that is remembered. A call that is behind by more than ``idle_s`` is idle. For
a call of an idle key no other calls are cut than those that are further behind by as much.
"""

import asyncio
import math
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

MIN_BYTES_PER_S = 1024  # that a caller sends, or takes of an answer, in each of its calls: a line of 10 kB/s is enough for eight
TAKEN_BYTES_PER_S = 10_240  # an answer that was taken whole may have taken so long without a charge
NEVER = (math.inf, math.inf)
_STANDING_S = 60.0  # a key is at most so far ahead, or behind
_FORGOTTEN = 0.1  # seconds of that, each second
_MAX_STANDINGS = 16_384  # keys that are remembered

Name = TypeVar("Name", bound="bytes | str")


class Occupant(Protocol):
    """Something that holds a place: a call, a connection or an answer."""

    num_bytes: int  # that are held for it

    @property
    def key(self) -> bytes | str:
        """The key, or the address, of whom the place was given to."""

    @property
    def address(self) -> str:
        """The address that it is counted by beside its key; empty: none, or it is not known yet."""

    @property
    def ahead_s(self) -> float:
        """How many seconds its key is ahead; below zero: behind."""

    def lag_s(self, ahead_s: float) -> float:
        """Return for how long it has been idle, as a newcomer sees it that is so far ahead; at most 0: it is not; -inf: it is not cut."""

    def cut(self) -> None:
        """End it at once; its place is taken already."""


One = TypeVar("One", bound=Occupant)


class _Counts(Generic[Name]):
    """How many places each name has, and which one has the most."""

    def __init__(self) -> None:
        self.most = 0
        self._of: dict[Name, int] = {}
        self._ranks: defaultdict[int, dict[Name, None]] = defaultdict(dict)  # the names that have 1, 2... places

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, name: Name) -> int:
        """Return how many a name has."""
        return self._of.get(name, 0)

    def add(self, name: Name, count: int) -> None:
        """Give a name more, or fewer."""
        before = self.of(name)
        after = before + count
        self._ranks[before].pop(name, None)
        if after:
            self._of[name] = after
            self._ranks[after][name] = None
        else:
            self._of.pop(name, None)
        self.most = max(self.most, after)
        while self.most and not self._ranks[self.most]:
            del self._ranks[self.most]
            self.most -= 1

    def down_to(self, least: int) -> Iterator[Name]:
        """Yield the names that have so many, those with the most first; of several the one that has had so many for the longest time."""
        for count in range(self.most, least - 1, -1):
            yield from self._ranks.get(count, ())


class InFlight(Generic[One]):
    """Gives out a bounded number of places, fairly among keys and addresses. For one event loop."""

    def __init__(
        self,
        total: int,
        each: int,
        *,
        max_bytes: float = math.inf,
        fair: int | None = None,
        idle_s: float = 0.0,
        spared: Collection[str] = (),
    ) -> None:
        """Have all places free.

        Args:
            total: so many there are.
            each: so many one key has at most.
            max_bytes: that all hold together.
            fair: an address with more is cut first where it is idle; None: one that has more than the newcomer's, and no other address is.
            idle_s: a key that is further behind has nothing cut for it but what is idle; infinite: nothing is ever idle.
            spared: addresses whose keys have as many as they like.
        """
        self.total = total
        self._each = each
        self._max_bytes = max_bytes
        self._fair = fair
        self._idle_s = idle_s
        self._spared = frozenset[bytes | str](spared)
        self._held: dict[bytes | str, list[One]] = {}  # by key, the oldest first
        self._address: dict[bytes | str, bytes | str] = {}  # of the keys that have places; the key itself where it is not known
        self._by_address: _Counts[bytes | str] = _Counts()
        self._keys_at: dict[bytes | str, _Counts[bytes | str]] = {}  # by address
        self._num_held = 0
        self._num_bytes = 0
        self.refused = 0
        self.num_cut = 0

    def __len__(self) -> int:
        return self._num_held

    def __iter__(self) -> Iterator[One]:
        return (one for held in self._held.values() for one in held)

    def take(self, one: One) -> bool:
        """Give ``one`` a place, if need be another's, who is cut; False: there is none, it has to be tried later."""
        self.locate(one.key, one.address)
        address = self._address_of(one)
        if not self._make_room(one, address):
            self.refused += 1
            return False
        self._held.setdefault(one.key, []).append(one)
        self._address[one.key] = address
        self._count(one.key, address, 1)
        self._num_held += 1
        self._num_bytes += one.num_bytes
        return True

    def leave(self, one: One) -> None:
        """Take the place of ``one`` back, if it has one."""
        own = self._held.get(one.key, [])
        if one not in own:
            return
        own.remove(one)
        self._count(one.key, self._address[one.key], -1)
        if not own:
            del self._held[one.key], self._address[one.key]
        self._num_held -= 1
        self._num_bytes -= one.num_bytes

    def grow(self, one: One, num_bytes: int) -> None:
        """Count bytes that are held for ``one`` from here on; where they are too many in all something is cut, perhaps this one."""
        one.num_bytes += num_bytes
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            holding = self._holding()
            self.end(self._idlest(one, self._address_of(one), holding) or self._of_the_most_bytes(holding))

    def locate(self, key: bytes | str, address: str) -> None:
        """Count what a key has by this address from here on; empty: as before."""
        before = self._address.get(key)
        if before is not None and address and address != before:
            count = len(self._held[key])
            self._count(key, before, -count)
            self._address[key] = address
            self._count(key, address, count)

    def end(self, one: One | None) -> bool:
        """Cut ``one``, if there is one; return whether there is."""
        if one is None:
            return False
        self.leave(one)
        self.num_cut += 1
        one.cut()
        return True

    def close(self) -> None:
        """Cut all."""
        for one in list(self):
            self.end(one)

    def _make_room(self, one: One, address: bytes | str) -> bool:
        own = self._held.get(one.key, [])
        if len(own) >= self._each and address not in self._spared:
            return self.end(self._idlest(one, address, own))
        if self._num_held >= self.total and not self.end(self._idlest(one, address, self) or self._of_the_most(one, address)):
            return False
        while self._num_bytes and self._num_bytes + one.num_bytes > self._max_bytes:
            if not self.end(self._idlest(one, address, self._holding())):
                return False
        return True

    def _idlest(self, one: One, address: bytes | str, among: Iterable[One]) -> One | None:
        """Return which of these goes first as idle when ``one`` wants room, if any."""
        if math.isinf(self._idle_s):
            return None
        ahead_s, found, first = one.ahead_s, None, (-1, 0.0)
        for held in among:
            lag_s = held.lag_s(ahead_s)
            rank = (self._rank(self._address[held.key], address), lag_s)
            if lag_s > 0 and rank[0] >= 0 and rank > first:
                found, first = held, rank
        return found

    def _rank(self, holder: bytes | str, newcomer: bytes | str) -> int:
        """Return how early an idle place of an address goes: the more it has; 0: as the idlest of those that have their share; -1: not."""
        count = self._by_address.of(holder)
        if self._fair is not None:
            return count if count > self._fair else 0
        return count if count > self._by_address.of(newcomer) else 0 if holder == newcomer else -1

    def _of_the_most(self, one: One, address: bytes | str) -> One | None:
        """Return which one of those that are not idle gives way to ``one``, if any has to."""
        if one.ahead_s < -self._idle_s:
            return None
        for most in self._by_address.down_to(self._by_address.of(address) + 2):
            if (newest := self._newest(self._keys_at[most].down_to(1))) is not None:
                return newest
        keys = self._keys_at.get(address)
        return None if keys is None else self._newest(keys.down_to(keys.of(one.key) + 2))

    def _newest(self, keys: Iterable[bytes | str]) -> One | None:
        every = (one for key in keys for one in reversed(self._held[key]))
        return next((one for one in every if math.isinf(self._idle_s) or one.lag_s(0.0) > -math.inf), None)

    def _holding(self) -> list[One]:
        return [one for one in self if one.num_bytes]

    def _of_the_most_bytes(self, holding: list[One]) -> One:
        """Return the newest of these that is of the key with the most bytes at the address with the most."""
        at, of = defaultdict[bytes | str, int](int), defaultdict[bytes | str, int](int)
        for one in holding:
            at[self._address[one.key]] += one.num_bytes
            of[one.key] += one.num_bytes
        most = max(of, key=lambda key: (at[self._address[key]], of[key]))
        return next(one for one in reversed(holding) if one.key == most)

    def _address_of(self, one: One) -> bytes | str:
        return self._address.get(one.key, one.address or one.key)

    def _count(self, key: bytes | str, address: bytes | str, count: int) -> None:
        self._by_address.add(address, count)
        keys = self._keys_at.setdefault(address, _Counts())
        keys.add(key, count)
        if not keys:
            del self._keys_at[address]


class InboundCall:
    """A call of another node's, which the current task answers; use with ``with``. The task is cancelled when its place is needed."""

    def __init__(self, calls: "InboundCalls", key: bytes, address: str) -> None:
        """Use ``InboundCalls.begin``."""
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.key = key
        self.address = address
        self.num_bytes = 0
        self.lost = False  # the task was cancelled because the place was needed
        self._calls = calls
        self._since_s = calls.clock.now_s()
        self._held_s: float | None = None  # since when this node does not let the caller go on

    def __enter__(self) -> "InboundCall":
        _ANSWERED.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.lost:
            self.charge()
            self._calls.leave(self)

    @property
    def behind_s(self) -> float:
        """How much longer the caller was waited for than its bytes make up for."""
        return (self._calls.clock.now_s() if self._held_s is None else self._held_s) - self._since_s

    @property
    def ahead_s(self) -> float:
        """See ``Occupant``."""
        return self._calls.standing_s(self.key)

    def lag_s(self, ahead_s: float) -> float:
        """See ``Occupant``."""
        ahead_idle_s, idle_s = self._calls.idle_s
        return min(ahead_s - idle_s, -ahead_idle_s) - (self.ahead_s - self.behind_s)

    def cut(self) -> None:
        """See ``Occupant``."""
        self.charge()
        self.lost = True
        self.task.cancel()

    def grow(self, num_bytes: int) -> None:
        """Count bytes that are held for this call from here on; where they are too many in all, a call is cut, perhaps this one."""
        if not self.lost:
            self._calls.grow(self, num_bytes)

    def give_way(self) -> None:
        """Be cut now."""
        self._calls.end(self)

    def moved(self, num_bytes: int) -> None:
        """Count bytes that the caller sent, or took."""
        self._since_s = min(self._since_s + num_bytes / MIN_BYTES_PER_S, self._calls.clock.now_s())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave out the time inside, in which this node does not let the caller go on."""
        self._held_s = self._calls.clock.now_s()
        try:
            yield
        finally:
            self._since_s += self._calls.clock.now_s() - self._held_s
            self._held_s = None

    def earn(self, num_bytes: int) -> None:
        """Let bytes that the caller sent count for its key."""
        self._calls.stand(self.key, num_bytes / MIN_BYTES_PER_S)

    def charge(self, num_bytes_taken: int = 0) -> None:
        """Let the key pay for what it is behind here, which it is no more from here on; an answer that it took whole makes up for some."""
        self._calls.stand(self.key, min(num_bytes_taken / TAKEN_BYTES_PER_S - self.behind_s, 0.0))
        self._since_s = self._calls.clock.now_s()


_ANSWERED: ContextVar[InboundCall] = ContextVar("answered")  # by the current task


def answered_call() -> InboundCall | None:
    """Return the call that the current task answers; None: it answers none that has a place."""
    return _ANSWERED.get(None)


class InboundCalls(InFlight[InboundCall]):
    """The calls of others that one node answers."""

    def __init__(self, *, total: int, each: int, max_bytes: int, idle_s: tuple[float, float] = NEVER, clock: Clock = SYSTEM_CLOCK) -> None:
        """Prepare.

        Args:
            total: so many calls are answered at a time.
            each: of one key.
            max_bytes: that calls hold together.
            idle_s: a call that is behind by more than the second is idle; for a caller that is ahead by as much, by more than the first.
        """
        super().__init__(total, each, max_bytes=max_bytes, fair=each, idle_s=idle_s[1])
        self.clock = clock
        self.idle_s = idle_s
        self._standing: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # by key: seconds ahead, and when that was so

    def begin(self, key: bytes, address: str = "") -> InboundCall | None:
        """Return a place for a call of ``key`` that the current task answers, or None: the caller has to try later.

        Args:
            key: the caller's.
            address: what its calls are counted by beside the key; empty: nothing, or it is not known yet.
        """
        call = InboundCall(self, key, address)
        return call if self.take(call) else None

    def standing_s(self, key: bytes) -> float:
        """Return how many seconds a key is ahead by what it has sent lately; below zero: behind."""
        seconds, since_s = self._standing.get(key, (0.0, 0.0))
        forgotten_s = (self.clock.now_s() - since_s) * _FORGOTTEN
        return math.copysign(max(abs(seconds) - forgotten_s, 0.0), seconds)

    def stand(self, key: bytes, seconds: float) -> None:
        """Let a key be further ahead by so many seconds, or behind."""
        if not math.isinf(self._idle_s) and seconds:
            stands = max(min(self.standing_s(key) + seconds, _STANDING_S), -_STANDING_S)
            self._standing[key] = (stands, self.clock.now_s())
            self._standing.move_to_end(key)
            if len(self._standing) > _MAX_STANDINGS:
                self._standing.popitem(last=False)


class OutboundLimit:
    """How many calls this node has open, at one other node and in all; the rest wait, so that an honest caller is never refused."""

    def __init__(self, *, total: int, each: int) -> None:
        """Let ``total`` calls be open at a time, ``each`` of them at one node."""
        self._each = each
        self._all = asyncio.Semaphore(total)
        self._at: dict[bytes, tuple[asyncio.Semaphore, list[None]]] = {}  # and who uses it

    @asynccontextmanager
    async def turn(self, key: bytes) -> AsyncIterator[None]:
        """Wait until a call at ``key`` may begin, and hold its turn."""
        here, users = self._at.setdefault(key, (asyncio.Semaphore(self._each), []))
        users.append(None)
        try:
            async with here, self._all:
                yield
        finally:
            users.pop()
            if not users:
                del self._at[key]
