"""Files as blobs: lent from the disk and fetched to it, from sources that lie, over breaks of the download; what is damaged is not sent."""

import asyncio
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from manta_swarm.network.blobs import HASHES, METHOD, NOT_HERE, AskPiece, Blob, BlobStore
from manta_swarm.network.fetching import fetch_file
from manta_swarm.network.file_blobs import FileBlob, FileName, FilePart
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, StorageError, Unreachable
from manta_swarm.protocol.signing import PublicKey, sha256
from tests.memory_log import until
from tests.network.test_fetching import Noted

PIECE_BYTES = 1000
DATA = random.Random(3).randbytes(19 * PIECE_BYTES + 17)
ROOT = Blob.cut(DATA, PIECE_BYTES).root
KEYS = [PublicKey(sha256(b"node %d" % i)) for i in range(4)]


def _name(folder: Path) -> FileName:
    folder.mkdir(exist_ok=True)
    return FileName(folder / "file.bin", ROOT, len(DATA), PIECE_BYTES)


class Swarm:
    """Endpoint 0 fetches to a folder; every other one lends a file of its own, and ``asked`` says what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = MemoryNetwork(delay_s=lambda *_: 0.001)
        self.here = self.network.endpoint(KEYS[0])
        self.name = _name(folder / "here")
        self.asked: list[tuple[PublicKey, int]] = []
        self.noted = Noted()

    async def add(self, data: bytes = DATA, *, lies: bool = False) -> Path:
        """Add a source with a file of these bytes; one that lies sends each piece with its first byte changed."""
        key = KEYS[len(self.network.endpoints)]
        endpoint, name = self.network.endpoint(key), _name(self.folder / key.hex()[:8])
        name.path.write_bytes(data)
        blob_store = BlobStore(max_bytes=0)
        blob_store.lend(name.root, FileBlob(name))
        await blob_store.serve(endpoint)
        await blob_store.serve(endpoint)
        honest = endpoint.handlers[METHOD]

        async def answer(caller: PublicKey, request: bytes) -> bytes:
            place = unpack(AskPiece, request, max_bytes=128).place
            self.asked.append((key, place))
            data = await honest(caller, request)
            return bytes([data[0] ^ 1]) + data[1:] if lies and place != HASHES else data

        endpoint.handlers[METHOD] = answer
        return name.path

    async def fetch(self, deadline_s: float = 60.0) -> None:
        await fetch_file(
            self.here,
            self.name,
            list(self.network.endpoints),
            deadline_s=deadline_s,
            judge=self.noted,
            progress=self.noted,
            rng=random.Random(1),
        )

    def files(self) -> list[str]:
        return sorted(os.listdir(self.name.path.parent))


async def test_a_file_comes_from_several_sources_and_is_there_when_it_is_whole(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.add()
    await swarm.add()
    assert not swarm.name.is_here
    await swarm.fetch()
    assert swarm.name.is_here
    assert swarm.name.path.read_bytes() == DATA
    assert swarm.files() == ["file.bin"]
    assert swarm.noted.counts == list(range(21))
    assert {key for key, _ in swarm.asked} == set(KEYS[1:3])


async def test_who_sends_other_bytes_is_named_and_not_asked_again(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.add(lies=True)
    await swarm.add()
    await swarm.fetch()
    assert swarm.name.path.read_bytes() == DATA
    assert [key for key, _ in swarm.noted.wrong] == [KEYS[1]]
    assert len([place for key, place in swarm.asked if key == KEYS[1] and place != HASHES]) <= 4  # those in flight at once


async def test_what_a_broken_download_left_is_checked_and_used(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    left = bytearray(DATA)
    left[3 * PIECE_BYTES] ^= 1
    left[12 * PIECE_BYTES :] = bytes(len(DATA) - 12 * PIECE_BYTES)
    (swarm.name.path.parent / "file.bin.part").write_bytes(left + b"too long")
    await swarm.add()
    await swarm.fetch()
    assert swarm.name.path.read_bytes() == DATA
    assert sorted(place for _, place in swarm.asked if place != HASHES) == [3, *range(12, 20)]
    assert swarm.noted.counts[0] == 11


async def test_a_download_that_nobody_can_end_leaves_what_came_for_the_next_try(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.add(lies=True)
    with pytest.raises(Unreachable, match="nobody is left who could"):
        await swarm.fetch()
    assert swarm.files() == ["file.bin.part"]
    await swarm.add()
    await swarm.fetch()
    assert swarm.files() == ["file.bin"]


async def _asked(endpoint: MemoryEndpoint, place: int) -> bytes:
    request = bytes.fromhex("825820") + ROOT + (b"\x20" if place == HASHES else bytes([place]))
    return await endpoint.call(KEYS[1], METHOD, request, timeout_s=5)


async def test_a_file_that_is_damaged_cut_or_gone_is_not_sent(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    path = await swarm.add()
    assert len(await _asked(swarm.here, HASHES)) == 20 * 32
    assert await _asked(swarm.here, 1) == DATA[PIECE_BYTES : 2 * PIECE_BYTES]
    path.write_bytes(DATA[: PIECE_BYTES + 5])
    assert await _asked(swarm.here, 0) == DATA[:PIECE_BYTES]
    for place in (1, 2):
        with pytest.raises(Refused, match=NOT_HERE):
            await _asked(swarm.here, place)
    path.unlink()
    with pytest.raises(Refused, match=NOT_HERE):
        await _asked(swarm.here, 0)
    with pytest.raises(Refused, match="no piece 20"):
        await _asked(swarm.here, 20)


@pytest.mark.parametrize("data", [b"", DATA[:-1], b"!" + DATA[1:], DATA + b"!"])
def test_of_a_file_that_is_another_nothing_is_said(tmp_path: Path, data: bytes) -> None:
    name = _name(tmp_path / "own")
    name.path.write_bytes(data)
    blob = FileBlob(name)
    assert blob.hashes() is None
    assert blob.piece(5) is None


def test_a_disk_that_refuses_says_so(tmp_path: Path) -> None:
    name = _name(tmp_path / "own")
    (tmp_path / "own" / "file.bin.part").mkdir()
    with pytest.raises(StorageError, match="check the disk"):
        FilePart(name, Blob.cut(DATA, PIECE_BYTES).hashes)


@pytest.mark.parametrize(("size", "piece"), [(0, 10), (10, 0), (10**12, 10), (10, 2**21)])
def test_what_cannot_travel_is_no_name(tmp_path: Path, size: int, piece: int) -> None:
    with pytest.raises(ValueError, match="do not travel"):
        FileName(tmp_path, ROOT, size, piece)


async def test_strangers_newcomers_do_not_take_the_places_of_what_a_round_needs(tmp_path: Path) -> None:
    """Whoever asks for pieces of files, however many: what is in memory is answered as if nobody did."""
    blob_store = BlobStore(max_bytes=10**6)
    held, is_full = asyncio.Event(), asyncio.Semaphore(0)

    name = _name(tmp_path / "lent")
    name.path.write_bytes(DATA)
    blob_store.lend(name.root, FileBlob(name))
    root = blob_store.put(Blob.of([b"a body"]), "body")
    crowd = [PublicKey(sha256(b"stranger %d" % i)) for i in range(40)]
    request = bytes.fromhex("825820") + ROOT + b"\x00"

    async def stranger(key: PublicKey) -> str:
        try:
            await blob_store._answer(key, request)
        except Unreachable as error:
            is_full.release()
            return str(error)
        await held.wait()  # it takes its answer slowly
        return "sent"

    calls = [asyncio.create_task(stranger(key)) for key in crowd]
    for _ in range(40 - 15):
        await is_full.acquire()
    assert await blob_store._answer(KEYS[3], bytes.fromhex("825820") + root + b"\x00") == b"a body"
    held.set()
    assert sorted(await asyncio.gather(*calls)) == ["busy"] * 25 + ["sent"] * 15


async def test_files_that_are_read_for_strangers_take_no_thread_of_others(tmp_path: Path) -> None:
    class Slow:
        num_pieces = 2

        def __init__(self) -> None:
            self.may_end = threading.Event()
            self.num_reading = 0

        def hashes(self) -> tuple[bytes, ...] | None:
            self.num_reading += 1
            self.may_end.wait()
            return None

        def piece(self, _place: int) -> bytes | None:
            raise AssertionError

    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    network, slow, blob_store = MemoryNetwork(), Slow(), BlobStore(max_bytes=0)
    blob_store.lend(ROOT, slow)
    await blob_store.serve(network.endpoint(KEYS[0]))
    request = pack(AskPiece(ROOT, HASHES))
    asking = [asyncio.create_task(network.endpoint(KEYS[1]).call(KEYS[0], METHOD, request, timeout_s=60)) for _ in range(6)]
    try:
        async with asyncio.timeout(60):
            await until(lambda: slow.num_reading == 2)
            assert await asyncio.to_thread(lambda: slow.num_reading) == 2
    finally:
        slow.may_end.set()
    assert all(isinstance(each, Refused) for each in await asyncio.gather(*asking, return_exceptions=True))


def test_an_ask_is_what_the_tests_write_by_hand() -> None:
    assert unpack(AskPiece, bytes.fromhex("825820") + ROOT + b"\x20", max_bytes=128) == AskPiece(ROOT, HASHES)
    with pytest.raises(EncodingError):
        unpack(AskPiece, bytes.fromhex("825820") + ROOT + b"\x21", max_bytes=128)
