"""Blobs: their roots, and the blob store that hands them out within its bounds."""

import array
import asyncio

import pytest

from manta_swarm.network.blobs import (
    BUSY,
    HASHES,
    MAX_PIECE_BYTES,
    MAX_PIECES,
    METHOD,
    NOT_HERE,
    NOT_YET,
    AskPiece,
    Blob,
    BlobStore,
    PartialBlob,
    sizes_of,
)
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rpc import MAX_MESSAGE_BYTES, Refused
from manta_swarm.protocol import merkle
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.signing import PublicKey, sha256

pytestmark = pytest.mark.virtual_time
HERE, THERE, OTHER = (PublicKey(sha256(b"node %d" % i)) for i in range(3))


def blob_of(name: bytes, num_pieces: int = 3, size: int = 10) -> Blob:
    return Blob.of(name.ljust(size - 1, b".") + bytes([i]) for i in range(num_pieces))


def test_a_root_is_that_of_rfc_9162_over_the_pieces() -> None:
    blob = Blob.of([b"a", b"bc", b""])
    a, bc, nothing = (sha256(b"\x00" + piece) for piece in (b"a", b"bc", b""))
    assert blob.root == sha256(b"\x01" + sha256(b"\x01" + a + bc) + nothing)
    assert blob.hashes == (a, bc, nothing)
    assert (blob.size_bytes, blob.join()) == (3, b"abc")


def test_the_root_of_one_piece_is_its_leaf_hash() -> None:
    assert Blob.of([b"piece"]).root == merkle.leaf_hash(b"piece")


def test_a_view_of_anything_is_taken_as_its_bytes() -> None:
    values = array.array("f", [1.0, 2.0, 3.0])
    blob = Blob.of([memoryview(values)])
    assert blob == Blob.of([values.tobytes()])
    assert blob.size_bytes == 12


@pytest.mark.parametrize(("size", "sizes"), [(0, [0]), (1, [1]), (9, [9]), (10, [10]), (11, [10, 1]), (20, [10, 10]), (25, [10, 10, 5])])
def test_bytes_are_cut_into_pieces_of_one_size_and_a_rest(size: int, sizes: list[int]) -> None:
    data = bytes(range(size))
    blob = Blob.cut(data, 10)
    assert [len(piece) for piece in blob.pieces] == sizes == sizes_of(size, 10)
    assert blob.join() == data


def test_what_cannot_travel_makes_no_blob() -> None:
    with pytest.raises(ValueError, match="pieces"):
        Blob.of([])
    with pytest.raises(ValueError, match="bytes"):
        Blob.of([bytes(MAX_PIECE_BYTES + 1)])
    with pytest.raises(ValueError, match="pieces"):
        Blob.of([b""] * (MAX_PIECES + 1))
    assert MAX_PIECES * merkle.HASH_BYTES <= MAX_PIECE_BYTES < MAX_MESSAGE_BYTES


def test_the_oldest_leave_when_the_budget_is_spent_but_the_newest_two_of_each_kind_stay() -> None:
    blob_store = BlobStore(max_bytes=100)
    states = [blob_of(b"state %d" % i) for i in range(3)]  # 30 bytes each
    for blob in states:
        blob_store.put(blob, "state")
    assert all(blob_store.get(blob.root) for blob in states)
    bodies = [blob_of(b"body %d" % i) for i in range(4)]
    for blob in bodies:
        assert blob_store.put(blob, "body") == blob.root
    assert [blob_store.get(blob.root) for blob in states] == [None, *states[1:]]
    assert [blob_store.get(blob.root) for blob in bodies] == [None, None, *bodies[2:]]


def test_within_the_budget_age_alone_decides() -> None:
    blob_store = BlobStore(max_bytes=150)
    blobs = [blob_of(b"%d" % i) for i in range(6)]
    for blob in blobs[:5]:
        blob_store.put(blob, "body")
    blob_store.put(blobs[0], "body")  # new again
    blob_store.put(blobs[5], "body")
    assert [blob_store.get(blob.root) is not None for blob in blobs] == [True, False, True, True, True, True]


def test_of_states_and_means_the_newest_few_stay_however_much_room_there_is() -> None:
    blob_store = BlobStore(max_bytes=10**6)
    blobs = {kind: [blob_of(b"%s %d" % (kind.encode(), i)) for i in range(36)] for kind in ("state", "mean", "body")}
    for kind, own in blobs.items():
        for blob in own:
            blob_store.put(blob, kind)
    kept = {kind: [blob_store.get(blob.root) is not None for blob in own] for kind, own in blobs.items()}
    newest = [False] * 4 + [True] * 32
    assert kept == {"state": newest, "mean": newest, "body": [True] * 36}


def test_what_is_pinned_stays_whatever_comes_after_it() -> None:
    blob_store = BlobStore(max_bytes=0)
    pinned = blob_of(b"pinned")
    assert blob_store.pin(pinned) == pinned.root
    for i in range(5):
        blob_store.put(blob_of(b"%d" % i), "state")
    assert blob_store.get(pinned.root) == pinned
    assert blob_store.get(blob_of(b"2").root) is None


class Server:
    """A blob store on a network, and who asks."""

    def __init__(self, **settings: int) -> None:
        self.network = MemoryNetwork()
        self.here, self.other = self.network.endpoint(HERE), self.network.endpoint(OTHER)
        self.blob_store = BlobStore(**{"max_bytes": 1000, **settings})

    async def start(self) -> "Server":
        await self.blob_store.serve(self.network.endpoint(THERE))
        return self

    async def ask(self, blob: Blob, place: int, asker: MemoryEndpoint | None = None) -> bytes:
        return await (asker or self.here).call(THERE, METHOD, pack(AskPiece(blob.root, place)), timeout_s=10)


async def test_pieces_and_hashes_are_handed_out_by_root_and_place() -> None:
    blob = blob_of(b"blob")
    server = await Server().start()
    server.blob_store.put(blob, "body")
    assert [await server.ask(blob, place) for place in range(3)] == list(blob.pieces)
    assert await server.ask(blob, HASHES) == b"".join(blob.hashes)
    with pytest.raises(Refused, match=f"^{NOT_HERE}$"):
        await server.ask(blob_of(b"other"), 0)
    with pytest.raises(Refused, match="no piece 3"):
        await server.ask(blob, 3)


async def test_of_a_blob_that_grows_is_handed_out_what_is_there() -> None:
    blob = blob_of(b"blob")
    server = await Server().start()
    partial_blob = PartialBlob(blob.root, blob.hashes)
    server.blob_store.grow(partial_blob, "body", blob.size_bytes)
    assert (server.blob_store.get(blob.root), server.blob_store.partial_blob(blob.root)) == (None, partial_blob)
    partial_blob.pieces[1] = bytes(blob.pieces[1])
    assert partial_blob.missing == [0, 2]
    assert await server.ask(blob, 1) == blob.pieces[1]
    assert await server.ask(blob, HASHES) == b"".join(blob.hashes)
    with pytest.raises(Refused, match=f"^{NOT_YET}$"):
        await server.ask(blob, 0)
    server.blob_store.put(blob, "body")
    assert (server.blob_store.get(blob.root), server.blob_store.partial_blob(blob.root)) == (blob, None)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"garbage",
        b"\x82\x58\x20" + bytes(32) + b"\x21",  # place -2
        b"\x82\x58\x1f" + bytes(31) + b"\x00",  # a root of 31 bytes
        b"\x82\x58\x20" + bytes(32) + b"\x18\x00",  # not canonical
        b"\x83\x58\x20" + bytes(32) + b"\x00\x00",
        pack(AskPiece(bytes(32), 0)) + bytes(100),
    ],
)
async def test_a_malformed_request_is_refused(request_bytes: bytes) -> None:
    server = await Server().start()
    with pytest.raises(Refused) as caught:
        await server.here.call(THERE, METHOD, request_bytes, timeout_s=1)
    assert str(caught.value) not in (BUSY, NOT_HERE, NOT_YET)


async def outcomes(*calls: asyncio.Task[bytes]) -> list[bool]:
    """Return which calls were answered; the others were refused as too many."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, bytes) or str(result) == BUSY for result in results)
    return [isinstance(result, bytes) for result in results]


async def test_one_caller_gets_eight_answers_at_once_and_another_is_served_beside_it() -> None:
    blob = blob_of(b"blob", 12)
    server = await Server().start()
    server.blob_store.put(blob, "body")
    server.network.delay_s = lambda *_: 1.0
    greedy = [asyncio.create_task(server.ask(blob, place)) for place in range(12)]
    other = asyncio.create_task(server.ask(blob, 0, server.other))
    assert await outcomes(*greedy, other) == [True] * 8 + [False] * 4 + [True]
    assert await server.ask(blob, 0)


async def test_so_many_bytes_are_on_their_way_at_once_and_not_more() -> None:
    blob, large = blob_of(b"blob", 4), Blob.of([bytes(50)])
    server = await Server(max_sending_bytes=25).start()
    server.blob_store.put(blob, "body")
    server.blob_store.put(large, "body")
    server.network.delay_s = lambda *_: 1.0
    assert await outcomes(*(asyncio.create_task(server.ask(blob, place)) for place in range(4))) == [True, True, False, False]
    both = [asyncio.create_task(server.ask(large, 0)), asyncio.create_task(server.ask(blob, 0, server.other))]
    assert await outcomes(*both) == [True, False]  # one that is too large by itself goes alone


async def test_a_caller_that_gives_up_makes_room_for_others() -> None:
    blob = blob_of(b"blob")
    server = await Server(max_sending_bytes=10).start()
    server.blob_store.put(blob, "body")
    server.network.delay_s = lambda caller, *_: 1000.0 if caller == OTHER else 1.0
    stalled = asyncio.create_task(server.ask(blob, 0, server.other))
    await asyncio.sleep(0.1)
    assert await outcomes(asyncio.create_task(server.ask(blob, 0))) == [False]
    stalled.cancel()
    await asyncio.wait([stalled])
    assert await outcomes(asyncio.create_task(server.ask(blob, 0))) == [True]
