"""What a node keeps of the DHT: so much and no more, of each and in all, and nothing that has expired."""

from collections import Counter

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer
from hypothesis import given
from hypothesis import strategies as st

import swarm.dht_storage
from swarm.dht_storage import BoundedStorage

NOW_S = 1_000_000.0
NAMES = [DHTID.generate(f"name {i}") for i in range(60)]


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def owner(number: int) -> bytes:
    return b"owner %32d" % number


def records_of(storage: BoundedStorage) -> dict[tuple[DHTID, bytes], tuple[bytes, float]]:
    return {(name, key): tuple(record) for name, item in storage.items() for key, record in item.value.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that hivemind's dictionaries go by as well."""
    clock = Clock()
    monkeypatch.setattr("hivemind.utils.timed_storage.get_dht_time", clock)
    return clock


def test_records_are_found_by_their_name_and_owner(clock: Clock) -> None:
    storage = BoundedStorage(clock=clock)
    assert storage.get(NAMES[0]) is None
    assert NAMES[0] not in storage
    assert storage.store_subkey(NAMES[0], owner(1), b"one", NOW_S + 10)
    assert storage.store(NAMES[0], b"two", NOW_S + 20, subkey=owner(2))
    found = storage.get(NAMES[0])
    assert found is not None
    assert type(found.value) is DictionaryDHTValue
    assert found.expiration_time == NOW_S + 20
    assert {key: record.value for key, record in found.value.items()} == {owner(1): b"one", owner(2): b"two"}
    assert MSGPackSerializer.loads(MSGPackSerializer.dumps(found.value)).data == found.value.data
    assert (len(storage), NAMES[0] in storage, NAMES[1] in storage) == (1, True, False)


def test_a_record_without_an_owner_is_never_kept(clock: Clock) -> None:
    storage = BoundedStorage(clock=clock)
    assert not storage.store(NAMES[0], b"plain", NOW_S + 10)
    assert records_of(storage) == {}


def test_a_newer_version_replaces_an_older_one_and_an_older_one_nothing(clock: Clock) -> None:
    storage = BoundedStorage(clock=clock)
    assert storage.store_subkey(NAMES[0], owner(1), b"one", NOW_S + 100)
    for ttl_s in (100, 50):
        assert not storage.store_subkey(NAMES[0], owner(1), b"sent again", NOW_S + ttl_s)
    clock.now_s += 60  # hivemind's own storage would have forgotten it at the older one's end
    assert records_of(storage) == {(NAMES[0], owner(1)): (b"one", NOW_S + 100)}
    assert storage.store_subkey(NAMES[0], owner(1), b"new", NOW_S + 101)
    assert records_of(storage) == {(NAMES[0], owner(1)): (b"new", NOW_S + 101)}


def test_what_has_expired_is_not_found_and_soon_not_there(clock: Clock) -> None:
    storage = BoundedStorage(clock=clock)
    assert storage.store_subkey(NAMES[0], owner(1), b"one", NOW_S + 1)
    assert storage.store_subkey(NAMES[1], owner(1), b"one", NOW_S + 100)
    clock.now_s += 2
    assert storage.get(NAMES[0]) is None
    assert not storage.store_subkey(NAMES[0], owner(2), b"late", NOW_S + 1)
    clock.now_s += 10
    assert len(storage) == 1
    assert storage._names_of_owner == {owner(1): 1}
    assert storage._bytes_of_name.keys() == {NAMES[1]}
    clock.now_s += 100
    assert (len(storage), storage._num_records, storage._num_bytes, storage._names_of_owner) == (0, 0, 0, {})


def test_what_a_search_does_to_a_dictionary_stays_with_the_search(clock: Clock) -> None:
    storage = BoundedStorage(clock=clock)
    storage.store_subkey(NAMES[0], owner(1), b"one", NOW_S + 100)
    found = storage.get(NAMES[0])
    assert found is not None
    found.value.store(owner(2), b"found elsewhere", NOW_S + 1000)
    assert records_of(storage) == {(NAMES[0], owner(1)): (b"one", NOW_S + 100)}


@pytest.mark.parametrize(
    ("limit", "value", "reason", "records"),
    [
        ("MAX_NAMES", 3, "names", [(i, 0) for i in range(4)]),
        ("MAX_RECORDS", 3, "records", [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("MAX_RECORDS_OF_A_NAME", 3, "records of a name", [(0, i) for i in range(4)]),
        ("MAX_NAMES_OF_AN_OWNER", 3, "names of an owner", [(i, 0) for i in range(4)]),
        ("MAX_BYTES", 3 * (4 + 64) + 5, "bytes", [(i, i) for i in range(4)]),
        ("MAX_BYTES_OF_A_NAME", 3 * (4 + 64) + 5, "bytes of a name", [(0, i) for i in range(4)]),
    ],
)
def test_where_there_is_no_room_new_records_are_refused_and_renewed_ones_taken(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, reason: str, records: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(swarm.dht_storage, limit, value)
    storage = BoundedStorage(clock=clock, max_records=swarm.dht_storage.MAX_RECORDS)
    taken = [storage.store_subkey(NAMES[name], owner(key), b"four", NOW_S + 10) for name, key in records]
    assert taken == [True, True, True, False]
    assert storage.refused == {reason: 1}
    for name, key in records[:3]:
        assert storage.store_subkey(NAMES[name], owner(key), b"4444", NOW_S + 20)
    assert not storage.store_subkey(NAMES[records[3][0]], owner(records[3][1]), b"four", NOW_S + 20)
    clock.now_s += 30
    assert storage.store_subkey(NAMES[records[3][0]], owner(records[3][1]), b"four", NOW_S + 40)


def test_a_renewed_record_may_not_grow_beyond_what_there_is_room_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm.dht_storage, "MAX_BYTES", 100)
    storage = BoundedStorage(clock=clock)
    assert storage.store_subkey(NAMES[0], owner(1), b"x" * 30, NOW_S + 10)
    assert not storage.store_subkey(NAMES[0], owner(1), b"x" * 40, NOW_S + 20)
    assert storage.store_subkey(NAMES[0], owner(1), b"x" * 20, NOW_S + 20)


def test_a_cache_of_no_records_keeps_none(clock: Clock) -> None:
    cache = BoundedStorage(clock=clock, max_records=0)
    assert not cache.store_subkey(NAMES[0], owner(1), b"one", NOW_S + 10)
    assert cache.get(NAMES[0]) is None


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 60), st.integers(-3, 30), st.integers(0, 9)), max_size=60)


@given(steps)
def test_the_storage_does_what_a_plain_dictionary_would(steps: list[tuple[int, int, int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr("hivemind.utils.timed_storage.get_dht_time", clock)
        patch.setattr(swarm.dht_storage, "MAX_RECORDS_OF_A_NAME", 3)
        patch.setattr(swarm.dht_storage, "MAX_NAMES_OF_AN_OWNER", 2)
        patch.setattr(swarm.dht_storage, "MAX_BYTES", 400)
        patch.setattr(swarm.dht_storage, "_SWEEP_S", 0.0)
        storage = BoundedStorage(clock=clock, max_records=6)
        plain: dict[tuple[DHTID, bytes], tuple[bytes, float]] = {}
        for name, key, size, ttl_s, wait_s in steps:
            clock.now_s += wait_s
            plain = {at: record for at, record in plain.items() if record[1] >= clock.now_s}
            at, record = (NAMES[name], owner(key)), (b"x" * size, clock.now_s + ttl_s)
            after = {**plain, at: record}
            fits = (
                len(after) <= 6
                and max(Counter(name for name, _ in after).values()) <= 3
                and max(Counter(key for _, key in after).values()) <= 2
                and sum(len(value) + 64 for value, _ in after.values()) <= max(400, sum(len(value) + 64 for value, _ in plain.values()))
            )
            expected = ttl_s >= 0 and (at not in plain or plain[at][1] < record[1]) and fits
            assert storage.store_subkey(*at, *record) == expected
            plain = after if expected else plain
            assert records_of(storage) == plain
