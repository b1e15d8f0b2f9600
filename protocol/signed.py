"""Records with a signature: the bytes of both, as they travel and as the log keeps them.

A record's class says once, in its ``signing``, as what it is signed, by which key, and how long it may be.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from manta_swarm.protocol.encoding import NOT_ENCODED, pack, unpack
from manta_swarm.protocol.signing import Digest, Identity, sha256, verify, verify_one_of

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True, slots=True)
class Signing:
    """How the records of one class are signed."""

    kind: str  # what a signature is made for: one that was made for another kind of record does not verify
    max_bytes: int  # of the packed record
    by: str  # the attribute that holds the signer's key; empty: the record names no signer, see ``Signed.open_by``


class Signable(Protocol):
    """A record's class that says how it is signed."""

    signing: ClassVar[Signing]


Record = TypeVar("Record", bound=Signable)


@dataclass(frozen=True)  # without slots: its digest is kept once it was asked for
class Signed(Generic[Record]):
    """The bytes of a record, and of its signature."""

    of: type[Record] = field(metadata=NOT_ENCODED)  # the record's class; who reads one knows which it has to be
    payload: bytes
    signature: bytes

    @cached_property
    def digest(self) -> Digest:
        """What names it: SHA-256 of the payload and the signature together."""
        return sha256(pack(self))

    def unchecked(self) -> Record:
        """Return the record, its signature not checked: for who knows that it holds, or needs not know.

        Raises:
            EncodingError: the payload is no such record.
        """
        return unpack(self.of, self.payload, max_bytes=self.of.signing.max_bytes)

    def open(self) -> Record:
        """Return the record, its signature checked; whether its signer may say so is for the caller to check.

        Raises:
            EncodingError: the payload is no such record.
            SignatureError: the signer that it names did not sign it.
        """
        signing = self.of.signing
        assert signing.by, "a record that names no signer is opened by open_by"
        record = self.unchecked()
        verify(signing.kind, getattr(record, signing.by), self.payload, self.signature)
        return record

    def open_by(self, signers: Collection[bytes]) -> Record:
        """Return the record, which one of ``signers`` signed.

        Raises:
            EncodingError: the payload is no such record.
            SignatureError: none of them signed it.
        """
        record = self.unchecked()
        verify_one_of(self.of.signing.kind, signers, self.payload, self.signature)
        return record

    @classmethod
    def sign(cls, record: Record, signer: Identity) -> "Signed[Record]":
        """Return ``record`` signed."""
        payload = pack(record)
        return Signed(type(record), payload, signer.sign(record.signing.kind, payload))


def is_signed(record: object, of: type[Record]) -> "TypeIs[Signed[Record]]":
    """Return whether ``record`` is one of class ``of`` with its signature."""
    return isinstance(record, Signed) and record.of is of
