"""What a peer and the log say to each other, beside the records that are signed or logged: requests and answers of the log's methods."""

from dataclasses import dataclass
from enum import IntEnum

from protocol.errors import EncodingError
from protocol.exchange import MAX_COHORT
from protocol.records import MAX_ENTRY_BYTES, Receipt, SignedTicket
from protocol.table import RowProof

MAX_HEADER_BYTES = (MAX_COHORT + 1) * MAX_ENTRY_BYTES
MAX_RECEIPT_BYTES = MAX_ENTRY_BYTES + 64 * 40 + 1024  # an entry, a path of 64 hashes, a note
MAX_PROVEN_ROW_BYTES = MAX_RECEIPT_BYTES + 1024
MAX_NEWS_BYTES = MAX_PROVEN_ROW_BYTES + 64
MAX_ANSWER_BYTES = 1024
_DIGEST_BYTES, _PLACE_BYTES = 32, 2


class HandIn(IntEnum):
    """What the log says to a header."""

    SEND_BODY = 0
    HAVE_TICKET = 1  # the body is there, and here is the ticket
    LISTED = 2  # the contribution is in a table already
    LATER = 3  # the open round has no place for it: after the next commit again


@dataclass(frozen=True, slots=True)
class HeaderAnswer:
    """The answer to a header that is not refused."""

    status: int  # of HandIn
    round: int  # that it counts in
    left_ms: int  # until the round's deadline
    ticket: tuple[SignedTicket, ...]  # one with HAVE_TICKET, else none

    def __post_init__(self) -> None:
        if self.status not in tuple(HandIn) or len(self.ticket) != (self.status == HandIn.HAVE_TICKET):
            raise ValueError("an answer to a header without its meaning")


@dataclass(frozen=True, slots=True)
class BodyPart:
    """A group of a body on its way to the log: the contribution's digest (32 bytes), the group's place (2, big-endian), its bytes."""

    contribution: bytes
    place: int
    data: bytes | memoryview

    def pack(self) -> bytes:
        """Return the message."""
        return b"".join((self.contribution, self.place.to_bytes(_PLACE_BYTES, "big"), self.data))

    @classmethod
    def open(cls, message: bytes) -> "BodyPart":
        """Return the part in ``message``.

        Raises:
            EncodingError: there is none.
        """
        start = _DIGEST_BYTES + _PLACE_BYTES
        if len(message) < start:
            raise EncodingError("a part of a body without the head that says of which")
        return cls(message[:_DIGEST_BYTES], int.from_bytes(message[_DIGEST_BYTES:start], "big"), memoryview(message)[start:])


@dataclass(frozen=True, slots=True)
class AfterRound:
    """Asks for the commit after ``round``; ``patient`` 1: as soon as there is one, else at once."""

    round: int
    patient: int


@dataclass(frozen=True, slots=True)
class News:
    """Where the run stands: the newest commit, if it is after the round asked for, and how long the round after it still is open."""

    receipt: tuple[Receipt, ...]  # at most one
    row: tuple[RowProof, ...]  # the caller's own in that commit's table, if there is one
    left_ms: int

    def __post_init__(self) -> None:
        if len(self.receipt) > 1 or len(self.row) > len(self.receipt) or not 0 <= self.left_ms <= 2**40:
            raise ValueError("news of more than one commit, or of no time")


@dataclass(frozen=True, slots=True)
class AskRow:
    """Asks for a founder's row in the table of a round; where that has none, the answer is empty."""

    round: int
    founder: bytes


@dataclass(frozen=True, slots=True)
class ProvenRow:
    """A row with the proof that its table has it, and its round's receipt."""

    receipt: Receipt
    row: RowProof


@dataclass(frozen=True, slots=True)
class AskTable:
    """Asks for all rows of a round's table."""

    round: int
