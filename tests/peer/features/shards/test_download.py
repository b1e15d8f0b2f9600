"""A data set that comes to a folder over the network in memory: from others first, over breaks and liars; what is there is kept."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.states.opening import lend_shards
from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.layout import LIST_NAME, ShardList, parse_list, travelling
from manta_swarm.automl.data.shards.sharded import ShardedImages
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.network.blobs import HASHES, METHOD, BlobStore
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.peer_status import FETCHING
from manta_swarm.peer.dashboard.text import progress
from manta_swarm.peer.features.shards.download import Download, Holders
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.manifest import PIECE_BYTES, Manifest
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.runtime.console import PrintingConsole
from tests.automl.data.files import noise, write_picture
from tests.consoles import Lines
from tests.memory_log import until
from tests.peer.computer import live_status_in
from tests.runs import manifest_of

OPERATOR = Identity(b"\x01" * 32)
RUN = sha256(b"run")
HERE, OTHER = (PublicKey(sha256(b"node %d" % number)) for number in range(2))


class Swarm:
    """The operator's node has all of a set; ``download`` brings it to a folder."""

    def __init__(self, tmp_path: Path, *, side: int = 40, shard_bytes: int = 20_000) -> None:
        for number in range(24):
            write_picture(tmp_path / "own" / ("a", "b")[number % 2] / f"{number}.png", noise(side, side, 3, seed=number))
        shard_images(tmp_path / "own", tmp_path / "noise", lambda _done, _total: None, shard_bytes=shard_bytes)
        self.dataset: Dataset = load_dataset("shards-noise", tmp_path)
        self.network = MemoryNetwork()
        self.source, self.folder = tmp_path / "noise", tmp_path / "here"
        self.folder.mkdir()
        self.said = Lines()
        self.live_status = live_status_in(tmp_path / "status", self.said)
        self.blob_store = BlobStore(max_bytes=0)
        self.here = self.network.endpoint(HERE)
        self.holders = Holders(self.here, RUN, [OPERATOR.public_key], self.said)

    @property
    def list(self) -> ShardList:
        assert isinstance(self.dataset, ShardedImages)
        return self.dataset.shards.list

    def manifest(self) -> Manifest:
        return manifest_of(OPERATOR, dataset="shards-noise", data_digest=self.dataset.digest, shards=(travelling(self.list),))

    async def serve(self, key: PublicKey, *, lies: bool = False) -> None:
        """Let a node hand all shards out; one that lies changes a byte of each piece."""
        endpoint, blob_store = self.network.endpoint(key), BlobStore(max_bytes=0)
        lend_shards(blob_store, self.dataset)
        await blob_store.serve(endpoint)
        honest = endpoint.handlers[METHOD]

        async def answer(caller: PublicKey, request: bytes) -> bytes:
            data = await honest(caller, request)
            return bytes([data[0] ^ 1]) + data[1:] if lies and not request.endswith(bytes([0x20 | -1 - HASHES])) else data

        endpoint.handlers[METHOD] = answer

    def download(self) -> Download:
        return Download(self.here, self.manifest(), self.folder, self.holders, self.blob_store, self.live_status)

    async def get(self) -> None:
        download = self.download()
        await download.shards(await download.list(), range(len(self.list.shards)))

    def is_here(self) -> bool:
        names = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        return names == {path.name: path.read_bytes() for path in self.source.iterdir()}


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm(tmp_path)


async def test_a_set_comes_whole_and_is_handed_out_from_then_on(swarm: Swarm, tmp_path: Path) -> None:
    await swarm.serve(PublicKey(OPERATOR.public_key))
    await swarm.get()
    assert swarm.is_here()
    came = sum(path.stat().st_size for path in swarm.folder.glob("shard-*"))
    assert f"is here, each piece checked: {in_words(came)} came in" in swarm.said[-1]
    assert parse_list((swarm.folder / LIST_NAME).read_bytes()).digest == swarm.dataset.digest
    del swarm.network.endpoints[PublicKey(OPERATOR.public_key)]
    third = swarm.network.endpoint(OTHER)
    await swarm.blob_store.serve(swarm.here)
    holders = Holders(third, RUN, [HERE], swarm.said)
    (tmp_path / "third").mkdir()
    download = Download(third, swarm.manifest(), tmp_path / "third", holders, BlobStore(max_bytes=0), swarm.live_status)
    await download.shards(await download.list(), [2])
    assert (tmp_path / "third" / "shard-00002.bin").read_bytes() == (swarm.source / "shard-00002.bin").read_bytes()


async def test_others_are_found_and_asked_before_the_operator_and_who_lies_is_named_and_not_asked_for_the_next_shard(swarm: Swarm) -> None:
    await swarm.serve(PublicKey(OPERATOR.public_key))
    await swarm.serve(OTHER, lies=True)
    await Holders(swarm.network.endpoints[OTHER], RUN, [OPERATOR.public_key], PrintingConsole()).look()
    await swarm.holders.look()
    assert set(swarm.holders.sources()) == {OTHER, OPERATOR.public_key}
    await swarm.get()
    assert swarm.is_here()
    (line,) = (line for line in swarm.said if "damaged" in line)
    assert line.startswith(f"peer {OTHER.hex()[:8]} sent damaged data")
    assert list(swarm.holders.sources()) == [OPERATOR.public_key]


async def test_what_is_here_is_not_fetched_again(swarm: Swarm) -> None:
    await swarm.serve(PublicKey(OPERATOR.public_key))
    await swarm.get()
    (swarm.folder / "shard-00001.bin").write_bytes(b"cut")
    swarm.network.endpoints.pop(PublicKey(OPERATOR.public_key))
    again = swarm.download()
    await again.shards(await again.list(), [0, 2])  # nobody is there to ask
    await swarm.serve(PublicKey(OPERATOR.public_key))
    await swarm.get()
    assert swarm.is_here()
    assert any(" are here" in line for line in swarm.said)


async def test_pieces_that_came_before_a_break_are_not_fetched_again(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, side=260, shard_bytes=3 * PIECE_BYTES)
    await swarm.serve(PublicKey(OPERATOR.public_key))
    endpoint = swarm.network.endpoints[PublicKey(OPERATOR.public_key)]
    honest, first = endpoint.handlers[METHOD], bytearray()

    async def one_piece_only(caller: PublicKey, request: bytes) -> bytes:
        data = await honest(caller, request)
        if len(data) > PIECE_BYTES // 2:
            first.extend(b"" if first else request)
            if request != first:
                await asyncio.Event().wait()
        return data

    download = Download(swarm.here, swarm.manifest(), swarm.folder, swarm.holders, swarm.blob_store, swarm.live_status)
    list_ = await download.list()
    assert 2 * PIECE_BYTES < list_.shards[0].size_bytes <= 3 * PIECE_BYTES
    endpoint.handlers[METHOD] = one_piece_only
    getting = asyncio.create_task(download.shards(list_, [0]))
    await until(lambda: swarm.live_status.status.data_bytes >= PIECE_BYTES)
    getting.cancel()  # as Ctrl-C does
    await asyncio.gather(getting, return_exceptions=True)
    assert [path.name for path in swarm.folder.glob("shard-*")] == ["shard-00000.bin.part"]
    asked: set[bytes] = set()

    async def noted(caller: PublicKey, request: bytes) -> bytes:
        data = await honest(caller, request)
        if len(data) > PIECE_BYTES // 2:
            asked.add(request)
        return data

    endpoint.handlers[METHOD] = noted
    await swarm.download().shards(list_, [0])
    assert (swarm.folder / "shard-00000.bin").read_bytes() == (swarm.source / "shard-00000.bin").read_bytes()
    assert len(asked) == 2
    assert bytes(first) not in asked


@pytest.mark.parametrize(("name", "data"), [("holiday.jpg", b"mine"), (LIST_NAME, b"no list")])
async def test_a_folder_with_something_else_is_left_as_it_is(swarm: Swarm, name: str, data: bytes) -> None:
    (swarm.folder / name).write_bytes(data)
    with pytest.raises(UserError, match="holds something else than the run's data set shards-noise: move it away, or name another folder"):
        await swarm.download().list()
    assert [(path.name, path.read_bytes()) for path in swarm.folder.iterdir()] == [(name, data)]


async def test_the_list_of_another_set_is_refused(swarm: Swarm) -> None:
    other = ShardList(*(getattr(swarm.list, name) for name in ShardList.__slots__))
    manifest = manifest_of(OPERATOR, dataset="shards-noise", data_digest=sha256(b"another"), shards=(travelling(other),))
    (swarm.folder / LIST_NAME).write_bytes((swarm.source / LIST_NAME).read_bytes())
    download = Download(swarm.here, manifest, swarm.folder, swarm.holders, swarm.blob_store, swarm.live_status)
    with pytest.raises(UserError, match="something else"):
        await download.list()


async def test_an_operator_whose_manifest_contradicts_its_list_is_told_from_a_folder_with_something_else(
    swarm: Swarm, tmp_path: Path
) -> None:
    await swarm.serve(PublicKey(OPERATOR.public_key))
    manifest = manifest_of(OPERATOR, dataset="shards-noise", data_digest=sha256(b"another"), shards=(travelling(swarm.list),))
    with pytest.raises(UserError, match="ask the operator to mend it"):
        await Download(swarm.here, manifest, swarm.folder, swarm.holders, swarm.blob_store, swarm.live_status).list()
    assert not list((tmp_path / "here").iterdir())


async def test_the_dashboard_shows_how_far_it_is(swarm: Swarm) -> None:
    await swarm.serve(PublicKey(OPERATOR.public_key))
    await swarm.get()
    status, size_bytes = swarm.live_status.status, swarm.list.size_bytes
    assert (status.stage, status.data_bytes, status.data_size_bytes) == (FETCHING, size_bytes, size_bytes)
    assert progress(replace(status, data_bytes=size_bytes // 2), 80)[0].startswith("data  ████")
