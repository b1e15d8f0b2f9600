"""Which shards a peer gets and what it says of it, what it does before it takes part, and what its workers draw from a part of a set."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.layout import LIST_NAME, Shard, ShardList, travelling
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.automl.data.shards.writing import shard_images, shard_pairs
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.peer_status import FETCHING
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.plugged_in import PLUGGED_IN
from manta_swarm.peer.features.plugin import Arrival
from manta_swarm.peer.features.shards.download import Download, Holders
from manta_swarm.peer.features.shards.plugin import Room, _get, wanted
from manta_swarm.peer.limits.limiter import Limiter
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.workers.processes import WorkerData
from manta_swarm.peer.workers.worker_messages import WorkerSetup
from manta_swarm.peer.workers.worker_process import _dataset
from manta_swarm.protocol.errors import SamplesMissing, UserError
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.microbatches import held_shards
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.console import PrintingConsole
from tests.automl.data.files import noise, write_picture
from tests.memory_log import until
from tests.peer.computer import Computer, live_status_in
from tests.peer.features.shards.test_download import OPERATOR, Swarm
from tests.runs import manifest_of

PEER, KEY = Identity(b"\x02" * 32), b"k" * 32
PART = (1, 3)  # of the shards to train with
MB = 1_000_000


@pytest.mark.parametrize("travels", [True, False])
async def test_its_person_is_told_what_it_does(tmp_path: Path, travels: bool) -> None:
    swarm, live_status, directory = Swarm(tmp_path), live_status_in(tmp_path / "status"), tmp_path / "peer"
    config, limiter = PeerConfig(dir=directory), Limiter(Limits(), directory, Computer().sensors, live_status)
    signed = SignedManifest.sign(swarm.manifest() if travels else manifest_of(OPERATOR), OPERATOR)
    arrival = Arrival(config, swarm.here, Traffic(), signed, BlobStore(max_bytes=2**25), limiter, live_status)

    async def come() -> Path | None:
        async with PLUGGED_IN.bring(arrival) as held:
            return held.root

    coming = asyncio.create_task(come())
    if travels:
        await until(lambda: coming.done() or live_status.status.stage == FETCHING)
        await swarm.serve(PublicKey(OPERATOR.public_key))
    assert await coming == (directory / "data" if travels else None)


def _images(folder: Path) -> Dataset:
    for number in range(60):
        write_picture(folder / "own" / ("a", "b")[number % 2] / f"{number}.png", noise(20, 20, 3, seed=number))
    shard_images(folder / "own", folder / "set", lambda *_: None, shard_bytes=10_000)
    return load_dataset("shards-set", folder)


def _pairs(folder: Path) -> Dataset:
    made = [Pair(noise(32, 64, 3, seed=n), noise(32, 64, 3, seed=100 + n), np.full((32, 64), n % 9, np.float32)) for n in range(12)]
    shard_pairs(StereoDataset.from_pairs("set", made[:9], made[9:]), folder / "set", lambda *_: None, shard_bytes=30_000)
    return load_dataset("shards-set", folder)


@pytest.mark.parametrize("make", [_images, _pairs])
def test_workers_draw_the_microbatches_of_a_peer_with_a_part_from_that_part(tmp_path: Path, make: Callable[[Path], Dataset]) -> None:
    whole = make(tmp_path)
    assert isinstance(whole, ShardedImages | ShardedPairs)
    for number in set(range(whole.shards.list.num_train_shards)) - set(PART):
        whole.shards.path(number).unlink()
    here = whole.with_part(PART)
    data = WorkerData.of(here, tmp_path, PART)
    setup = WorkerSetup("any", "cpu", 1, 0, 0, 1, data.images, data.pairs, data.shards)
    there = _dataset(setup, data.region)
    assert there.num_train == here.num_train < whole.num_train
    resolution = 64 if make is _pairs else 16
    for indices in (range(here.num_train), [0, 0, here.num_train - 1]):
        one, other = (each.training_batch(indices, 7, resolution) for each in (here, there))
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
    with pytest.raises(SamplesMissing):
        whole.training_batch(range(whole.num_train), 7, resolution)
    data.close()


async def test_a_gateway_with_room_for_a_part_is_refused_before_any_shard_is_got(tmp_path: Path) -> None:
    dataset = _pairs(tmp_path)
    assert isinstance(dataset, ShardedPairs)
    list_, folder = dataset.shards.list, tmp_path / "here"
    folder.mkdir()
    (folder / LIST_NAME).write_bytes((tmp_path / "set" / LIST_NAME).read_bytes())
    shards = (travelling(list_),)
    manifest = manifest_of(OPERATOR, task="stereo", dataset="shards-set", data_digest=dataset.digest, shards=shards, microbatch_samples=2)
    node = MemoryNetwork().endpoint(PEER.public_key)
    holders = Holders(node, bytes(32), [OPERATOR.public_key], PrintingConsole())
    live_status = live_status_in(tmp_path / "status")
    download = Download(node, manifest, folder, holders, BlobStore(max_bytes=0), live_status)
    config = PeerConfig(gateway=("127.0.0.1:0",), data_limit=list_.size_bytes - 1)
    with pytest.raises(UserError, match="a gateway needs all of shards-set: give a larger --data-limit, make room, or leave"):
        await _get(config, manifest, node, folder, download, live_status)
    assert [path.name for path in folder.iterdir()] == [LIST_NAME]


LIST = ShardList("manta/shards/v1", "images", 3, ("a", "b"), 1, 80, tuple(Shard(bytes(32), bytes([n] * 32), MB, 8) for n in range(12)))


def _manifest() -> Manifest:
    return manifest_of(OPERATOR, dataset="shards-x", data_digest=LIST.digest, shards=(travelling(LIST),))


def _room(limit: int | None = None, free: int = 10**12) -> Room:
    return Room(Path("/data/x"), limit, free)


def test_where_there_is_room_all_are_wanted_and_claims_say_nothing_of_it() -> None:
    for room in (_room(), _room(12 * MB), _room(free=12 * MB)):
        found = wanted(_manifest(), KEY, LIST, room, ())
        assert (found.numbers, found.is_part, found.claimed, found.size_bytes) == (tuple(range(12)), False, 0, 12 * MB)


@pytest.mark.parametrize("room", [_room(8 * MB), _room(8 * MB + 999_999), _room(free=8 * MB)])
def test_where_there_is_none_for_all_those_held_out_come_first_and_then_the_key_s_part(room: Room) -> None:
    found = wanted(_manifest(), KEY, LIST, room, ())
    assert found.train == held_shards(0, KEY, 10, 6)
    assert (found.numbers, found.is_part, found.claimed, found.size_bytes) == ((*found.train, 10, 11), True, 6, 8 * MB)


def test_what_is_here_needs_no_room_on_the_disk_but_counts_for_the_person_s_limit() -> None:
    here = {10, 11, *held_shards(0, KEY, 10, 7)}
    assert wanted(_manifest(), KEY, LIST, _room(free=0), here).claimed == 7
    assert wanted(_manifest(), KEY, LIST, _room(free=MB), here).claimed == 8
    assert wanted(_manifest(), KEY, LIST, _room(8 * MB), here).claimed == 6


@pytest.mark.parametrize(
    ("room", "here", "says"),
    [
        (
            _room(3 * MB),
            (),
            "12.0 MB, of which at least 4.0 MB must be here to train; --data-limit allows 3.0 MB: give more with --data-limit",
        ),
        (_room(free=3 * MB), (), "4.0 MB more than now; the disk of /data/x has 3.0 MB left beside 1.1 GB that stay free: make room"),
        (_room(free=2 * MB), (11,), "3.0 MB more than now; the disk of /data/x has 2.0 MB left"),
    ],
)
def test_too_little_room_for_a_microbatch_is_said_in_a_line_with_what_to_do(room: Room, here: Sequence[int], says: str) -> None:
    with pytest.raises(UserError) as raised:
        wanted(_manifest(), KEY, LIST, room, here)
    assert says in str(raised.value)
    assert wanted(_manifest(), KEY, LIST, _room(4 * MB), ()).claimed == 2  # of 8 samples, for microbatches of 16
