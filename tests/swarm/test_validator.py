"""DHT records: whoever does not own a record's subkey cannot write it, in whatever way it is dressed up."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer, get_dht_time
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.signing import Identity, peer_id, sha256
from swarm.validator import MAX_RECORD_BYTES, MAX_TTL_S, OwnedRecords

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


@pytest.mark.parametrize("ttl_s", [MAX_TTL_S + 60, 1e12, math.inf, -1e12, math.nan])
def test_a_record_that_would_stay_too_long_is_refused(ttl_s: float) -> None:
    assert not is_valid(signed(ttl_s=ttl_s))


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
@settings(deadline=None)
def test_a_record_with_one_bit_changed_is_refused(data: st.DataObject) -> None:
    record = signed()
    at, bit = data.draw(st.integers(0, len(record.value) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(record.value)
    changed[at] ^= 1 << bit
    assert not is_valid(replace(record, value=bytes(changed)))


@given(st.binary(max_size=100), st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_refused_without_an_error(subkey: bytes, value: bytes) -> None:
    assert not is_valid(DHTRecord(KEY, subkey, value, get_dht_time() + 10))


def test_a_node_does_not_sign_what_another_would_own() -> None:
    with pytest.raises(ValueError, match="its own peer id"):
        OwnedRecords(OTHER).sign_value(unsigned())
    assert is_valid(replace(unsigned(), value=OwnedRecords(OWNER).sign_value(unsigned()))) is False  # another moment: another expiry
    record = unsigned()
    assert is_valid(replace(record, value=OwnedRecords(OWNER).sign_value(record)))
