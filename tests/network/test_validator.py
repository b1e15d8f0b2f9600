"""DHT records: whoever does not own a record's subkey cannot write it, in whatever way it is dressed up."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer, get_dht_time
from hypothesis import given
from hypothesis import strategies as st

import manta_swarm.network.validator
from manta_swarm.network.dht_storage import BoundedStorage
from manta_swarm.network.validator import MAX_RECORD_BYTES, MAX_TTL_S, OwnedRecords
from manta_swarm.protocol.signing import Identity, peer_id, sha256

OWNER, OTHER = Identity(sha256(b"owner")), Identity(sha256(b"other"))
KEY = DHTID.generate("manta-members").to_bytes()


def subkey_of(identity: Identity) -> bytes:
    """Return a subkey as hivemind's DHT writes it."""
    subkey: bytes = DHTProtocol.serializer.dumps(peer_id(identity.public_key))
    return subkey


def unsigned(value: bytes = b"value", ttl_s: float = 20.0, subkey: bytes | None = None) -> DHTRecord:
    return DHTRecord(KEY, subkey_of(OWNER) if subkey is None else subkey, MSGPackSerializer.dumps(value), get_dht_time() + ttl_s)


def signed_by(identity: Identity, record: DHTRecord) -> DHTRecord:
    """Return the record signed by whoever it is, as a liar's own software would do it."""
    signer = OwnedRecords(identity)
    signer._own_subkey = record.subkey
    return replace(record, value=signer.sign_value(record))


def signed(**settings_: float | bytes) -> DHTRecord:
    return signed_by(OWNER, unsigned(**settings_))  # type: ignore[arg-type]


def is_valid(record: DHTRecord) -> bool:
    checker = OwnedRecords(OTHER)
    valid = checker.validate(record)
    assert checker.refused == (0 if valid else 1)
    return valid


def test_a_record_that_its_owner_signed_is_taken_and_read_without_the_signature() -> None:
    assert is_valid(signed())
    assert OwnedRecords(OTHER).strip_value(signed()) == MSGPackSerializer.dumps(b"value")


def test_an_unsigned_record_is_refused() -> None:
    assert not is_valid(unsigned())
    assert not is_valid(replace(unsigned(), value=b""))


def test_a_record_signed_by_another_key_is_refused() -> None:
    assert not is_valid(signed_by(OTHER, unsigned()))


def test_a_plain_value_which_would_replace_the_whole_dictionary_is_refused() -> None:
    for subkey in (DHTProtocol.IS_REGULAR_VALUE, DHTProtocol.IS_DICTIONARY):
        assert not is_valid(signed_by(OWNER, unsigned(subkey=subkey)))


@pytest.mark.parametrize(
    "subkey",
    [b"x", subkey_of(OWNER)[:-1], subkey_of(OWNER) + b"x", MSGPackSerializer.dumps("name"), b"\xc4\x26" + b"x" * 38, b"\xc4\x26"],
)
def test_a_subkey_that_is_nobodys_peer_id_is_refused(subkey: bytes) -> None:
    assert not is_valid(signed_by(OWNER, unsigned(subkey=subkey)))


@pytest.mark.parametrize("key", [b"\x00" + KEY, b"\x00" * 100 + KEY, KEY[1:], KEY + b"\x00", b""])
def test_a_name_of_another_length_which_hivemind_takes_for_the_same_is_refused(key: bytes) -> None:
    assert is_valid(signed_by(OWNER, replace(unsigned(), key=KEY)))
    assert not is_valid(signed_by(OWNER, replace(unsigned(), key=key)))


def with_value(packed: bytes) -> DHTRecord:
    return signed_by(OWNER, replace(unsigned(), value=packed))


@pytest.mark.parametrize("value", [b"", b"x", b"x" * 255, b"x" * 256, b"x" * 2048])
def test_a_value_is_a_byte_string(value: bytes) -> None:
    assert is_valid(with_value(MSGPackSerializer.dumps(value)))


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "text", [], {}, [b"x"], (b"x",), DictionaryDHTValue()])
def test_a_value_of_another_kind_is_refused_though_its_owner_signed_it(value: object) -> None:
    assert not is_valid(with_value(MSGPackSerializer.dumps(value)))


@pytest.mark.parametrize(
    "packed", [b"", b"\xc1", b"\xc4", b"\xc4\x02x", b"\xc4\x01xx", b"\xc5\x00", b"\xc5\x01\x00x", b"\xc6\x00\x00\x00\x01x", b"\xc3\xc3"]
)
def test_a_value_that_a_search_could_not_read_is_refused_though_its_owner_signed_it(packed: bytes) -> None:
    assert not is_valid(with_value(packed))


@pytest.mark.parametrize(
    "change", [{"value": 7}, {"value": "text"}, {"value": None}, {"expiration_time": "soon"}, {"expiration_time": None}]
)
def test_a_record_of_other_types_than_hivemind_says_is_refused_without_an_error(change: dict[str, object]) -> None:
    assert not is_valid(replace(signed(), **change))  # type: ignore[arg-type]


@given(st.binary(max_size=300))
def test_what_is_valid_is_what_msgpack_reads_as_bytes(packed: bytes) -> None:
    try:
        value = MSGPackSerializer.loads(packed)
    except Exception:  # noqa: BLE001 - whatever msgpack raises
        value = None
    is_bytes = type(value) is bytes and packed[:1] in (b"\xc4", b"\xc5")  # a longer form is none of ours, nor an unknown extension
    assert is_valid(with_value(packed)) == is_bytes


@pytest.mark.parametrize("ttl_s", [MAX_TTL_S + 60, 1e12, math.inf, -1e12, math.nan])
def test_a_record_that_would_stay_too_long_is_refused(ttl_s: float) -> None:
    assert not is_valid(signed(ttl_s=ttl_s))


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0])
def test_a_record_of_a_clock_that_is_a_day_off_is_neither_believed_nor_kept_and_nothing_else_suffers(ahead_s: float) -> None:
    storage, name = BoundedStorage(), DHTID(int.from_bytes(KEY, "big"))

    def is_kept(record: DHTRecord) -> bool:
        return is_valid(record) and storage.store_subkey(name, record.subkey, record.value, record.expiration_time, "192.0.2.1")

    assert not is_kept(signed(ttl_s=ahead_s + 20.0))
    assert is_kept(signed(ttl_s=20.0))


def test_a_record_that_is_too_large_is_refused() -> None:
    assert is_valid(signed(value=b"x" * (MAX_RECORD_BYTES - 64 - 3)))
    assert not is_valid(signed(value=b"x" * (MAX_RECORD_BYTES - 64 - 2)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda record: replace(record, key=DHTID.generate("another").to_bytes()), id="key"),
        pytest.param(lambda record: replace(record, subkey=subkey_of(OTHER)), id="subkey"),
        pytest.param(lambda record: replace(record, expiration_time=record.expiration_time + 1), id="expiry"),
        pytest.param(lambda record: replace(record, value=b"\x00" + record.value), id="value"),
        pytest.param(lambda record: replace(record, value=record.value[-64:]), id="only the signature"),
    ],
)
def test_a_signature_holds_for_nothing_but_its_record(change: Callable[[DHTRecord], DHTRecord]) -> None:
    assert not is_valid(change(signed()))


@given(st.data())
def test_a_record_with_one_bit_changed_is_refused(data: st.DataObject) -> None:
    record = signed()
    at, bit = data.draw(st.integers(0, len(record.value) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(record.value)
    changed[at] ^= 1 << bit
    assert not is_valid(replace(record, value=bytes(changed)))


@given(st.binary(max_size=100), st.binary(max_size=200))
def test_any_bytes_are_refused_without_an_error(subkey: bytes, value: bytes) -> None:
    assert not is_valid(DHTRecord(KEY, subkey, value, get_dht_time() + 10))


def test_a_node_does_not_sign_what_another_would_own() -> None:
    with pytest.raises(ValueError, match="its own peer id"):
        OwnedRecords(OTHER).sign_value(unsigned())
    assert is_valid(replace(unsigned(), value=OwnedRecords(OWNER).sign_value(unsigned()))) is False  # another moment: another expiry
    record = unsigned()
    assert is_valid(replace(record, value=OwnedRecords(OWNER).sign_value(record)))


def test_a_record_that_several_nodes_send_is_verified_once_and_a_changed_one_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[bytes] = []
    real = manta_swarm.network.validator.verify

    def verify(kind: str, key: bytes, payload: bytes, signature: bytes) -> None:
        verified.append(signature)
        real(kind, key, payload, signature)

    monkeypatch.setattr(manta_swarm.network.validator, "verify", verify)
    checker, record = OwnedRecords(OTHER), signed()
    assert all(checker.validate(record) for _ in range(5))
    assert len(verified) == 1
    assert not checker.validate(replace(record, expiration_time=record.expiration_time + 1))
    assert not checker.validate(replace(record, value=record.value[:-1] + bytes([record.value[-1] ^ 1])))
    assert len(verified) == 3
    assert checker.validate(record)


def test_what_was_verified_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manta_swarm.network.validator, "_REMEMBERED", 2)
    checker = OwnedRecords(OTHER)
    for value in (b"one", b"two", b"three"):
        assert checker.validate(signed(value=value))
    assert len(checker._held) == 2
