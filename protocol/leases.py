"""Who has which lease of a gateway, and for how long: pure bookkeeping, bounded in all that strangers can make it keep. Times are ms.

The microbatches of a lease follow from its key, so nobody else can do them: what is handed out again, once a lease has expired, is its
place in the contribution. What comes back late is taken as long as there is a place for it. An address whose leases expire gets fewer of
them at a time, and more again with each one that comes back in time.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from manta_swarm.protocol.exchange import MAX_COHORT

TARGET_MS = 7_500  # that the microbatches of a lease take: between 5 and 10 s
MAX_PLACES = MAX_COHORT - 1  # one is the gateway's own
_SPARE = (5, 4)  # a device may be slower than it was: so many times the time that it says fits into what is left
_FIRST_MS = 60_000  # the first lease of a device, whose speed nobody knows, is good for so long
_GOOD_FACTOR = 3  # any other for so many times what it should take, and not less than
_LEAST_GOOD_MS = 5_000
_AWAY_MS = 1_000  # to ask again, where nothing better is known
_MAX_ADDRESSES = 1024
_MAX_LEASES = 1024  # on a base, those that expired included
_REMEMBERED = 64  # bases
_MOST_AN_ADDRESS, _LOST_AN_EXPIRY = 16, 4  # leases at a time


@dataclass
class Leased:
    """A lease that a gateway has handed out."""

    key: bytes
    address: str
    microbatches_a_step: int
    until_ms: float
    longest_ms: float  # good until then, if all were due later
    given_back: bytes | None = None  # the name of the return that was taken


@dataclass(frozen=True, slots=True)
class LeaseRefusal:
    """Why a gateway says no: why there is no lease, or why what came back is not taken; and when it may be worth to ask again."""

    reason: str
    wait_ms: int = 0


@dataclass
class _Address:
    may_have: int = _MOST_AN_ADDRESS
    has: int = 0  # leases that are neither back nor expired


@dataclass
class Leases:
    """The leases of one gateway, base after base."""

    local_steps: int
    places: int = MAX_PLACES
    max_microbatches: int = 0  # of a lease, over all steps; 0 before the first base
    _base: bytes = b""
    _due_ms: float = 0.0
    _is_open: bool = False
    _goes_on: bool = False  # nothing was handed in when all had been due
    _next_ms: float = 0.0  # when there may be leases again
    _before: deque[bytes] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))  # bases that are over
    _leases: dict[bytes, Leased] = field(default_factory=dict)  # of this base, by key, those that expired included
    _addresses: OrderedDict[str, _Address] = field(default_factory=OrderedDict)

    def open(self, base: bytes, *, now_ms: float, due_ms: float, next_ms: float, max_microbatches: int) -> None:
        """Hand out leases for work on ``base``; what was leased before may not come back.

        Args:
            base: the commit.
            now_ms: the time.
            due_ms: when all has to be back.
            next_ms: when the next base is expected.
            max_microbatches: of a lease, over all steps.
        """
        self._expire(now_ms)
        for lease in self._leases.values():
            self._end(lease, 0)
        self._leases.clear()
        if self._base != base:
            self._before.append(self._base)
        self._base, self._due_ms, self._next_ms, self.max_microbatches = base, due_ms, next_ms, max_microbatches
        self._is_open, self._goes_on = True, False

    def go_on(self, *, now_ms: float, due_ms: float, next_ms: float) -> None:
        """Hand out leases for the same work again, of which nothing was handed in: those that are out are good for longer.

        Args:
            now_ms: the time.
            due_ms: when all has to be back from now on.
            next_ms: when the next base is expected.
        """
        self._expire(now_ms)
        self._due_ms, self._next_ms = due_ms, next_ms
        self._is_open = self._goes_on = True
        free = self.places - self._taken(now_ms)
        for lease in self._leases.values():
            if lease.given_back is not None:
                continue
            if self._is_over(lease, now_ms):
                if lease.longest_ms <= now_ms or free <= 0:
                    continue
                free -= 1
            lease.until_ms = min(due_ms, lease.longest_ms)

    def shut(self) -> None:
        """Hand out no more leases for this base; what is out may come back."""
        self._is_open = False

    @property
    def due_ms(self) -> float:
        """When all has to be back."""
        return self._due_ms

    def out(self, now_ms: float) -> frozenset[bytes]:
        """Return the keys whose leases are out, and may still come back in time."""
        self._expire(now_ms)
        return frozenset(key for key, lease in self._leases.items() if lease.given_back is None and not self._is_over(lease, now_ms))

    def is_awaited(self, now_ms: float) -> bool:
        """Return whether a lease is out that may still come back in time."""
        return bool(self.out(now_ms))

    def ask(self, key: bytes, address: str, *, microbatch_ms: int, way_ms: int, now_ms: float) -> Leased | LeaseRefusal:
        """Return the key's lease on this base, the same one until it has expired, however often it asks; or why it has none."""
        self._expire(now_ms)
        later = LeaseRefusal("the round's work is over here: there is more after its commit", self._wait_ms(now_ms))
        if not self._is_open:
            return later
        lease = self._leases.get(key)
        if lease is not None:
            if lease.given_back is not None:
                return LeaseRefusal("this key's work on this base is done", self._wait_ms(now_ms))
            if not self._is_over(lease, now_ms):
                return lease
        known = self._addresses.get(address) or _Address()
        if self._taken(now_ms) >= self.places or len(self._leases) >= _MAX_LEASES:
            return LeaseRefusal("all places are taken", _AWAY_MS)
        if known.has >= known.may_have:
            return LeaseRefusal("too many leases for one address", _AWAY_MS)
        microbatches = self._microbatches(microbatch_ms, way_ms, self._due_ms - now_ms)
        if not microbatches:
            return LeaseRefusal(
                f"what is left of the round is too short for this device: {self.local_steps} microbatches of {microbatch_ms} ms at least, "
                f"and {way_ms} ms for the way",
                self._wait_ms(now_ms),
            )
        takes_ms = microbatches * self.local_steps * microbatch_ms + way_ms
        good_ms = max(_GOOD_FACTOR * takes_ms, _LEAST_GOOD_MS) if microbatch_ms else _FIRST_MS
        lease = self._leases[key] = Leased(key, address, microbatches, min(self._due_ms, now_ms + good_ms), now_ms + good_ms)
        known.has += 1
        self._addresses[address] = known
        self._forget_addresses()
        return lease

    def drop(self, lease: Leased) -> None:
        """Forget a lease whose work could not be made ready: nobody is to blame."""
        if self._leases.get(lease.key) is lease:
            del self._leases[lease.key]
            self._end(lease, 0)

    def back(self, key: bytes, base: bytes, name: bytes, now_ms: float) -> Leased | LeaseRefusal:
        """Return the lease that a return, by its ``name``, is of, if it may be taken; ``take`` does that once it was looked into."""
        self._expire(now_ms)
        if base in self._before:
            return LeaseRefusal("too late: the gateway works on a newer base")
        lease = self._leases.get(key) if base == self._base else None
        if lease is None:
            return LeaseRefusal("of no lease that this gateway knows: another gateway's, or from before its start")
        if lease.given_back is not None and lease.given_back != name:
            return LeaseRefusal("this lease came back before, as something else")
        if not self._has_place(lease, now_ms):
            return LeaseRefusal("too late: the lease has expired, and its place is another's")
        return lease

    def take(self, lease: Leased, name: bytes, now_ms: float) -> bool:
        """The return of this name is taken; False: it is not, for the lease is over by now, or another one was taken meanwhile."""
        if self._leases.get(lease.key) is not lease or lease.given_back is not None or not self._has_place(lease, now_ms):
            return False
        lease.given_back = name
        self._end(lease, 1)
        return True

    def _microbatches(self, microbatch_ms: int, way_ms: int, left_ms: float) -> int:
        """Return how many microbatches of each step fit. Where the work goes on because nobody is in time, it is at least one."""
        if left_ms <= 0:
            return 0
        if not microbatch_ms:
            return 1
        step_ms = microbatch_ms * self.local_steps
        fitting = int((left_ms * _SPARE[1] / _SPARE[0] - way_ms) // step_ms)
        return max(int(self._goes_on), min(max(1, TARGET_MS // step_ms), fitting, max(1, self.max_microbatches // self.local_steps)))

    def _taken(self, now_ms: float) -> int:
        return sum(lease.given_back is not None or not self._is_over(lease, now_ms) for lease in self._leases.values())

    def _has_place(self, lease: Leased, now_ms: float) -> bool:
        """Return whether a lease has a place among those that come back: its own, or, once it has expired, one that is free."""
        return lease.given_back is not None or not self._is_over(lease, now_ms) or self._taken(now_ms) < self.places

    @staticmethod
    def _is_over(lease: Leased, now_ms: float) -> bool:
        return now_ms > lease.until_ms

    def _expire(self, now_ms: float) -> None:
        for lease in self._leases.values():
            if lease.given_back is None and lease.address and self._is_over(lease, now_ms):
                self._end(lease, -_LOST_AN_EXPIRY)

    def _end(self, lease: Leased, more: int) -> None:
        """Count a lease as its address's no more, once; from then on that may have so many ``more`` at a time."""
        known = self._addresses.get(lease.address)
        lease.address = ""
        if known is not None:
            known.has -= 1
            known.may_have = min(max(known.may_have + more, 1), _MOST_AN_ADDRESS)

    def _forget_addresses(self) -> None:
        while len(self._addresses) > _MAX_ADDRESSES:
            idle = next((address for address, known in self._addresses.items() if not known.has), None)
            if idle is None:
                return  # no more of them than there are leases
            del self._addresses[idle]

    def _wait_ms(self, now_ms: float) -> int:
        return max(_AWAY_MS // 4, round(self._next_ms - now_ms))
