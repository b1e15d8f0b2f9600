"""Bytes that one operator lends another: too long for a message, got in parts by the digest that a message named."""

from dataclasses import dataclass

from manta_swarm.aggregator.intake.bodies import StoredContribution
from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.signing import PublicKey

MAX_SMALL_BYTES = 4096  # of a message that lends what is longer
LENT, ENTRIES = "operators-lent", "operators-entries"
PART_BYTES = 1024 * 1024
MAX_PAGE_ENTRIES = 1024

_NUMBER = 8


@dataclass(frozen=True, slots=True)
class LentBytes:
    """Bytes that the sender lends."""

    digest: bytes
    num_bytes: int

    def __post_init__(self) -> None:
        check_digest(self.digest, "digest")
        if not 0 < self.num_bytes < 2**40:
            raise ValueError("nothing is lent")


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
class AskLogEntries:
    """Asks for entries of the log."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= MAX_SIZE:
            raise ValueError("no entries")


@dataclass(frozen=True, slots=True)
class EntriesPage:
    """Answers ``AskLogEntries`` with some of the entries, from the first one on."""

    entries: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.entries) > MAX_PAGE_ENTRIES:
            raise ValueError("more entries than in a page")


async def borrow(endpoint: Endpoint, key: PublicKey, digest: bytes, max_bytes: int) -> bytes:
    """Return what the operator ``key`` lends under a digest, at most so many bytes; what it is has to be checked.

    Raises:
        Unreachable, Refused: it does not give it.
        EncodingError: it gives more.
    """
    parts, num_bytes = list[bytes](), 0
    while True:
        request, is_large = pack(AskPart(digest, num_bytes)), max_bytes > PART_BYTES // 16
        part = await endpoint.call(key, LENT, request, timeout_s=timeouts.BODY_S, large_answer=is_large)
        num_bytes += len(part)
        if num_bytes > max_bytes or len(part) > PART_BYTES:
            raise EncodingError("more is lent than there can be")
        parts.append(part)
        if len(part) < PART_BYTES:
            return b"".join(parts)


def part_of(data: bytes, offset: int) -> bytes:
    """Return the answer to one who asks for a part; the last one is shorter than the others, or empty."""
    return data[offset : offset + PART_BYTES]


def entries_bytes(entries: tuple[bytes, ...]) -> bytes:
    """Return a batch's entries as they are lent: pages one after the other, each with its length before it."""
    pages = [pack(EntriesPage(entries[start : start + MAX_PAGE_ENTRIES])) for start in range(0, len(entries), MAX_PAGE_ENTRIES)]
    return b"".join(len(page).to_bytes(_NUMBER, "big") + page for page in pages)


def entries_from(data: bytes) -> tuple[bytes, ...]:
    """Return the entries in ``data``.

    Raises:
        EncodingError: there are none.
    """
    entries, offset = list[bytes](), 0
    while offset < len(data):
        start = offset + _NUMBER
        offset = start + int.from_bytes(data[offset:start], "big")
        if offset > len(data):
            raise EncodingError("a page that is cut")
        entries += unpack(EntriesPage, data[start:offset], max_bytes=len(data)).entries
    return tuple(entries)


def contribution_from(data: bytes, digest: bytes, body_bytes: int) -> StoredContribution:
    """Return the contribution with this digest that was lent; whether its body is what it says is not checked.

    Raises:
        EncodingError: it is another one, or none.
    """
    kept = StoredContribution.unpack(data, body_bytes)
    if kept.header.contribution.digest != digest:
        raise EncodingError("another contribution than was asked for")
    return kept
