"""What fields of records have in common: ranges, digests, names; and what a record with a signature is."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, Self, TypeVar

from protocol.encoding import pack, unpack
from protocol.errors import SignatureError
from protocol.signing import Digest, Identity, check_public_key, sha256, verify

MAX_ROUND = 2**40
DIGEST_BYTES = 32

Record = TypeVar("Record")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def require(condition: bool, what: str) -> None:
    """Refuse a record of which ``condition`` does not hold.

    Raises:
        ValueError: it does not; ``what`` says what would.
    """
    if not condition:
        raise ValueError(what)


def check_digest(value: bytes, what: str) -> None:
    """Refuse what has not the length of a digest.

    Raises:
        ValueError: the digest is refused.
    """
    if len(value) != DIGEST_BYTES:
        raise ValueError(f"{what} has {len(value)} bytes, not {DIGEST_BYTES}")


def check_key(value: bytes, what: str) -> None:
    """Refuse what cannot be a public key.

    Raises:
        ValueError: the key is refused.
    """
    try:
        check_public_key(value)
    except SignatureError as error:
        raise ValueError(f"{what}: {error}") from error


def check_name(value: str, what: str) -> None:
    """Refuse what is not a plain lower-case name of 1-63 letters, digits, dots, dashes and underscores.

    Raises:
        ValueError: the name is refused.
    """
    if _NAME.fullmatch(value) is None:
        raise ValueError(f"{what} must be a plain lower-case name, not {value!r}")


@dataclass(frozen=True)  # without slots: its digest is kept once it was asked for
class Signed:
    """The bytes of a record with a signature: what travels, and what the log keeps."""

    payload: bytes
    signature: bytes

    @cached_property
    def digest(self) -> Digest:
        """What names it: SHA-256 of the payload and the signature together."""
        return sha256(pack(self))


@dataclass(frozen=True)
class SignedRecord(Signed, Generic[Record]):
    """A record's bytes with the signature of a key that the record names."""

    record: ClassVar[type]
    kind: ClassVar[str]  # of its signature
    signed_by: ClassVar[str]  # the field with the key that signs it
    max_bytes: ClassVar[int]

    def signer(self, record: Record) -> bytes:
        """Return the key that signs ``record``."""
        key: bytes = getattr(record, self.signed_by)
        return key

    def read(self) -> Record:
        """Return the record, its signature not checked.

        Raises:
            EncodingError: the payload is none.
        """
        found: Record = unpack(self.record, self.payload, max_bytes=self.max_bytes)
        return found

    def open(self) -> Record:
        """Return the record, its signature checked; whether its signer may say so is for the caller to check.

        Raises:
            EncodingError: the payload is none.
            SignatureError: its signer did not sign it.
        """
        record = self.read()
        verify(self.kind, self.signer(record), self.payload, self.signature)
        return record

    @classmethod
    def sign(cls, record: Record, signer: Identity) -> Self:
        """Return ``record`` signed."""
        payload = pack(record)
        return cls(payload, signer.sign(cls.kind, payload))
