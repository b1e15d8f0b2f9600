"""Who may write what into the DHT: every record is a subkey named by a libp2p peer id, signed by that peer's key.

hivemind's own signature validator knows RSA only and lets unprotected records pass; with this one there are no unprotected
records. Plain values, which replace whole dictionaries, are refused.
"""

import struct
from collections import OrderedDict

from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import get_dht_time

from manta_swarm.network.rpc import RecordRule
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import SignatureError
from manta_swarm.protocol.signing import Identity, peer_id, public_key_of, sha256, verify

SIGNATURE_BYTES = 64
MAX_VALUE_BYTES = 2048
MAX_RECORD_BYTES = 3 + MAX_VALUE_BYTES + SIGNATURE_BYTES
MAX_TTL_S = 3600.0
_REMEMBERED = 8192  # records
_SUBKEY_PREFIX = b"\xc4\x26"  # msgpack: 38 bytes follow, an Ed25519 peer id
_BIN8, _BIN16 = b"\xc4", b"\xc5"  # msgpack: a byte string, its length in one byte or in two
_SUBKEY_BYTES = len(_SUBKEY_PREFIX) + 38


class OwnedRecords(RecordValidatorBase):  # type: ignore[misc]
    """Signs this node's records and refuses every record whose signer does not own its subkey."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._own_subkey = _SUBKEY_PREFIX + peer_id(identity.public_key)
        self._held: OrderedDict[bytes, None] = OrderedDict()  # digests of records whose signatures held: several nodes send the same ones
        self._rule: RecordRule | None = None
        self.refused = 0

    def hold_to(self, rule: RecordRule) -> None:
        """Refuse from now on what the rule does not admit."""
        self._rule = rule

    def validate(self, record: DHTRecord) -> bool:
        """Return whether the owner of the record's subkey signed it and its lifetime is sane."""
        try:
            _check_form(record)
            self._check_signature(record)
            self._check_admission(record)
        except SignatureError:
            self.refused += 1
            return False
        return True

    def _check_admission(self, record: DHTRecord) -> None:
        value = self.strip_value(record)
        owner, said = public_key_of(record.subkey[len(_SUBKEY_PREFIX) :]), value[2 if value[:1] == _BIN8 else 3 :]
        if self._rule is not None and not self._rule.admits_record(owner, said):
            raise SignatureError("a record of a key that was not admitted")

    def _check_signature(self, record: DHTRecord) -> None:
        """Check who signed a record, or remember that it was checked.

        Raises:
            SignatureError: its owner did not.
        """
        signed, signature = _signed_part(record, self.strip_value(record)), record.value[-SIGNATURE_BYTES:]
        digest = sha256(signed + signature)
        if digest in self._held:
            self._held.move_to_end(digest)
            return
        verify("dht", public_key_of(record.subkey[len(_SUBKEY_PREFIX) :]), signed, signature)
        self._held[digest] = None
        if len(self._held) > _REMEMBERED:
            self._held.popitem(last=False)

    def sign_value(self, record: DHTRecord) -> bytes:
        """Return the value with this node's signature; records of others are never written from here."""
        if record.subkey != self._own_subkey:
            raise ValueError("a node stores records under its own peer id only")
        value: bytes = record.value
        return value + self._identity.sign("dht", _signed_part(record, value))

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the value without its signature."""
        value: bytes = record.value
        return value[:-SIGNATURE_BYTES]


def _check_form(record: DHTRecord) -> None:
    """Refuse what is none of our records before its signature is looked at: whoever owns a record may sign anything.

    hivemind maps names of any length to 20 bytes, so that one under a longer name would be found under ours, where its signature
    does not hold; and a value that is no msgpack ends the search of whoever finds it.

    Raises:
        SignatureError: the record is refused.
    """
    if type(record.value) is not bytes or type(record.expiration_time) not in (float, int):
        raise SignatureError("a record that is no bytes")
    if len(record.value) > MAX_RECORD_BYTES or not 0 < record.expiration_time < get_dht_time() + MAX_TTL_S:
        raise SignatureError("a record too large, or one that stays too long")
    if len(record.key) != DHTID.HASH_NBYTES:
        raise SignatureError("a name that is no hash")
    if len(record.subkey) != _SUBKEY_BYTES or not record.subkey.startswith(_SUBKEY_PREFIX):
        raise SignatureError("a record without an owner")
    if not _is_value(record.value[:-SIGNATURE_BYTES]):
        raise SignatureError("a value that is no bytes")


def _is_value(packed: bytes) -> bool:
    """Return whether ``packed`` is exactly one byte string in msgpack, which is not asked: it would read anything."""
    if packed[:1] == _BIN8:
        return len(packed) >= 2 and len(packed) == 2 + packed[1]
    return packed[:1] == _BIN16 and len(packed) >= 3 and len(packed) == 3 + int.from_bytes(packed[1:3], "big")


def _signed_part(record: DHTRecord, value: bytes) -> bytes:
    return encode((record.key, record.subkey, value, struct.pack(">d", record.expiration_time)))
