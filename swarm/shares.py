"""How many calls at a time: ``Shares`` says which calls of others are answered, ``Turns`` which of our own may go out.

Keys cost nothing, so a limit for each does not keep a crowd of strangers from filling all places. When all are taken and a call wants one,
another call is cut for it:

1. one that is idle. A place costs its key a second each second. What the caller sends makes up for seconds, and so does what it has taken
   of an answer when its call ends; for some minutes that is remembered. A call that is behind by more than ``idle_s`` is idle. Idle calls
   of an address that has more places than one key may have are cut first, then whichever is the furthest behind. For a call of an idle
   key no other calls are cut than those that are further behind by as much;
2. else the newest call of the address that has the most, if that has two more than the caller's: its key with the most gives it. A caller
   whose address is not known is counted by its key alone.

Where the bytes held for all calls become too many the same is done among those that hold any.
"""

import asyncio
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar

MIN_BYTES_PER_S = 1024  # that a caller sends, or takes of an answer, in each of its calls: a line of 10 kB/s is enough for eight
TAKEN_BYTES_PER_S = 10_240  # an answer that was taken whole may have taken so long without a charge
NEVER = (math.inf, math.inf)
_STANDING_S = 60.0  # a key is at most so far ahead, or behind
_FORGOTTEN = 0.1  # seconds of that, each second
_MAX_STANDINGS = 16_384  # keys that are remembered

Name = TypeVar("Name", bound="bytes | str")


class Place:
    """One call's right to be answered; use with ``with``. The task that answers is cancelled when the place is needed."""

    def __init__(self, shares: "Shares", key: bytes, task: "asyncio.Task[Any]", now_s: float) -> None:
        """Use ``Shares.take``."""
        self.key = key
        self.task = task
        self.num_bytes = 0
        self.lost = False  # the task was cancelled because the place was needed
        self._shares = shares
        self._since_s = now_s
        self._held_s: float | None = None  # since when this node does not let the caller go on

    def __enter__(self) -> "Place":
        _ANSWERED.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.lost:
            self._shares._give_back(self)

    @property
    def behind_s(self) -> float:
        """How much longer the caller was waited for than its bytes make up for."""
        return (self._shares.clock() if self._held_s is None else self._held_s) - self._since_s

    def grow(self, num_bytes: int) -> None:
        """Count bytes that are held for this call from here on; where they are too many in all, a call is cut, perhaps this one."""
        if not self.lost:
            self.num_bytes += num_bytes
            self._shares._grown(self, num_bytes)

    def moved(self, num_bytes: int) -> None:
        """Count bytes that the caller sent, or took."""
        self._since_s = min(self._since_s + num_bytes / MIN_BYTES_PER_S, self._shares.clock())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave out the time inside, in which this node does not let the caller go on."""
        self._held_s = self._shares.clock()
        try:
            yield
        finally:
            self._since_s += self._shares.clock() - self._held_s
            self._held_s = None

    def earn(self, num_bytes: int) -> None:
        """Let bytes that the caller sent count for its key."""
        self._shares._stand(self.key, num_bytes / MIN_BYTES_PER_S)

    def charge(self, num_bytes_taken: int = 0) -> None:
        """Let the key pay for what it is behind here, which it is no more from here on; an answer that it took whole makes up for some."""
        self._shares._stand(self.key, min(num_bytes_taken / TAKEN_BYTES_PER_S - self.behind_s, 0.0))
        self._since_s = self._shares.clock()


_ANSWERED: ContextVar[Place] = ContextVar("answered")  # by the current task


def cut_idle(tasks: Collection["asyncio.Task[Any]"]) -> "asyncio.Task[Any] | None":
    """Cut an idle one of the calls that these tasks answer, for the one that the current task answers; return its task, or None."""
    asking = _ANSWERED.get(None)
    return None if asking is None else asking._shares.cut_idle(asking.key, tasks)


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

    def first(self) -> Name:
        """Return the name that has the most, of several the one that has had so many for the longest time."""
        return next(iter(self._ranks[self.most]))


class Shares:
    """The places of one node."""

    def __init__(
        self, *, total: int, each: int, max_bytes: int, idle_s: tuple[float, float] = NEVER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare.

        Args:
            total: so many calls are answered at a time.
            each: of one key.
            max_bytes: that calls hold together.
            idle_s: a call that is behind by more than the second is idle; for a caller that is ahead by as much, by more than the first.
            clock: gives seconds and does not go back.
        """
        self.clock = clock
        self._total = total
        self._each = each
        self._max_bytes = max_bytes
        self._ahead_idle_s, self._idle_s = idle_s
        self._places: dict[bytes, list[Place]] = {}  # by key, the oldest first
        self._address: dict[bytes, bytes | str] = {}  # of the keys that have places; the key itself where it is not known
        self._by_address: _Counts[bytes | str] = _Counts()
        self._keys_at: dict[bytes | str, _Counts[bytes]] = {}  # by address
        self._standing: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # by key: seconds ahead, and when that was so
        self._num_places = 0
        self._num_bytes = 0
        self.refused = 0
        self.cut = 0

    def __len__(self) -> int:
        """Return how many calls are being answered."""
        return self._num_places

    def take(self, key: bytes, address: str = "") -> Place | None:
        """Return a place for a call of ``key`` that the current task answers, or None: the caller has to try later.

        Args:
            key: the caller's.
            address: what its calls are counted by beside the key; empty: nothing, or it is not known yet.
        """
        task = asyncio.current_task()
        assert task is not None
        self.locate(key, address)
        at = self._address.get(key, address or key)
        if len(self._places.get(key, ())) >= self._each or (self._num_places >= self._total and not self._make_room(key, at)):
            self.refused += 1
            return None
        place = Place(self, key, task, self.clock())
        self._places.setdefault(key, []).append(place)
        self._address[key] = at
        self._count(key, at, 1)
        self._num_places += 1
        return place

    def locate(self, key: bytes, address: str) -> None:
        """Count the calls of a key by this address from here on; empty: as before."""
        before = self._address.get(key)
        if before is not None and address and address != before:
            count = len(self._places[key])
            self._count(key, before, -count)
            self._address[key] = address
            self._count(key, address, count)

    def _make_room(self, key: bytes, address: bytes | str) -> bool:
        """Cut a call for one of this key, which is counted at ``address``; return False where nobody has to give way to it."""
        idle = self._idle(key, (place for places in self._places.values() for place in places))
        if idle is not None:
            self._cut(idle)
            return True
        if self.standing_s(key) < -self._idle_s:
            return False
        is_behind = self._by_address.most >= self._by_address.of(address) + 2
        keys = self._keys_at.get(self._by_address.first() if is_behind else address)
        if keys is None or (not is_behind and keys.most < keys.of(key) + 2):
            return False
        self._cut(self._places[keys.first()][-1])
        return True

    def cut_idle(self, key: bytes, tasks: Collection["asyncio.Task[Any]"]) -> "asyncio.Task[Any] | None":
        """Cut an idle one of these tasks' calls for one of ``key``; return its task, or None."""
        idle = self._idle(key, [place for places in self._places.values() for place in places if place.task in tasks])
        if idle is None:
            return None
        self._cut(idle)
        return idle.task

    def _idle(self, key: bytes, places: Iterable[Place]) -> Place | None:
        """Return which one of these goes first as idle when a call of ``key`` wants room, if any."""
        if math.isinf(self._idle_s):
            return None
        least = min(self.standing_s(key) - self._idle_s, -self._ahead_idle_s)
        standing = {holder: self.standing_s(holder) for holder in self._places}
        idle = ((standing[place.key] - place.behind_s, place) for place in places)
        behind = [(self._by_address.of(self._address[place.key]) <= self._each, stands, place) for stands, place in idle if stands < least]
        return min(behind, key=lambda one: one[:2])[2] if behind else None

    def _grown(self, grown: Place, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            holding = [place for places in self._places.values() for place in places if place.num_bytes]
            self._cut(self._idle(grown.key, holding) or self._of_the_most_bytes(holding))

    def _of_the_most_bytes(self, holding: list[Place]) -> Place:
        """Return the newest of these that is of the key with the most bytes at the address with the most."""
        at, of = defaultdict[bytes | str, int](int), defaultdict[bytes, int](int)
        for place in holding:
            at[self._address[place.key]] += place.num_bytes
            of[place.key] += place.num_bytes
        most = max(of, key=lambda key: (at[self._address[key]], of[key]))
        return next(place for place in reversed(holding) if place.key == most)

    def standing_s(self, key: bytes) -> float:
        """Return how many seconds a key is ahead by what it has sent lately; below zero: behind."""
        seconds, since_s = self._standing.get(key, (0.0, 0.0))
        forgotten_s = (self.clock() - since_s) * _FORGOTTEN
        return math.copysign(max(abs(seconds) - forgotten_s, 0.0), seconds)

    def _stand(self, key: bytes, seconds: float) -> None:
        if not math.isinf(self._idle_s) and seconds:
            stands = max(min(self.standing_s(key) + seconds, _STANDING_S), -_STANDING_S)
            self._standing[key] = (stands, self.clock())
            self._standing.move_to_end(key)
            if len(self._standing) > _MAX_STANDINGS:
                self._standing.popitem(last=False)

    def _cut(self, place: Place) -> None:
        self._give_back(place)
        self.cut += 1
        place.lost = True
        place.task.cancel()

    def _give_back(self, place: Place) -> None:
        place.charge()
        own = self._places[place.key]
        own.remove(place)
        self._count(place.key, self._address[place.key], -1)
        if not own:
            del self._places[place.key], self._address[place.key]
        self._num_places -= 1
        self._num_bytes -= place.num_bytes

    def _count(self, key: bytes, address: bytes | str, count: int) -> None:
        self._by_address.add(address, count)
        keys = self._keys_at.setdefault(address, _Counts())
        keys.add(key, count)
        if not keys:
            del self._keys_at[address]


class Turns:
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
