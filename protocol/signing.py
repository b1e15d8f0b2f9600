"""Ed25519 identities and signatures with domain separation; a peer id is the public key in libp2p's clothing.

What is signed is ``"manta/<kind>/v<version>\\n" || payload``, so a signature made for one kind of record never fits another, nor
one of another version of the protocol. Only a note is signed as it is, as C2SP wants it; none that starts like a record is ever signed.
"""

import hashlib
import re
from collections.abc import Collection
from typing import NewType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.versions import PROTOCOL

PublicKey = NewType("PublicKey", bytes)
Digest = NewType("Digest", bytes)

# libp2p's protobuf of an Ed25519 private key (type 1, 64 bytes: seed and public key) and of a public key (32 bytes).
# https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
_PRIVATE_PREFIX = b"\x08\x01\x12\x40"
_PUBLIC_PREFIX = b"\x08\x01\x12\x20"
_IDENTITY_MULTIHASH = b"\x00\x24"

_RECORD_START = re.compile(r"manta/[^/\n]*/v[0-9]+\n")  # what ``_message`` puts before a payload

_PEER_ID_BYTES = len(_IDENTITY_MULTIHASH + _PUBLIC_PREFIX) + 32
_MAX_NAME = 64  # characters: more than any such peer id has

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

_P = 2**255 - 19
# The y coordinates of the eight points of low order: with such a key one signature fits many messages.
_LOW_ORDER_Y = frozenset(
    {
        0,
        1,
        _P - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
    }
)


def sha256(data: bytes) -> Digest:
    """Return the SHA-256 digest of ``data`` (32 bytes)."""
    return Digest(hashlib.sha256(data).digest())


class Identity:
    """One Ed25519 key pair: the peer id, the signer of records and the owner of DHT records."""

    def __init__(self, seed: bytes) -> None:
        """Build the key pair of a 32-byte secret seed (the caller draws it from the system's randomness)."""
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._seed = seed
        self.public_key = PublicKey(self._private.public_key().public_bytes_raw())

    def sign(self, kind: str, payload: bytes) -> bytes:
        """Return the 64-byte signature of ``payload`` as a record of ``kind``."""
        return self._private.sign(_message(kind, payload))

    def sign_note(self, text: str) -> bytes:
        """Return the 64-byte signature of a C2SP note's text, which is signed as it is (see ``protocol.notes``).

        Raises:
            ValueError: the text starts like a signed record, for which this signature would then hold as well.
        """
        if _RECORD_START.match(text):
            raise ValueError("a note may not start like a signed record")
        return self._private.sign(text.encode())

    def to_libp2p(self) -> bytes:
        """Return the private key as libp2p's daemon reads it from a file (68 bytes, secret)."""
        return _PRIVATE_PREFIX + self._seed + self.public_key

    @classmethod
    def from_libp2p(cls, data: bytes) -> "Identity":
        """Return the identity of ``to_libp2p``'s bytes.

        Raises:
            EncodingError: the bytes are not an Ed25519 private key, or its two halves do not belong together.
        """
        if len(data) != 68 or not data.startswith(_PRIVATE_PREFIX):
            raise EncodingError("not a libp2p Ed25519 private key")
        identity = cls(data[4:36])
        if data[36:] != identity.public_key:
            raise EncodingError("the public half of the key does not belong to its private half")
        return identity


def verify(kind: str, public_key: bytes, payload: bytes, signature: bytes) -> None:
    """Check that ``public_key`` signed ``payload`` as a record of ``kind``.

    Raises:
        SignatureError: it did not, or the key is malformed or of low order.
    """
    _verify(public_key, _message(kind, payload), signature, kind)


def verify_one_of(kind: str, public_keys: Collection[bytes], payload: bytes, signature: bytes) -> PublicKey:
    """Return which of ``public_keys`` signed ``payload`` as a record of ``kind``.

    Raises:
        SignatureError: none did, or one is malformed or of low order.
    """
    for key in public_keys:
        check_public_key(key)
        try:
            verify(kind, key, payload, signature)
        except SignatureError:
            continue
        return PublicKey(key)
    raise SignatureError(f"the signature of this {kind} does not verify")


def verify_note(public_key: bytes, text: str, signature: bytes) -> None:
    """Check that ``public_key`` signed ``text`` as a C2SP note.

    Raises:
        SignatureError: as ``verify``.
    """
    _verify(public_key, text.encode(), signature, "note")


def _verify(public_key: bytes, message: bytes, signature: bytes, what: str) -> None:
    check_public_key(public_key)
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError) as error:
        raise SignatureError(f"the signature of this {what} does not verify") from error


def check_public_key(public_key: bytes) -> None:
    """Refuse what cannot be a member's key: a wrong length, a non-canonical point, a point of low order.

    Raises:
        SignatureError: the key is refused.
    """
    if len(public_key) != 32:
        raise SignatureError(f"a public key has 32 bytes, not {len(public_key)}")
    y = int.from_bytes(public_key, "little") & (2**255 - 1)
    if y >= _P or y in _LOW_ORDER_Y:
        raise SignatureError("public keys of low order or in non-canonical form are refused")


def _message(kind: str, payload: bytes) -> bytes:
    return f"manta/{kind}/v{PROTOCOL}\n".encode() + payload


def peer_id(public_key: bytes) -> bytes:
    """Return the libp2p peer id of an Ed25519 key: its identity multihash (38 bytes)."""
    return _IDENTITY_MULTIHASH + _PUBLIC_PREFIX + public_key


def peer_name(public_key: bytes) -> str:
    """Return an Ed25519 key's libp2p peer id as people write it, in base58: 12D3Koo..."""
    number, text = int.from_bytes(peer_id(public_key), "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    return _BASE58[0] + text  # the multihash begins with one zero byte


def key_named(name: str) -> PublicKey:
    """Return the Ed25519 key of a peer id as people write it: what ``peer_name`` was given.

    Raises:
        SignatureError: it is no such peer id, or the key is refused.
    """
    number = 0
    for letter in name[:_MAX_NAME]:
        digit = _BASE58.find(letter)
        if digit < 0:
            raise SignatureError("the peer id is not in base58")
        number = 58 * number + digit
    if number >> 8 * _PEER_ID_BYTES:
        raise SignatureError("the peer id does not embed an Ed25519 key")
    key = public_key_of(number.to_bytes(_PEER_ID_BYTES, "big"))
    if peer_name(key) != name:
        raise SignatureError("the peer id is written in another way than there is")
    return key


def public_key_of(peer_id_bytes: bytes) -> PublicKey:
    """Return the Ed25519 key inside a libp2p peer id.

    Raises:
        SignatureError: the peer id is of another kind of key, or the key is refused.
    """
    prefix = _IDENTITY_MULTIHASH + _PUBLIC_PREFIX
    if len(peer_id_bytes) != len(prefix) + 32 or not peer_id_bytes.startswith(prefix):
        raise SignatureError("the peer id does not embed an Ed25519 key")
    key = PublicKey(peer_id_bytes[len(prefix) :])
    check_public_key(key)
    return key
