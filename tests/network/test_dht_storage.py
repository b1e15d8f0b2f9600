"""What a node keeps of the DHT: so much and no more, of each and in all, and nothing that has expired."""

from collections import Counter

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer
from hypothesis import given
from hypothesis import strategies as st

import manta_swarm.network.dht_storage
from manta_swarm.network.dht_storage import FIRST, MIN_RECORD_BYTES, BoundedStorage
from tests.clocks import ManualClock

NOW_S = 1_000_000.0
NAMES = [DHTID.generate(f"name {i}") for i in range(60)]


def keep(storage: BoundedStorage, name: int, key: int, value: bytes, ttl_s: float, source: str | bytes = "192.0.2.1") -> bool:
    """Store a record that came from a source at a name of ``NAMES``."""
    return storage.store_subkey(NAMES[name], owner(key), value, NOW_S + ttl_s, source)


def owner(number: int) -> bytes:
    return b"owner %32d" % number


def records_of(storage: BoundedStorage) -> dict[tuple[DHTID, bytes], tuple[bytes, float]]:
    return {(name, key): tuple(record) for name, item in storage.items() for key, record in item.value.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Return a clock that hivemind's dictionaries go by as well."""
    clock = ManualClock(NOW_S)
    monkeypatch.setattr("hivemind.utils.timed_storage.get_dht_time", clock.now_s)
    return clock


def test_records_are_found_by_their_name_and_owner(clock: ManualClock) -> None:
    storage = BoundedStorage(clock=clock)
    assert storage.get(NAMES[0]) is None
    assert NAMES[0] not in storage
    assert keep(storage, 0, 1, b"one", 10)
    assert storage.store(NAMES[0], b"two", NOW_S + 20, subkey=owner(2))
    found = storage.get(NAMES[0])
    assert found is not None
    assert type(found.value) is DictionaryDHTValue
    assert found.expiration_time == NOW_S + 20
    assert {key: record.value for key, record in found.value.items()} == {owner(1): b"one", owner(2): b"two"}
    assert MSGPackSerializer.loads(MSGPackSerializer.dumps(found.value)).data == found.value.data
    assert (len(storage), NAMES[0] in storage, NAMES[1] in storage) == (1, True, False)


def test_a_record_without_an_owner_is_never_kept(clock: ManualClock) -> None:
    storage = BoundedStorage(clock=clock)
    assert not storage.store(NAMES[0], b"plain", NOW_S + 10)
    assert records_of(storage) == {}


def test_a_newer_version_replaces_an_older_one_and_an_older_one_nothing(clock: ManualClock) -> None:
    storage = BoundedStorage(clock=clock)
    assert keep(storage, 0, 1, b"one", 100)
    for ttl_s in (100, 50):
        assert not keep(storage, 0, 1, b"sent again", ttl_s)
    clock.advance(60)  # hivemind's own storage would have forgotten it at the older one's end
    assert records_of(storage) == {(NAMES[0], owner(1)): (b"one", NOW_S + 100)}
    assert keep(storage, 0, 1, b"new", 101)
    assert records_of(storage) == {(NAMES[0], owner(1)): (b"new", NOW_S + 101)}


def test_what_has_expired_is_not_found_and_soon_not_there(clock: ManualClock) -> None:
    storage = BoundedStorage(clock=clock)
    assert keep(storage, 0, 1, b"one", 1)
    assert keep(storage, 1, 1, b"one", 100)
    clock.advance(2)
    assert storage.get(NAMES[0]) is None
    assert not keep(storage, 0, 2, b"late", 1)
    clock.advance(10)
    assert len(storage) == 1
    assert storage._names_of_owner == {owner(1): 1}
    assert storage._share_of_name.keys() == {NAMES[1]}
    clock.advance(100)
    assert (len(storage), storage.num_bytes, storage._sources, storage._names_of_owner) == (0, 0, {}, {})


def test_what_a_search_does_to_a_dictionary_stays_with_the_search(clock: ManualClock) -> None:
    storage = BoundedStorage(clock=clock)
    keep(storage, 0, 1, b"one", 100)
    found = storage.get(NAMES[0])
    assert found is not None
    found.value.store(owner(2), b"found elsewhere", NOW_S + 1000)
    assert records_of(storage) == {(NAMES[0], owner(1)): (b"one", NOW_S + 100)}


LIMITS = [
    ("MAX_BYTES", 3 * MIN_RECORD_BYTES + 5, "full", [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ("MAX_BYTES_OF_A_NAME", 3 * MIN_RECORD_BYTES + 5, "a full name", [(0, i) for i in range(4)]),
]


@pytest.mark.parametrize(
    ("limit", "value", "reason", "records"), [*LIMITS, ("MAX_NAMES_OF_AN_OWNER", 3, "names of an owner", [(i, 0) for i in range(4)])]
)
def test_where_there_is_no_room_new_records_of_one_source_are_refused_and_renewed_ones_taken(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, reason: str, records: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(manta_swarm.network.dht_storage, limit, value)
    storage = BoundedStorage(clock=clock)
    assert [keep(storage, *record, b"four", 10) for record in records] == [True, True, True, False]
    assert storage.refused == {reason: 1}
    for record in records[:3]:
        assert keep(storage, *record, b"4444", 20)
    assert not keep(storage, *records[3], b"four", 20)
    clock.advance(30)
    assert keep(storage, *records[3], b"four", 40)


@pytest.mark.parametrize(("limit", "value", "reason", "records"), LIMITS)
def test_where_there_is_no_room_the_source_with_the_most_loses_its_newest_record_to_one_with_less(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, reason: str, records: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(manta_swarm.network.dht_storage, limit, value)
    storage = BoundedStorage(clock=clock)
    for record in records[:3]:
        assert keep(storage, *record, b"four", 10, "192.0.2.1")
    assert keep(storage, *records[3], b"four", 10, "192.0.2.2")
    assert [(NAMES.index(name), int(key.split()[1])) for name, key in records_of(storage)] == [*records[:2], records[3]]
    assert not keep(storage, *records[2], b"four", 10, "192.0.2.1")  # as many again would be more than the other has
    assert (storage.displaced, storage.refused) == (1, {reason: 1})
    for record in records[:2]:
        assert keep(storage, *record, b"4444", 20, "192.0.2.1")


def test_a_name_full_of_large_records_has_room_for_a_small_one_whatever_the_source_and_for_this_nodes_own(clock: ManualClock) -> None:
    storage = BoundedStorage(clock=clock)
    kept = [keep(storage, 0, key, bytes(2000), 100, owner(key)) for key in range(500)]
    assert not all(kept)
    for key in range(500, 600):
        assert keep(storage, 0, key, bytes(300), 100, owner(key))
    assert storage.store(NAMES[0], bytes(2000), NOW_S + 100, subkey=owner(600))
    for key in range(601, 2000):
        keep(storage, 0, key, b"", 100, owner(key))
    assert {key for _, key in records_of(storage)} >= {owner(key) for key in range(500, 601)}


def test_a_renewed_record_may_not_grow_beyond_what_there_is_room_for(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.network.dht_storage, "MAX_BYTES", 1000)
    storage = BoundedStorage(clock=clock)
    assert keep(storage, 0, 1, b"x" * 930, 10)
    assert not keep(storage, 0, 1, b"x" * 940, 20)
    assert records_of(storage) == {(NAMES[0], owner(1)): (b"x" * 930, NOW_S + 10)}
    assert keep(storage, 0, 1, b"x" * 920, 20)


def test_a_cache_of_no_records_keeps_none(clock: ManualClock) -> None:
    cache = BoundedStorage(clock=clock, max_bytes=0)
    assert not keep(cache, 0, 1, b"one", 10)
    assert cache.get(NAMES[0]) is None


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1400), st.integers(-3, 30), st.integers(0, 9)), max_size=60)


@given(steps)
def test_the_storage_does_what_a_plain_dictionary_would(steps: list[tuple[int, int, int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = ManualClock(NOW_S)
        patch.setattr("hivemind.utils.timed_storage.get_dht_time", clock.now_s)
        patch.setattr(manta_swarm.network.dht_storage, "MAX_BYTES_OF_A_NAME", 3000)
        patch.setattr(manta_swarm.network.dht_storage, "MAX_NAMES_OF_AN_OWNER", 2)
        patch.setattr(manta_swarm.network.dht_storage, "MAX_BYTES", 6000)
        patch.setattr(manta_swarm.network.dht_storage, "_SWEEP_S", 0.0)
        storage = BoundedStorage(clock=clock)
        plain: dict[tuple[DHTID, bytes], tuple[bytes, float]] = {}
        for name, key, size, ttl_s, wait_s in steps:
            clock.advance(wait_s)
            plain = {at: record for at, record in plain.items() if record[1] >= clock.now_s()}
            at, record = (NAMES[name], owner(key)), (b"x" * size, clock.now_s() + ttl_s)
            after = {**plain, at: record}
            sizes: Counter[DHTID] = Counter()
            for (each, _), (value, _) in after.items():
                sizes[each] += max(len(value) + 64, MIN_RECORD_BYTES)
            fits = max(Counter(key for _, key in after).values()) <= 2 and max(sizes.values(), default=0) <= 3000 and sizes.total() <= 6000
            expected = ttl_s >= 0 and (at not in plain or plain[at][1] < record[1]) and fits
            assert storage.store_subkey(*at, *record, "192.0.2.1") == expected
            plain = after if expected else plain
            assert records_of(storage) == plain


SOURCES = ["192.0.2.1", "192.0.2.2", b"a key", FIRST]
crowds = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 1400), st.sampled_from(SOURCES)), max_size=60)


@given(crowds)
def test_whoever_comes_the_bounds_hold_and_no_source_loses_to_one_with_more(crowd: list[tuple[int, int, int, str | bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = ManualClock(NOW_S)
        patch.setattr("hivemind.utils.timed_storage.get_dht_time", clock.now_s)
        patch.setattr(manta_swarm.network.dht_storage, "MAX_BYTES_OF_A_NAME", 5000)
        patch.setattr(manta_swarm.network.dht_storage, "MAX_BYTES", 8000)
        storage = BoundedStorage(clock=clock)
        sources: dict[tuple[DHTID, bytes], str | bytes] = {}
        for number, (name, key, size, source) in enumerate(crowd):
            before = records_of(storage)
            taken = keep(storage, name, key, b"x" * size, 10 + number, source)
            after = records_of(storage)
            lost = [sources[at] for at in before.keys() - after.keys()]
            assert FIRST not in lost
            assert source == FIRST or source not in lost
            sizes = {at: max(len(value) + 64, MIN_RECORD_BYTES) for at, (value, _) in after.items()}
            assert storage.num_bytes == sum(sizes.values()) <= 8000
            assert all(sum(each for (name, _), each in sizes.items() if name == at) <= 5000 for at in NAMES[:3])
            if taken:
                sources[NAMES[name], owner(key)] = source
            else:
                assert before.items() >= after.items()
