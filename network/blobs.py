"""Blobs, bytes in pieces under a Merkle root, and the blob store from which a node hands them out.

``network.fetching`` gets those of others.

A blob's root is that of RFC 9162 section 2.1 over the leaf hashes of its pieces: whoever knows the root and the number of pieces checks
each piece by itself, and may take it from anybody.
"""

import asyncio
import concurrent.futures
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol import merkle
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.signing import Digest, PublicKey
from manta_swarm.runtime.in_flight import InFlight, answered_call

MAX_PIECE_BYTES = 1024 * 1024 + 64 * 1024  # a group of 2^18 float32 values, or something a little longer
MAX_PIECES = MAX_PIECE_BYTES // merkle.HASH_BYTES  # so that their hashes are no longer than a piece
MAX_REQUEST_BYTES = 128

METHOD = "blob"
HASHES = -1  # the place of the hashes of all pieces

# Refusals that who asks can tell apart; any other means the same as NOT_HERE.
BUSY = "busy"  # ask another
NOT_HERE = "not here"  # nothing of this blob
NOT_YET = "not here yet"  # some of this blob, but not this piece

_MAX_CALLS = 8  # of one key, answered at the same time
_MAX_SENDING_BYTES = 64 * 1024 * 1024
_MAX_LENT_BYTES = 16 * 1024 * 1024  # of them of what is lent: newcomers who get a whole data set leave room for what a round needs
_LENT_THREADS = 2  # that read what is lent, of which a file's first piece takes all of it: of their own, for others wait for the loop's
_KEPT = 2  # of each kind, whatever the others take
_MOST = {"state": 32, "mean": 32}  # each round has one, and a commit leads to the newest: older ones are for who began to get them then


@dataclass(frozen=True, slots=True)
class AskPiece:
    """A request for a piece, or for ``HASHES``."""

    root: bytes
    place: int

    def __post_init__(self) -> None:
        check_digest(self.root, "root")
        if self.place < HASHES:
            raise ValueError(f"no piece has the place {self.place}")


@dataclass(frozen=True, slots=True)
class Blob:
    """Pieces, their leaf hashes and the root over these. Nobody changes what a piece is a view of while the blob is in use."""

    pieces: tuple[bytes | memoryview, ...]
    hashes: tuple[bytes, ...]
    root: Digest

    @classmethod
    def of(cls, pieces: Iterable[bytes | memoryview]) -> "Blob":
        """Return the blob of ``pieces``, in order. Hashes them all, about a second for each GiB.

        Raises:
            ValueError: none, too many, or one that is too large.
        """
        kept = tuple(memoryview(piece).cast("B") if isinstance(piece, memoryview) else piece for piece in pieces)
        if not 1 <= len(kept) <= MAX_PIECES:
            raise ValueError(f"a blob has 1 to {MAX_PIECES} pieces, not {len(kept)}")
        if max(map(len, kept)) > MAX_PIECE_BYTES:
            raise ValueError(f"a piece has at most {MAX_PIECE_BYTES} bytes, not {max(map(len, kept))}")
        hashes = tuple(merkle.leaf_hash(bytes(piece)) for piece in kept)
        return cls(kept, hashes, Digest(merkle.root(hashes)))

    @classmethod
    def cut(cls, data: bytes | memoryview, piece_bytes: int) -> "Blob":
        """Return ``data`` in pieces of ``piece_bytes``, the last one of what is left; see ``sizes_of``."""
        view = memoryview(data).cast("B")
        ends = range(piece_bytes, max(len(view), 1) + piece_bytes, piece_bytes)
        return cls.of(view[end - piece_bytes : end] for end in ends)

    @property
    def size_bytes(self) -> int:
        """The bytes of all pieces together."""
        return sum(map(len, self.pieces))

    def proven(self, place: int) -> "ProvenPiece":
        """Return a piece with the proof that it is this blob's."""
        return ProvenPiece(bytes(self.pieces[place]), tuple(merkle.inclusion_proof(self.hashes, place)))

    def join(self) -> bytes:
        """Return the pieces as one byte string."""
        return b"".join(self.pieces)


@dataclass(frozen=True, slots=True)
class ProvenPiece:
    """A piece of a blob, and its inclusion proof under the root."""

    data: bytes
    proof: tuple[bytes, ...]

    def check(self, root: bytes, place: int, num_pieces: int) -> None:
        """Check that this is piece ``place`` of the blob with ``root``, which has so many.

        Raises:
            ProofError: it is not.
        """
        merkle.verify_inclusion(merkle.leaf_hash(self.data), place, num_pieces, list(self.proof), root)


def sizes_of(num_bytes: int, piece_bytes: int) -> list[int]:
    """Return the sizes of the pieces that ``Blob.cut`` makes of ``num_bytes``."""
    return [min(piece_bytes, num_bytes - start) for start in range(0, max(num_bytes, 1), piece_bytes)]


class PartialBlob:
    """A blob whose hashes are here, and of its pieces those that have arrived so far. Only pieces with the right hash are put in."""

    def __init__(self, root: Digest, hashes: tuple[bytes, ...]) -> None:
        self.root = root
        self.hashes = hashes
        self.pieces: list[bytes | None] = [None] * len(hashes)

    @property
    def missing(self) -> list[int]:
        """The places of the pieces that have not arrived."""
        return [place for place, piece in enumerate(self.pieces) if piece is None]

    def put(self, place: int, data: bytes) -> None:
        """Take a piece, whose hash is known to be right."""
        self.pieces[place] = data

    def proven(self, place: int) -> ProvenPiece:
        """Return a piece that has arrived, with the proof that it is this blob's."""
        piece = self.pieces[place]
        assert piece is not None
        return ProvenPiece(piece, tuple(merkle.inclusion_proof(self.hashes, place)))

    def blob(self) -> Blob:
        """Return the whole."""
        pieces = tuple(piece for piece in self.pieces if piece is not None)
        assert len(pieces) == len(self.hashes)
        return Blob(pieces, self.hashes, self.root)


class Arriving(Protocol):
    """Where the pieces of a blob are put as they arrive: ``PartialBlob``, or a file."""

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of all pieces."""

    @property
    def missing(self) -> list[int]:
        """The places of the pieces that have not arrived."""

    def put(self, place: int, data: bytes) -> None:
        """Take a piece, whose hash is known to be right."""


class LazyBlob(Protocol):
    """A blob whose pieces are read when they are asked for: ``network.file_blobs.FileBlob``. Its methods are called in threads."""

    @property
    def num_pieces(self) -> int:
        """How many pieces the blob has."""

    def hashes(self) -> tuple[bytes, ...] | None:
        """Return the hashes of all pieces; None: it is not what it should be."""

    def piece(self, place: int) -> bytes | None:
        """Return a piece; None: it is not what it should be."""


@dataclass(frozen=True, slots=True)
class _Item:
    kind: str
    size_bytes: int  # of what grows: when it is whole
    content: Blob | PartialBlob


class Lender(Protocol):
    """Has blobs that do not lie in memory."""

    def find(self, root: bytes) -> LazyBlob | None:
        """Return the blob with this root; None: there is none. Does not block."""


class BlobStore:
    """What this node hands out by root: what was pinned, and the newest within a budget of bytes.

    Of each kind at least the newest two are kept, of states and means the newest few at most.
    """

    def __init__(self, *, max_bytes: int, max_sending_bytes: int = _MAX_SENDING_BYTES) -> None:
        """Start empty; answers with more than ``max_sending_bytes`` in all are never on their way at once, unless one alone has more."""
        self._items: OrderedDict[bytes, _Item] = OrderedDict()  # the newest last
        self._pinned: dict[bytes, Blob] = {}
        self._max_bytes = max_bytes
        self._sending = InFlight[_Answer](sys.maxsize, _MAX_CALLS, max_bytes=max_sending_bytes, fair=_MAX_CALLS)
        self._lent: dict[bytes, LazyBlob] = {}
        self._lenders: list[Lender] = []
        self._lending = InFlight[_Answer](sys.maxsize, _MAX_CALLS, max_bytes=_MAX_LENT_BYTES, fair=_MAX_CALLS)
        self._readers = concurrent.futures.ThreadPoolExecutor(_LENT_THREADS, "lent")  # threads come with the first that is asked for
        self._served: list[Endpoint] = []
        self.bytes_sent = 0

    def put(self, blob: Blob, kind: str) -> Digest:
        """Keep ``blob`` as the newest of all, and return its root."""
        self._add(blob.root, _Item(kind, blob.size_bytes, blob))
        return blob.root

    def pin(self, blob: Blob) -> Digest:
        """Keep ``blob`` for as long as this node lives, and return its root: for the few things that newcomers need at any time."""
        self._pinned[blob.root] = blob
        return blob.root

    def get(self, root: bytes) -> Blob | None:
        """Return the blob with this root if all of it is here."""
        content = self._content(root)
        return content if isinstance(content, Blob) else None

    def partial_blob(self, root: bytes) -> PartialBlob | None:
        """Return what is here of a blob that is not whole."""
        content = self._content(root)
        return content if isinstance(content, PartialBlob) else None

    def grow(self, partial_blob: PartialBlob, kind: str, size_bytes: int) -> None:
        """Hand out from now on what has arrived of a blob that will have at most ``size_bytes``; when it is whole, ``put`` it."""
        self._add(partial_blob.root, _Item(kind, size_bytes, partial_blob))

    def lend(self, root: Digest, blob: LazyBlob) -> None:
        """Hand out a blob that does not lie in memory, for as long as this node lives."""
        self._lent[root] = blob

    def lend_from(self, lender: Lender) -> None:
        """Hand out what ``lender`` has, for as long as this node lives."""
        self._lenders.append(lender)

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer "blob" calls of anybody, from the first time on that this is asked for."""
        if endpoint not in self._served:
            self._served.append(endpoint)
            await endpoint.serve(METHOD, self._answer)

    def _content(self, root: bytes) -> Blob | PartialBlob | None:
        item = self._items.get(root)
        return self._pinned.get(root) or (item.content if item else None)

    def _add(self, root: bytes, item: _Item) -> None:
        self._items[root] = item
        self._items.move_to_end(root)
        num_bytes = sum(each.size_bytes for each in self._items.values())
        num_kind = Counter(each.kind for each in self._items.values())
        for oldest, each in list(self._items.items()):
            is_too_old = num_kind[each.kind] > _MOST.get(each.kind, len(self._items))
            if is_too_old or (num_bytes > self._max_bytes and num_kind[each.kind] > _KEPT):
                del self._items[oldest]
                num_bytes -= each.size_bytes
                num_kind[each.kind] -= 1

    async def _answer(self, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskPiece, request, max_bytes=MAX_REQUEST_BYTES)
        content = self._content(ask.root)
        if content is None:
            found = (self._lent.get(ask.root), *(lender.find(ask.root) for lender in self._lenders))
            lent = next((each for each in found if each is not None), None)
            if lent is None:
                raise Unreachable(NOT_HERE)
            return await self._answer_of_lent(caller, lent, ask.place)
        if ask.place >= len(content.hashes):
            raise EncodingError(f"a blob of {len(content.hashes)} pieces has no piece {ask.place}")
        piece = b"".join(content.hashes) if ask.place == HASHES else content.pieces[ask.place]
        if piece is None:
            raise Unreachable(NOT_YET)
        _begin(self._sending, caller, len(piece))
        self.bytes_sent += len(piece)
        return bytes(piece)

    async def _answer_of_lent(self, caller: PublicKey, lent: LazyBlob, place: int) -> bytes:
        if place >= lent.num_pieces:
            raise EncodingError(f"a blob of {lent.num_pieces} pieces has no piece {place}")
        _begin(self._lending, caller, MAX_PIECE_BYTES)
        loop = asyncio.get_running_loop()
        if place == HASHES:
            hashes = await loop.run_in_executor(self._readers, lent.hashes)
            answer = None if hashes is None else b"".join(hashes)
        else:
            answer = await loop.run_in_executor(self._readers, lent.piece, place)
        if answer is None:
            raise Unreachable(NOT_HERE)
        self.bytes_sent += len(answer)
        return answer


class _Answer:
    """An answer on its way. Each call is answered in a task of its own, which ends once that is sent. Is ``runtime.in_flight.Occupant``."""

    address = ""

    def __init__(self, key: PublicKey, num_bytes: int) -> None:
        self.key = key
        self.num_bytes = num_bytes
        self._call = answered_call()  # None: of an endpoint that gives no places, where nothing is idle

    @property
    def ahead_s(self) -> float:
        """See ``Occupant``."""
        return 0.0 if self._call is None else self._call.ahead_s

    def lag_s(self, ahead_s: float) -> float:
        """See ``Occupant``."""
        return -math.inf if self._call is None else self._call.lag_s(ahead_s)

    def cut(self) -> None:
        """See ``Occupant``."""
        if self._call is not None:
            self._call.give_way()


def _begin(answers: InFlight[_Answer], caller: PublicKey, num_bytes: int) -> None:
    """Count an answer of ``num_bytes`` until the current task is over; for room, an answer that its caller does not take is cut.

    Raises:
        Unreachable: too much is on its way, in all or to this caller.
    """
    answer, task = _Answer(caller, num_bytes), asyncio.current_task()
    if not answers.take(answer):
        raise Unreachable(BUSY)
    assert task is not None
    task.add_done_callback(lambda _: answers.leave(answer))
