"""Offers of latency tables: a peer's signed word that it hands out a table of its device. They travel, and are never logged."""

from dataclasses import dataclass
from typing import ClassVar

from protocol.fields import check_digest
from protocol.signed import Signing

MAX_OFFER_BYTES = 256


@dataclass(frozen=True, slots=True)
class TableOffer:
    """A peer's word that it hands out a latency table of its device, by the root of the table's pieces."""

    signing: ClassVar[Signing] = Signing("latency", MAX_OFFER_BYTES, by="key")

    run: bytes
    key: bytes
    table: bytes  # the Merkle root over the leaf hashes of the table's pieces (protocol.merkle), of 1 MiB each, the last of what is left
    size: int  # of the table, in bytes; it says how many pieces there are

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.table, "table")
        if self.size < 0:
            raise ValueError(f"a table of {self.size} bytes")
