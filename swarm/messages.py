"""What a peer and the log say to each other, beside the records that are signed or logged: requests and answers of the log's methods."""

from dataclasses import dataclass
from enum import IntEnum

from protocol.cosignatures import Cosignature
from protocol.earnings import MAX_CLAIMS_BYTES, MAX_RANGE_HASHES
from protocol.errors import EncodingError
from protocol.exchange import MAX_COHORT
from protocol.merkle import MAX_SIZE
from protocol.operators import MAX_COUNTED_BYTES
from protocol.records import MAX_ENTRY_BYTES, MAX_SIGNED_BYTES, Included, Receipt, Ticket
from protocol.reputation import FALSE, WITHHELD, Fault
from protocol.signed import Signed
from protocol.tiles import WIDTH

MAX_RECEIPT_BYTES = MAX_SIGNED_BYTES + 64 * 40 + MAX_COUNTED_BYTES  # of a round: its entry, a path of 64 hashes, a note
MAX_LISTING_BYTES = MAX_RECEIPT_BYTES + MAX_ENTRY_BYTES + 64 * 40  # and a contribution with its path
MAX_CONTRIBUTIONS_BYTES = MAX_CLAIMS_BYTES + MAX_ENTRY_BYTES + 40 * MAX_RANGE_HASHES
MAX_NEWS_BYTES = MAX_LISTING_BYTES + 64
MAX_ANSWER_BYTES = 1024 + MAX_COHORT * 40
_DIGEST_BYTES, _PLACE_BYTES = 32, 2
_MAX_CONSISTENCY = 128  # hashes: two paths
MAX_SHOWN_HEAD_BYTES = MAX_COUNTED_BYTES + _MAX_CONSISTENCY * 40
MAX_ASK_CONSISTENCY_BYTES, MAX_CONSISTENCY_BYTES = 64, 64 + _MAX_CONSISTENCY * 40
MAX_COSIGNED_BYTES = 192
MAX_ASK_ENTRIES_BYTES = 32
MAX_ENTRIES_BYTES = 2**20  # of one answer; it has one entry at least
MAX_FAULTS = 8
MAX_CREDIT_BYTES = 192 + MAX_FAULTS * 96
MAX_HISTORIES_BYTES = 2**18 + 3 * MAX_RECEIPT_BYTES  # a manifest, two receipts' parts and a proof of consistency
_MAX_THERE_BYTES = 512  # 4,096 groups, of 2^30 values


class HandIn(IntEnum):
    """What the log says to a header."""

    SEND_BODY = 0
    HAVE_TICKET = 1  # the body is there, and here is the ticket
    LISTED = 2  # the contribution is in a table already
    LATER = 3  # the open round has no place for it: after the next commit again
    WITHOUT = 4  # a claim of several cannot stand: the others may be handed in without it


@dataclass(frozen=True, slots=True)
class HeaderAnswer:
    """The answer to a header that is not refused."""

    status: int  # of HandIn
    round: int  # that it counts in
    left_ms: int  # until the round's deadline
    ticket: tuple[Signed[Ticket], ...]  # one with HAVE_TICKET, else none
    blamed: tuple[bytes, ...] = ()  # with WITHOUT the keys whose claims cannot stand
    there: bytes = b""  # with SEND_BODY the groups of the body that came before: bit p % 8 of byte p // 8; empty: none

    def __post_init__(self) -> None:
        if self.status not in tuple(HandIn) or len(self.ticket) != (self.status == HandIn.HAVE_TICKET):
            raise ValueError("an answer to a header without its meaning")
        if bool(self.blamed) != (self.status == HandIn.WITHOUT) or len(self.blamed) > MAX_COHORT:
            raise ValueError("an answer that blames nobody, or too many")
        if self.there and (self.status != HandIn.SEND_BODY or len(self.there) > _MAX_THERE_BYTES):
            raise ValueError("an answer that has groups of a body that it does not ask for, or too many")

    def has(self, place: int) -> bool:
        """Return whether a group of the body came before."""
        return place < 8 * len(self.there) and bool(self.there[place // 8] >> place % 8 & 1)


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


AT_ONCE, TRAINING, WATCHING = 0, 1, 2


@dataclass(frozen=True, slots=True)
class AfterRound:
    """Asks for the commit after ``round``; ``patient``: as soon as there is one, else (0) at once."""

    round: int
    patient: int  # one of AT_ONCE, TRAINING and WATCHING: who waits says whether it takes part in the run


@dataclass(frozen=True, slots=True)
class News:
    """Where the run stands: the newest commit, if it is after the round asked for, and how long the round after it still is open."""

    receipt: tuple[Receipt, ...]  # at most one
    contribution: tuple[Included, ...]  # the one of that round that has a claim of the caller's, if there is one, under the same head
    left_ms: int

    def __post_init__(self) -> None:
        if len(self.receipt) > 1 or len(self.contribution) > len(self.receipt) or not 0 <= self.left_ms <= 2**40:
            raise ValueError("news of more than one commit, or of no time")


@dataclass(frozen=True, slots=True)
class HeldHead:
    """Asks for the log's tree head, and shows the newest commit that the asker knows, if it knows one."""

    receipt: tuple[Receipt, ...]  # at most one

    def __post_init__(self) -> None:
        if len(self.receipt) > 1:
            raise ValueError("more than one newest commit")


@dataclass(frozen=True, slots=True)
class ShownHead:
    """The log's signed tree head."""

    tree_head: str
    consistency: tuple[bytes, ...]  # the proof that it continues the head of the asker's receipt, where it is not behind it

    def __post_init__(self) -> None:
        if len(self.consistency) > _MAX_CONSISTENCY:
            raise ValueError("a consistency proof of more hashes than a tree has levels")


@dataclass(frozen=True, slots=True)
class AskConsistency:
    """Asks the log for the proof that its tree of ``old`` entries is a prefix of that of ``new``."""

    old: int
    new: int

    def __post_init__(self) -> None:
        if not 0 <= self.old <= self.new <= MAX_SIZE:
            raise ValueError("no tree of one size is a prefix of one of the other")


@dataclass(frozen=True, slots=True)
class AskEntries:
    """Asks the log for ``count`` entries from ``first`` on; the answer is a bundle (``protocol.tiles``) of as many as it has room for."""

    first: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= MAX_SIZE or not 0 < self.count <= WIDTH:
            raise ValueError("no entries, or more than a bundle has")


@dataclass(frozen=True, slots=True)
class Consistency:
    """The RFC 9162 proof that was asked for."""

    proof: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.proof) > _MAX_CONSISTENCY:
            raise ValueError("a consistency proof of more hashes than a tree has levels")


@dataclass(frozen=True, slots=True)
class Cosigned:
    """Brings the log its caller's cosignature of the log's tree head of so many entries."""

    size: int
    cosignature: Cosignature

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_SIZE:
            raise ValueError("nobody cosigns an empty log")


@dataclass(frozen=True, slots=True)
class AskListing:
    """Asks for the Listing of the contribution that has a key's claim in a round; where there is none, the answer is empty."""

    round: int
    key: bytes


@dataclass(frozen=True, slots=True)
class AskCredit:
    """Asks what a key has earned: in all, and in a round; round 0: in all."""

    round: int
    key: bytes


@dataclass(frozen=True, slots=True)
class CreditWord:
    """What the log says that a key has earned, whichever accounts it adds up to; see ``protocol.reputation``."""

    round: int  # the newest that is counted
    paid: int
    pending: int  # what it would get of rounds that are not paid yet, if nothing more were found
    until: int  # the round with whose entry the last of that is paid; 0: nothing is pending, or the last of it is paid with the settlement
    faults: tuple[Fault, ...]  # the newest, the oldest of them first, at most ``MAX_FAULTS``
    good: int  # contributions that were found good since the last fault
    proven: int  # 1: the key is; in an open run all are
    earned: tuple[int, ...]  # by its work in the round that was asked for, at most one; none where its table is not kept any more

    def __post_init__(self) -> None:
        amounts, rounds = (
            (self.paid, self.pending, *self.earned),
            (self.round, self.until, self.good, *(each.round for each in self.faults)),
        )
        if len(self.earned) > 1 or not all(0 <= each < 2**80 for each in amounts) or not all(0 <= each < 2**62 for each in rounds):
            raise ValueError("credit of more than one round, or out of range")
        if len(self.faults) > MAX_FAULTS or self.proven not in (0, 1):
            raise ValueError("more faults than are told, or a key that is neither proven nor not")
        if any(each.reason not in (WITHHELD, FALSE) or len(each.contribution) != 32 for each in self.faults):
            raise ValueError("a fault without a reason that there is, or of something that is no contribution")

    @property
    def credit(self) -> int:
        """What the key has, for good or for now."""
        return self.paid + self.pending


@dataclass(frozen=True, slots=True)
class AskRound:
    """Asks for something of a round: what its contributions weigh, or its receipt."""

    round: int


@dataclass(frozen=True, slots=True)
class AskContributions:
    """Asks for a round's contributions from a place on, and for the proof that all of them are under a head of the log."""

    round: int
    place: int
    size: int  # of the log under that head
