"""What operators of one run say to each other. Taken from operators' keys only; bounded and strictly parsed all the same.

What is too long for a message is *lent*: the message names it by its digest, and whoever gets that asks for it in parts.
"""

from dataclasses import dataclass

from protocol.ballots import MAX_KEPT, Ballot, Certificate, Kept
from protocol.fields import check_digest
from protocol.merkle import MAX_SIZE
from protocol.notes import MAX_NOTE_BYTES
from protocol.records import MAX_SIGNED_BYTES

PROMISE, ACCEPT, SIGN, KEEP, BEAT = "operators-promise", "operators-accept", "operators-sign", "operators-keep", "operators-beat"
VERDICTS, WAITING = "operators-verdicts", "operators-waiting"
LENT, ENTRIES, FORWARD = "operators-lent", "operators-entries", "operators-forward"
STANDING = "operators-standing"  # of no content; the answer is a ``protocol.newcomers.Standing``

PART_BYTES = 1024 * 1024
MAX_PAGE_ENTRIES = 1024
MAX_SMALL_BYTES = 4096
MAX_NOTED_BYTES = 8192
MAX_PROMISED_BYTES = 256 * MAX_KEPT
MAX_FORWARDED_BYTES = 2 * 1024 * 1024
MAX_VERDICTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class AskPromise:
    """Asks to listen to no older ballot any more."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Lent:
    """Bytes that the sender lends."""

    digest: bytes
    num_bytes: int

    def __post_init__(self) -> None:
        check_digest(self.digest, "digest")
        if not 0 < self.num_bytes < 2**40:
            raise ValueError("nothing is lent")


@dataclass(frozen=True, slots=True)
class Offer:
    """A batch, its entries lent: to be accepted, or that was. The answer to one that is to be is a ``protocol.ballots.Vote``."""

    ballot: Ballot
    first: int
    size: int
    root: bytes
    entries: Lent

    def __post_init__(self) -> None:
        check_digest(self.root, "root")
        if not 0 <= self.first < self.size <= MAX_SIZE:
            raise ValueError("a batch without entries, or out of range")


@dataclass(frozen=True, slots=True)
class Promised:
    """The answer; where a later ballot was promised it says that one's term, and nothing else counts."""

    later: int
    note: str  # of its log's head, which counts where the log is not empty
    accepted: tuple[Offer, ...]  # at most one
    kept: tuple[Kept, ...]

    def __post_init__(self) -> None:
        if self.later < 0 or len(self.note) > MAX_NOTE_BYTES or len(self.accepted) > 1 or len(self.kept) > MAX_KEPT:
            raise ValueError("a promise about more than one batch, or with more contributions than an operator keeps")


@dataclass(frozen=True, slots=True)
class AskKeep:
    """Asks to keep contributions, each lent under its digest; the answer, empty, comes once they are on the disk."""

    kept: tuple[Kept, ...]  # under one ballot

    def __post_init__(self) -> None:
        if not 0 < len(self.kept) <= MAX_KEPT or len({each.ballot for each in self.kept}) > 1:
            raise ValueError("nothing to keep, or too much, or under several ballots")


@dataclass(frozen=True, slots=True)
class AskVerdicts:
    """Asks to keep verdicts until the log has them; the answer, empty, comes once they are on the disk, or the log takes them no more."""

    size: int  # of a log that they may follow: who has a shorter one can't say yet
    entries: tuple[bytes, ...]
    ballot: tuple[Ballot, ...]  # of the writer that is to acknowledge them; none: they are handed on

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MAX_SIZE or not 0 < len(self.entries) <= MAX_VERDICTS_AT_ONCE or len(self.ballot) > 1:
            raise ValueError("no verdicts, too many, after no log, or of several ballots")
        if max(map(len, self.entries)) > MAX_SIGNED_BYTES:
            raise ValueError(f"a verdict has at most {MAX_SIGNED_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class AskWaiting:
    """A writer's question for the verdicts that wait, before it settles the run; who answers keeps none for an older ballot any more.

    The answer is a ``Page`` of entries, sorted by the digests of their records; one that is not full is the last.
    """

    ballot: Ballot
    after: bytes  # the digest that those of the page come after; empty: the first page

    def __post_init__(self) -> None:
        if len(self.after) not in (0, 32):
            raise ValueError("a digest has 32 bytes")


@dataclass(frozen=True, slots=True)
class AskSign:
    """Shows that a batch is decided, and asks for the signature of the head after it; the answer is a note."""

    certificate: Certificate


@dataclass(frozen=True, slots=True)
class Beat:
    """The writer's word that it writes, and where the run stands."""

    ballot: Ballot
    left_ms: int  # how long headers for the open round still have
    note: str  # the newest head, which counts

    def __post_init__(self) -> None:
        if not 0 <= self.left_ms <= 2**40 or len(self.note) > MAX_NOTE_BYTES:
            raise ValueError("a beat of no time, or of too long a note")


@dataclass(frozen=True, slots=True)
class AskPart:
    """Asks for so many bytes at most of what is lent, from an offset on."""

    digest: bytes
    offset: int

    def __post_init__(self) -> None:
        check_digest(self.digest, "digest")
        if not 0 <= self.offset < 2**40:
            raise ValueError("no offset")


@dataclass(frozen=True, slots=True)
class AskEntries:
    """Asks for entries of the log."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= MAX_SIZE:
            raise ValueError("no entries")


@dataclass(frozen=True, slots=True)
class Page:
    """Some of them, from the first on."""

    entries: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.entries) > MAX_PAGE_ENTRIES:
            raise ValueError("more entries than in a page")


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A peer's call, passed on to the writer."""

    caller: bytes
    method: str
    request: bytes

    def __post_init__(self) -> None:
        if len(self.caller) != 32 or not 0 < len(self.method) <= 64:
            raise ValueError("nobody's call, or of no method")
