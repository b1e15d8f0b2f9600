"""How many calls at a time: ``Shares`` says which calls of others are answered, ``Turns`` which of our own may go out.

Keys cost nothing, so a limit for each does not keep a crowd of strangers from filling all places. Therefore the newest call of the
key that has the most is cut when a key that has fewer asks for a place, and when the bytes held for all calls become too many.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any


class Place:
    """One call's right to be answered; use with ``with``. The task that answers is cancelled when the place is needed."""

    def __init__(self, shares: "Shares", key: bytes, task: "asyncio.Task[Any]") -> None:
        """Use ``Shares.take``."""
        self.key = key
        self.task = task
        self.num_bytes = 0
        self.lost = False  # the task was cancelled because the place was needed
        self._shares = shares

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.lost:
            self._shares._give_back(self)

    def grow(self, num_bytes: int) -> None:
        """Count bytes that are held for this call from here on; where they are too many in all, a call is cut, perhaps this one."""
        if not self.lost:
            self.num_bytes += num_bytes
            self._shares._grown(num_bytes)


class Shares:
    """The places of one node."""

    def __init__(self, *, total: int, each: int, max_bytes: int) -> None:
        """Let ``total`` calls be answered at a time, ``each`` of one key, which hold ``max_bytes`` bytes together."""
        self._total = total
        self._each = each
        self._max_bytes = max_bytes
        self._places: dict[bytes, list[Place]] = {}  # by key, the oldest first
        self._ranks: list[dict[bytes, None]] = [{} for _ in range(each + 1)]  # the keys that have 0, 1, 2... places
        self._num_places = 0
        self._num_bytes = 0
        self.refused = 0
        self.cut = 0

    def __len__(self) -> int:
        """Return how many calls are being answered."""
        return self._num_places

    def take(self, key: bytes) -> Place | None:
        """Return a place for a call of ``key`` that the current task answers, or None: the caller has to try later."""
        task = asyncio.current_task()
        assert task is not None
        own = len(self._places.get(key, ()))
        if own >= self._each or (self._num_places >= self._total and not self._make_room(own)):
            self.refused += 1
            return None
        place = Place(self, key, task)
        self._rank(key, own, own + 1)
        self._places.setdefault(key, []).append(place)
        self._num_places += 1
        return place

    def _make_room(self, own: int) -> bool:
        """Cut a call for a key that has ``own``; return False where nobody has two more than that."""
        most = next(count for count in range(self._each, -1, -1) if self._ranks[count])
        if most < own + 2:
            return False
        self._cut(self._places[next(iter(self._ranks[most]))][-1])
        return True

    def _grown(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            places = max(self._places.values(), key=lambda places: sum(place.num_bytes for place in places))
            self._cut(next(place for place in reversed(places) if place.num_bytes))

    def _cut(self, place: Place) -> None:
        self._give_back(place)
        self.cut += 1
        place.lost = True
        place.task.cancel()

    def _give_back(self, place: Place) -> None:
        own = self._places[place.key]
        self._rank(place.key, len(own), len(own) - 1)
        own.remove(place)
        if not own:
            del self._places[place.key]
        self._num_places -= 1
        self._num_bytes -= place.num_bytes

    def _rank(self, key: bytes, before: int, after: int) -> None:
        self._ranks[before].pop(key, None)
        if after:
            self._ranks[after][key] = None


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
