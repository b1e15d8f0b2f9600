"""Getting blobs from others: piece by piece, from several sources side by side, each piece believed once it has its hash.

A source that lacks a piece, is busy or is away rests for a moment, then it may be asked again: it may have got the piece meanwhile. One
that sends wrong bytes is not asked again. When a piece takes longer than others took, another source is asked beside the first, and the
first right answer counts; so nobody who stalls holds up the whole. Sources may come to be known meanwhile (``Sources``), and some of
them may be kept for when the others do not do: the log, which everybody could ask.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from manta_swarm.network.blobs import HASHES, MAX_PIECE_BYTES, MAX_PIECES, Arriving, Blob, BlobStore, PartialBlob, ProvenPiece
from manta_swarm.network.fetch_calls import FetchCalls, Judge
from manta_swarm.network.file_blobs import FileName, FilePart
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.sources import Sources
from manta_swarm.protocol import merkle
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.signing import Digest, PublicKey


class FetchProgress(Protocol):
    """Sees how far a blob is."""

    def arrived(self, count: int) -> None:
        """Take note that so many of a blob's pieces are here."""
        ...


async def fetch(
    endpoint: Endpoint,
    root: bytes,
    max_sizes: Sequence[int],
    sources: Iterable[PublicKey] | Sources,
    *,
    deadline_s: float,
    tries: int | None = None,
    blob_store: BlobStore | None = None,
    kind: str = "fetched",
    judge: Judge | None = None,
    progress: FetchProgress | None = None,
    rng: random.Random | None = None,
) -> Blob:
    """Return the blob with ``root``.

    Args:
        max_sizes: how many bytes each piece can have, and so how many pieces there are.
        sources: who may have it, those to be asked first in front.
        tries: give up before the deadline, where there is another way to what is wanted, once one source said so many times in a row that
            it has nothing of it, and the others said that or nothing: the first spare one, or where there is none the first of all. While
            that one does not answer nothing is given up.
        blob_store: where it may be already; pieces are handed out from there as they arrive, and what has arrived by the deadline stays for
            the next try. The whole is put there as ``kind``.
        judge: is told who sent bytes that cannot be right, once for each source, and what was wrong.
        progress: is told at each piece that arrives how many there are by now.
        rng: of the order of the pieces, and of rests.

    Raises:
        Unreachable: nobody gave it within ``deadline_s``, or after ``tries``; the message says what each source answered.
    """
    _check_sizes(max_sizes)
    here = blob_store.get(root) if blob_store is not None else None
    if here is not None:
        return here
    async with _calling(endpoint, root, sources, deadline_s, tries, judge, rng) as calls:
        partial_blob = await _begin(calls, max_sizes, blob_store, kind)
        await _take_pieces(calls, partial_blob, max_sizes, partial_blob.missing, progress)
    blob = partial_blob.blob()
    if blob_store is not None:
        blob_store.put(blob, kind)
    return blob


async def fetch_piece(
    endpoint: Endpoint,
    root: bytes,
    max_sizes: Sequence[int],
    place: int,
    sources: Iterable[PublicKey] | Sources,
    *,
    deadline_s: float,
    tries: int | None = None,
    blob_store: BlobStore | None = None,
    judge: Judge | None = None,
    rng: random.Random | None = None,
) -> ProvenPiece:
    """Return one piece of the blob with ``root``, with the proof that it is; arguments and failures are those of ``fetch``.

    Nothing is put into the blob store.
    """
    _check_sizes(max_sizes)
    if not 0 <= place < len(max_sizes):
        raise ValueError(f"a blob of {len(max_sizes)} pieces has no piece {place}")
    here = blob_store.get(root) if blob_store is not None else None
    if here is not None:
        return here.proven(place)
    async with _calling(endpoint, root, sources, deadline_s, tries, judge, rng) as calls:
        partial_blob = await _begin(calls, max_sizes, None, "")
        await _take_pieces(calls, partial_blob, max_sizes, [place], None)
    return partial_blob.proven(place)


async def fetch_file(
    endpoint: Endpoint,
    name: FileName,
    sources: Iterable[PublicKey] | Sources,
    *,
    deadline_s: float,
    judge: Judge | None = None,
    progress: FetchProgress | None = None,
    rng: random.Random | None = None,
) -> None:
    """Write a blob to its file, which is there, under its name, when this returns; what an earlier try left of it is used.

    Arguments and failures are those of ``fetch``. ``progress`` is told at once how many pieces an earlier try left.

    Raises:
        StorageError: the disk refuses.
    """
    sizes = name.sizes
    async with _calling(endpoint, name.root, sources, deadline_s, None, judge, rng) as calls:
        hashes = (name.root,) if len(sizes) == 1 else await _take_hashes(calls, len(sizes))
        part = await asyncio.to_thread(FilePart, name, hashes)
        with part:
            if progress is not None:
                progress.arrived(len(sizes) - len(part.missing))
            await _take_pieces(calls, part, sizes, part.missing, progress)
            await asyncio.to_thread(part.finish)


def _check_sizes(max_sizes: Sequence[int]) -> None:
    if not 1 <= len(max_sizes) <= MAX_PIECES or not 0 <= min(max_sizes) <= max(max_sizes) <= MAX_PIECE_BYTES:
        raise ValueError(f"a blob has 1 to {MAX_PIECES} pieces of at most {MAX_PIECE_BYTES} bytes")


@asynccontextmanager
async def _calling(
    endpoint: Endpoint,
    root: bytes,
    sources: Iterable[PublicKey] | Sources,
    deadline_s: float,
    tries: int | None,
    judge: Judge | None,
    rng: random.Random | None,
) -> AsyncIterator[FetchCalls]:
    """Yield what calls the sources, for as long as ``deadline_s``; at the end no call is in flight."""
    known = sources if isinstance(sources, Sources) else Sources(sources)
    calls = FetchCalls(endpoint, Digest(bytes(root)), known, deadline_s, tries, judge, rng or random.Random())
    try:
        async with asyncio.timeout(deadline_s):
            yield calls
    except TimeoutError:
        raise Unreachable(calls.story(f"within {deadline_s:g} s")) from None
    finally:
        await calls.cancel()


async def _begin(calls: FetchCalls, max_sizes: Sequence[int], blob_store: BlobStore | None, kind: str) -> PartialBlob:
    """Return what is here of the blob, at least its hashes."""
    if len(max_sizes) == 1:
        return PartialBlob(calls.root, (calls.root,))
    partial_blob = blob_store.partial_blob(calls.root) if blob_store is not None else None
    if partial_blob is None:
        partial_blob = PartialBlob(calls.root, await _take_hashes(calls, len(max_sizes)))
        if blob_store is not None:
            blob_store.grow(partial_blob, kind, sum(max_sizes))
    return partial_blob


async def _take_hashes(calls: FetchCalls, num_pieces: int) -> tuple[bytes, ...]:
    taker = _Hashes(calls.root, num_pieces)
    await calls.gather({HASHES: num_pieces * merkle.HASH_BYTES}, taker)
    return taker.hashes


async def _take_pieces(
    calls: FetchCalls, arriving: Arriving, max_sizes: Sequence[int], places: Sequence[int], progress: FetchProgress | None
) -> None:
    # In an order of its own: those who fetch the same at the same time have different pieces for each other.
    sizes = {place: max_sizes[place] for place in calls.rng.sample(places, len(places))}
    await calls.gather(sizes, _Pieces(arriving, max_sizes, progress))


class _Hashes:
    """The hashes of a blob's pieces. Implements ``network.fetch_calls.Taker``."""

    def __init__(self, root: bytes, num_pieces: int) -> None:
        self.hashes: tuple[bytes, ...] = ()
        self._root = root
        self._num_pieces = num_pieces

    def take(self, place: int, data: bytes) -> None:
        del place
        if len(data) != self._num_pieces * merkle.HASH_BYTES:
            raise EncodingError(f"{len(data)} bytes are not the hashes of {self._num_pieces} pieces")
        found = tuple(data[start : start + merkle.HASH_BYTES] for start in range(0, len(data), merkle.HASH_BYTES))
        if merkle.root(found) != self._root:
            raise EncodingError("hashes that do not have the root")
        self.hashes = found


class _Pieces:
    """The pieces of a blob that arrives. Implements ``network.fetch_calls.Taker``."""

    def __init__(self, arriving: Arriving, max_sizes: Sequence[int], progress: FetchProgress | None) -> None:
        self._arriving = arriving
        self._max_sizes = max_sizes
        self._progress = progress

    def take(self, place: int, data: bytes) -> None:
        arriving, most = self._arriving, self._max_sizes[place]
        if len(data) > most:
            raise EncodingError(f"{len(data)} bytes for piece {place}, which has at most {most}")
        if merkle.leaf_hash(data) != arriving.hashes[place]:
            raise EncodingError(f"other bytes than those of piece {place}")
        arriving.put(place, data)
        if self._progress is not None:
            self._progress.arrived(len(self._max_sizes) - len(arriving.missing))
