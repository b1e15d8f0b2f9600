"""Checks that a log continues what it signed, by asking its operators and by the tree heads that they publish in the DHT.

The other calls about the log's tree are here as well: for its head, its entries, and what a witness brings.
"""

import contextlib
from dataclasses import dataclass

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import LogClient, ProvenCommit
from manta_swarm.network.rpc import Endpoint, Refused
from manta_swarm.protocol.cosignatures import Cosignature
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault
from manta_swarm.protocol.histories import Departure, departure
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.operators import MAX_COUNTED_BYTES
from manta_swarm.protocol.records import Receipt
from manta_swarm.protocol.tiles import WIDTH, bundled

_MAX_CONSISTENCY = 128  # hashes: two paths
MAX_SHOWN_HEAD_BYTES = MAX_COUNTED_BYTES + _MAX_CONSISTENCY * 40
MAX_ASK_CONSISTENCY_BYTES, MAX_CONSISTENCY_BYTES = 64, 64 + _MAX_CONSISTENCY * 40
MAX_COSIGNED_BYTES = 192
MAX_ASK_ENTRIES_BYTES = 32
MAX_ENTRIES_BYTES = 2**20  # of one answer; it has one entry at least

MAX_RECORD_BYTES = 2000  # a record in the DHT has at most 2048
LIVES_S = 900.0
PUBLISHED_S = (10.0, 300.0)  # shortest pause after a new one, and longest without one


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


async def ask_head(log: LogClient, held: ProvenCommit | None) -> ShownHead:
    """Show the log the newest commit that is known here; return the tree head that it shows, whose signature is not checked yet.

    Raises:
        Unreachable: no answer.
        RemoteFault: it shows none.
    """
    ask = HeldHead(() if held is None else (held.receipt,))
    answer = await log.line.call("tree-head", pack(ask), timeout_s=timeouts.CALL_S)
    return unpack(ShownHead, answer, max_bytes=MAX_SHOWN_HEAD_BYTES)


async def ask_consistency(log: LogClient, old: int, new: int) -> tuple[bytes, ...]:
    """Return what the log says proves that its tree of ``old`` entries is a prefix of that of ``new``; it is not checked yet.

    Raises:
        Unreachable: no answer.
        Refused: the log has not so many entries.
        RemoteFault: it shows no proof.
    """
    answer = await log.line.call("consistency", pack(AskConsistency(old, new)), timeout_s=timeouts.CALL_S)
    return unpack(Consistency, answer, max_bytes=MAX_CONSISTENCY_BYTES).proof


async def ask_entries(log: LogClient, index: int, width: int) -> list[bytes]:
    """Return what the log says are the first ``width`` entries from 256 times ``index`` on; nothing proves it.

    Raises:
        Unreachable: no answer.
        Refused: the log has not so many entries.
        RemoteFault: it shows others than so many.
    """
    found, first = list[bytes](), WIDTH * index
    while len(found) < width:
        ask = AskEntries(first + len(found), width - len(found))
        answer = await log.line.call("entries", pack(ask), timeout_s=timeouts.PIECE_S, large_answer=True)
        found += (part := bundled(answer))
        if not part or len(found) > width:
            raise EncodingError("no entries, or more than were asked for")
    return found


async def bring_cosignature(log: LogClient, size: int, cosignature: Cosignature) -> None:
    """Bring the log this node's cosignature of its head of ``size`` entries.

    Raises:
        Unreachable: no answer.
        Refused: the log does not take it; the reason is its.
    """
    await log.line.call("cosigned", pack(Cosigned(size, cosignature)), timeout_s=timeouts.CALL_S)


async def proof_between(log: LogClient, before: TreeHead, after: TreeHead) -> tuple[bytes, ...]:
    """Return what proves that a head goes on from another; where no operator gives that, what the last one gave.

    Raises:
        Unreachable: no answer.
        Refused: none gave anything, as they say.
        RemoteFault: it is no proof.
    """
    refused: Refused | None = None
    proof: tuple[bytes, ...] | None = None
    for _ in log.operators.keys:
        try:
            proof = await ask_consistency(log, before.size, after.size)
        except Refused as error:
            refused = error
        else:
            if departure(before, after, proof) is None:
                return proof
        log.line.turn_away("it does not prove that the log's heads are of one history")
    if proof is None and refused is not None:
        raise refused
    return proof or ()


async def departure_from(log: LogClient, held: ProvenCommit) -> tuple[Departure | None, ShownHead]:
    """Return how the log departs from a commit that it is shown (None: it goes on from there), and what it shows.

    Where an operator shows no log that goes on from there the next one is asked; if none does, it is what the last one shows.

    Raises:
        Unreachable: no answer.
        RemoteFault: what it answers is no tree head of this log.
    """
    for _ in log.operators.keys:
        shown = await ask_head(log, held)
        head = log.operators.open(shown.tree_head)
        found = departure(held.proven.tree_head, head, shown.consistency)
        if found is None or found is Departure.FORKED:
            break
        log.line.turn_away(f"it shows {head.size} entries, not proven to go on from {held.proven.tree_head.size}")
    return found, shown


def name_of(run: bytes) -> str:
    """Return under which name the heads of a run's logs are."""
    return f"manta-{run.hex()}-head"


async def publish_newest(endpoint: Endpoint, run: bytes, receipt: Receipt) -> bool:
    """Put a log's newest commit under its run's name, as its own record; False: it is too large for a record.

    Raises:
        MantaError: the DHT cannot be reached.
    """
    data = pack(receipt)
    if len(data) > MAX_RECORD_BYTES:
        return False
    await endpoint.publish(name_of(run), data, ttl_s=LIVES_S)
    return True


async def look_up_newest(endpoint: Endpoint, run: bytes, log: LogClient) -> list[ProvenCommit]:
    """Return the commits that operators put under the run's name, proven; what does not hold is left out.

    Raises:
        MantaError: the DHT cannot be reached.
    """
    records = await endpoint.lookup(name_of(run))
    found = []
    for key in log.operators.keys:
        with contextlib.suppress(RemoteFault):  # an older record of another form, at worst: a head is what holds, or nothing
            if key in records:
                found.append(log.open(records[key]))
    return found
