"""What this node keeps and believes of the DHT: hivemind's storage with bounds, and its answers without what liars put in.

A record's name is a hash here, so nobody can tell our names from a stranger's: what is left is to bound what is kept, in all and of
each owner. hivemind's own storage has no bound, forgets a renewed record when the older one is sent to it again, and hands out
its dictionaries to searches, which fill them with whatever they find.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration

MAX_NAMES = 16_384
MAX_RECORDS = 65_536
MAX_RECORDS_OF_A_NAME = 4096
MAX_NAMES_OF_AN_OWNER = 32
MAX_BYTES = 64 * 1024 * 1024
MAX_BYTES_OF_A_NAME = 2 * 1024 * 1024  # all of it answers one search, in a message of 4 MiB at most
_RECORD_BYTES = 64  # that a record's owner and expiry, and the framing around them, add to it
_SWEEP_S = 5.0
_MAX_BAD_RECORDS = 8  # of a dictionary whose others are still looked at: each costs a signature to check


class BoundedStorage:
    """Takes the place of hivemind's ``DHTLocalStorage``: validated records by name and owner, until they expire.

    Where there is no room a new record is refused; a newer version of one that is here is taken, if it is no larger.
    """

    def __init__(self, *, clock: Callable[[], float] = get_dht_time, max_records: int = MAX_RECORDS) -> None:
        """Keep nothing yet; ``clock`` gives seconds since 1970."""
        self._clock = clock
        self._max_records = max_records
        self._names: dict[DHTID, dict[bytes, ValueWithExpiration]] = {}
        self._bytes_of_name: Counter[DHTID] = Counter()
        self._names_of_owner: Counter[bytes] = Counter()
        self._num_records = 0
        self._num_bytes = 0
        self._next_sweep_s = 0.0
        self.refused: Counter[str] = Counter()  # by reason

    def __len__(self) -> int:
        """Return how many names there are."""
        self._sweep()
        return len(self._names)

    def __contains__(self, name: DHTID) -> bool:
        return self.get(name) is not None

    def get(self, name: DHTID) -> ValueWithExpiration | None:
        """Return a copy of the dictionary under ``name``; what a search does to it stays with the search."""
        now = self._clock()
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
        """Store a record and return whether that was done; one without an owner is never kept."""
        return subkey is not None and self.store_subkey(name, subkey, value, expiration_time)

    def store_subkey(self, name: DHTID, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Store the record of the owner ``subkey``; return whether that was done."""
        self._sweep()
        known = self._names.get(name, {}).get(subkey)
        if expiration_time < self._clock() or (known is not None and known.expiration_time >= expiration_time):
            return False
        growth = len(value) - len(known.value) if known is not None else len(value) + _RECORD_BYTES
        reason = self._reason_against(name, subkey, growth, is_new=known is None)
        if reason:
            self.refused[reason] += 1
            return False
        if known is None:
            self._num_records += 1
            self._names_of_owner[subkey] += 1
        self._count_bytes(name, growth)
        self._names.setdefault(name, {})[subkey] = ValueWithExpiration(value, expiration_time)
        return True

    def _reason_against(self, name: DHTID, owner: bytes, growth: int, *, is_new: bool) -> str:
        if is_new:
            if name not in self._names and len(self._names) >= MAX_NAMES:
                return "names"
            if self._num_records >= self._max_records:
                return "records"
            if len(self._names.get(name, ())) >= MAX_RECORDS_OF_A_NAME:
                return "records of a name"
            if self._names_of_owner[owner] >= MAX_NAMES_OF_AN_OWNER:
                return "names of an owner"
        if growth > 0 and self._num_bytes + growth > MAX_BYTES:
            return "bytes"
        if growth > 0 and self._bytes_of_name[name] + growth > MAX_BYTES_OF_A_NAME:
            return "bytes of a name"
        return ""

    def _count_bytes(self, name: DHTID, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._bytes_of_name[name] += num_bytes

    def _sweep(self) -> None:
        """Forget, now and then, what has expired."""
        now = self._clock()
        if now < self._next_sweep_s:
            return
        self._next_sweep_s = now + _SWEEP_S
        for name, records in list(self._names.items()):
            for owner in [owner for owner, record in records.items() if record.expiration_time < now]:
                self._num_records -= 1
                self._names_of_owner[owner] -= 1
                self._count_bytes(name, -len(records.pop(owner).value) - _RECORD_BYTES)
            if not records:
                del self._names[name], self._bytes_of_name[name]
        self._names_of_owner += Counter()  # forgets who has none


def guard(dht: DHTNode) -> BoundedStorage:
    """Put bounds on what ``dht`` stores, and a check on what it is told; return its storage."""
    protocol = dht.protocol
    storage = BoundedStorage()
    for name, item in protocol.storage.items():  # what came while it entered the DHT
        if isinstance(item.value, DictionaryDHTValue):
            for owner, (value, expires_s) in item.value.items():
                storage.store_subkey(name, owner, value, expires_s)
    protocol.storage = storage
    protocol.cache = BoundedStorage(max_records=0)  # which only strangers would fill: a cached list of peers is an old one
    protocol._validate_dictionary = partial(_keep_valid, protocol)
    protocol.call_find = partial(_call_find, protocol, protocol.call_find)
    protocol.rpc_ping = partial(_rpc_ping, protocol.rpc_ping)
    return storage


def _keep_valid(protocol: DHTProtocol, name: bytes, dictionary: DictionaryDHTValue) -> bool:
    """Take the invalid records out of a dictionary; return whether anything is left. hivemind refuses all for one.

    What else the sender wrote into it, such as how many records it has room for, is written anew.
    """
    records, num_bad = list(dictionary.data.items()), 0
    dictionary.clear()
    dictionary.maxsize, dictionary.latest_expiration_time = float("inf"), float("-inf")
    for owner, (value, expires_s) in records:
        if protocol.record_validator.validate(DHTRecord(name, protocol.serializer.dumps(owner), value, expires_s)):
            dictionary.store(owner, value, expires_s)
        elif (num_bad := num_bad + 1) > _MAX_BAD_RECORDS:
            return False
    return bool(dictionary)


_Found = dict[DHTID, tuple[ValueWithExpiration | None, dict[DHTID, PeerID]]]


async def _call_find(protocol: DHTProtocol, call_find: Any, peer: PeerID, keys: Collection[DHTID]) -> _Found | None:
    """Return a node's answer to a search. One that says its records are the newest there can be ends the search; these here do not."""
    answer: _Found | None = await call_find(peer, keys)
    if answer is None:
        return None
    checked: _Found = {}
    for name, (item, nearest) in answer.items():
        if item is not None:
            is_ours = isinstance(item.value, DictionaryDHTValue)
            item = ValueWithExpiration(item.value, item.value.latest_expiration_time) if is_ours else None
        checked[name] = item, dict(islice(nearest.items(), protocol.bucket_size))
    return checked


async def _rpc_ping(rpc_ping: Any, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse | None:
    """Answer a ping, which hivemind makes of every search and store as well, in a task of its own that nobody awaits."""
    if len(request.peer.node_id) > DHTID.HASH_NBYTES:
        return None
    return await rpc_ping(request, context)
