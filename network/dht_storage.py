"""What this node keeps of the DHT: hivemind's storage with bounds, and a share for everybody where they are reached.

A record's name is a hash here, so nobody can tell our names from a stranger's: what is left is to bound what is kept, in all, of each
name, of each owner, and of each source. A source is the network address that a record came from, or its owner where that says nothing.
hivemind's own storage has no bound, forgets a renewed record when the older one is sent to it again, and hands out its dictionaries to
searches, which fill them with whatever they find.
"""

from collections import Counter
from collections.abc import Iterator

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils.timed_storage import ValueWithExpiration

from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

MAX_BYTES = 32 * 1024 * 1024
MAX_BYTES_OF_A_NAME = 768 * 1024  # all of it answers one search
MIN_RECORD_BYTES = 768  # that a record counts for, as a member's announcement with its admission proof may: a smaller one is no better off
MAX_NAMES_OF_AN_OWNER = 32
FIRST = ""  # the source of records that give way to none: this node's own, and those of the nodes that it was told to enter by
_FRAME_BYTES = 64  # that a record's owner and expiry, and the framing around them, add to it
_SWEEP_S = 5.0

Source = str | bytes


class _Share:
    """The records of one name, or of all: how many bytes each source has among them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[Source, dict[tuple[DHTID, bytes], int]] = {}  # of each source's records, the newest last
        self._bytes_of: Counter[Source] = Counter()
        self.num_bytes = 0

    def add(self, source: Source, name: DHTID, owner: bytes, size: int) -> None:
        self._sizes.setdefault(source, {})[name, owner] = size
        self._bytes_of[source] += size
        self.num_bytes += size

    def remove(self, source: Source, name: DHTID, owner: bytes) -> None:
        size = self._sizes[source].pop((name, owner))
        self._bytes_of[source] -= size
        if not self._sizes[source]:
            del self._sizes[source], self._bytes_of[source]
        self.num_bytes -= size

    def has_room(self, size: int) -> bool:
        return self.num_bytes + size <= self._max_bytes

    def in_the_way_of(self, source: Source, size: int) -> tuple[DHTID, bytes] | None:
        """Return the newest record of the source that has the most bytes, if that has more than ``source`` would have with so many."""
        most = max((each for each in self._bytes_of if each != FIRST), key=self._bytes_of.__getitem__, default=FIRST)
        own = 0 if source == FIRST else self._bytes_of[source] + size
        return None if most == FIRST or self._bytes_of[most] <= own else next(reversed(self._sizes[most]))


class BoundedStorage:
    """Takes the place of hivemind's ``DHTLocalStorage``: validated records by name and owner, until they expire.

    Where there is no room the source that has the most loses its newest record to one that has less; else the new record is refused.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, max_bytes: int | None = None) -> None:
        """Keep nothing yet, and at most ``max_bytes`` (None: the usual number)."""
        self._clock = clock
        self._names: dict[DHTID, dict[bytes, ValueWithExpiration]] = {}
        self._sources: dict[tuple[DHTID, bytes], Source] = {}
        self._share_of_name: dict[DHTID, _Share] = {}
        self._share_of_all = _Share(MAX_BYTES if max_bytes is None else max_bytes)
        self._names_of_owner: Counter[bytes] = Counter()
        self._next_sweep_s = 0.0
        self.refused: Counter[str] = Counter()  # by reason
        self.displaced = 0

    def __len__(self) -> int:
        """Return how many names there are."""
        self._sweep()
        return len(self._names)

    def __contains__(self, name: DHTID) -> bool:
        return self.get(name) is not None

    def _now_s(self) -> float:
        """Return the time that the DHT's records expire by, in seconds since 1970."""
        return self._clock.unix_ms() / 1000

    @property
    def num_bytes(self) -> int:
        """How many bytes what is kept counts for."""
        return self._share_of_all.num_bytes

    def size_of(self, name: DHTID) -> int:
        """Return about how many bytes the records of a name take, packed; not less."""
        return self._share_of_name[name].num_bytes if name in self._names else 0

    def get(self, name: DHTID) -> ValueWithExpiration | None:
        """Return a copy of the dictionary under ``name``; what a search does to it stays with the search."""
        now = self._now_s()
        records = {owner: record for owner, record in self._names.get(name, {}).items() if record.expiration_time >= now}
        if not records:
            return None
        copy = DictionaryDHTValue()
        copy.frozen = True  # it is as it was at this moment; the heap that hivemind forgets records by is not worth building
        copy.data = records
        copy.latest_expiration_time = max(record.expiration_time for record in records.values())
        return ValueWithExpiration(copy, copy.latest_expiration_time)

    def items(self) -> Iterator[tuple[DHTID, ValueWithExpiration]]:
        """Iterate over copies of all dictionaries, by name."""
        self._sweep()
        for name in list(self._names):
            item = self.get(name)
            if item is not None:
                yield name, item

    def store(self, name: DHTID, value: bytes, expiration_time: float, subkey: bytes | None = None) -> bool:
        """Store a record of this node's own and return whether that was done; one without an owner is never kept."""
        return subkey is not None and self.store_subkey(name, subkey, value, expiration_time, FIRST)

    def store_subkey(self, name: DHTID, subkey: bytes, value: bytes, expiration_time: float, source: Source) -> bool:
        """Store the record of the owner ``subkey``, which came from ``source``; return whether that was done."""
        self._sweep()
        known = self._names.get(name, {}).get(subkey)
        if expiration_time < self._now_s() or (known is not None and known.expiration_time >= expiration_time):
            return False
        if known is None and self._names_of_owner[subkey] >= MAX_NAMES_OF_AN_OWNER:
            self.refused["names of an owner"] += 1
            return False
        before = self._sources.get((name, subkey))
        if known is not None:
            self._remove(name, subkey)
        reason = self._reason_against(name, source, _size_of(value))
        if reason:
            self.refused[reason] += 1
            if known is not None and before is not None:
                self._add(name, subkey, known, before)
            return False
        self._add(name, subkey, ValueWithExpiration(value, expiration_time), source)
        return True

    def _reason_against(self, name: DHTID, source: Source, size: int) -> str:
        """Make room for a record; return why there is none, or nothing."""
        shares = (self._share_of_name.get(name), "a full name"), (self._share_of_all, "full")
        for share, reason in shares:
            while share is not None and not share.has_room(size):
                displaced = share.in_the_way_of(source, size)
                if displaced is None:
                    return reason
                self._remove(*displaced)
                self.displaced += 1
        return ""

    def _add(self, name: DHTID, owner: bytes, record: ValueWithExpiration, source: Source) -> None:
        self._names.setdefault(name, {})[owner] = record
        self._sources[name, owner] = source
        self._names_of_owner[owner] += 1
        share = self._share_of_name.setdefault(name, _Share(MAX_BYTES_OF_A_NAME))
        for each in (share, self._share_of_all):
            each.add(source, name, owner, _size_of(record.value))

    def _remove(self, name: DHTID, owner: bytes) -> None:
        source = self._sources.pop((name, owner))
        for each in (self._share_of_name[name], self._share_of_all):
            each.remove(source, name, owner)
        del self._names[name][owner]
        if not self._names[name]:
            del self._names[name], self._share_of_name[name]
        self._names_of_owner[owner] -= 1
        if not self._names_of_owner[owner]:
            del self._names_of_owner[owner]

    def _sweep(self) -> None:
        """Forget, now and then, what has expired."""
        now = self._now_s()
        if now < self._next_sweep_s:
            return
        self._next_sweep_s = now + _SWEEP_S
        for name, records in list(self._names.items()):
            for owner in [owner for owner, record in records.items() if record.expiration_time < now]:
                self._remove(name, owner)


def _size_of(value: bytes) -> int:
    return max(len(value) + _FRAME_BYTES, MIN_RECORD_BYTES)
