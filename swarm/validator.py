"""Who may write what into the DHT: every record is a subkey named by a libp2p peer id, signed by that peer's key.

hivemind's own signature validator knows RSA only and lets unprotected records pass; with this one there are no unprotected
records. Plain values, which replace whole dictionaries, are refused. So the lists of peers that look for a group, which
hivemind stores by itself, are signed too.
"""

import struct

from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import get_dht_time

from protocol.encoding import encode
from protocol.errors import SignatureError
from protocol.signing import Identity, peer_id, public_key_of, verify

SIGNATURE_BYTES = 64
MAX_RECORD_BYTES = 4096
MAX_TTL_S = 3600.0
_SUBKEY_PREFIX = b"\xc4\x26"  # msgpack: 38 bytes follow, an Ed25519 peer id


class OwnedRecords(RecordValidatorBase):  # type: ignore[misc]
    """Signs this node's records and refuses every record whose signer does not own its subkey."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._own_subkey = _SUBKEY_PREFIX + peer_id(identity.public_key)
        self.refused = 0

    def validate(self, record: DHTRecord) -> bool:
        """Return whether the owner of the record's subkey signed it and its lifetime is sane."""
        try:
            if len(record.value) > MAX_RECORD_BYTES or not 0 < record.expiration_time < get_dht_time() + MAX_TTL_S:
                raise SignatureError("a record too large, or one that stays too long")
            if not record.subkey.startswith(_SUBKEY_PREFIX):
                raise SignatureError("a record without an owner")
            key = public_key_of(record.subkey[len(_SUBKEY_PREFIX) :])
            verify("dht", key, _signed_part(record, self.strip_value(record)), record.value[-SIGNATURE_BYTES:])
        except SignatureError:
            self.refused += 1
            return False
        return True

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


def _signed_part(record: DHTRecord, value: bytes) -> bytes:
    return encode((record.key, record.subkey, value, struct.pack(">d", record.expiration_time)))
