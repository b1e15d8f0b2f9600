"""Offers of latency tables: a peer's signed word that it hands out a table of its device. They travel, and are never logged."""

from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.fields import Signed, check_digest
from protocol.signing import Identity, verify

MAX_OFFER_BYTES = 256


@dataclass(frozen=True, slots=True)
class TableOffer:
    """A peer's word that it hands out a latency table of its device, by the root of the table's pieces."""

    run: bytes
    key: bytes
    table: bytes  # the Merkle root over the leaf hashes of the table's pieces (protocol.merkle), of 1 MiB each, the last of what is left
    size: int  # of the table, in bytes; it says how many pieces there are

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.table, "table")
        if self.size < 0:
            raise ValueError(f"a table of {self.size} bytes")


@dataclass(frozen=True, slots=True)
class SignedOffer(Signed):
    """An offer's bytes with its signer's signature (kind "latency")."""

    def open(self) -> TableOffer:
        """Return the offer, its signature checked.

        Raises:
            EncodingError: the payload is no offer.
            SignatureError: its key did not sign it.
        """
        offer = unpack(TableOffer, self.payload, max_bytes=MAX_OFFER_BYTES)
        verify("latency", offer.key, self.payload, self.signature)
        return offer

    @classmethod
    def sign(cls, offer: TableOffer, identity: Identity) -> "SignedOffer":
        """Return ``offer`` signed by its own key."""
        payload = pack(offer)
        return cls(payload, identity.sign("latency", payload))
