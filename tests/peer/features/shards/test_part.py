"""A peer that has a part of a set's shards: what its workers draw microbatches from, and that it is no gateway."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.layout import LIST_NAME, travelling
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.automl.data.shards.writing import shard_images, shard_pairs
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.shards.download import Download, Holders
from manta_swarm.peer.features.shards.plugin import _get
from manta_swarm.peer.workers.processes import WorkerData
from manta_swarm.peer.workers.worker_messages import Setup
from manta_swarm.peer.workers.worker_process import _dataset
from manta_swarm.protocol.errors import SamplesMissing, UserError
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.console import PrintingConsole
from tests.automl.data.files import noise, write_picture
from tests.peer.computer import live_status_in
from tests.runs import manifest_of

OPERATOR, PEER = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
PART = (1, 3)  # of the shards to train with


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
    setup = Setup("any", "cpu", 1, 0, 0, 1, data.images, data.pairs, data.shards)
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


def test_a_gateway_with_room_for_a_part_is_refused_before_any_shard_is_got(tmp_path: Path) -> None:
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
        asyncio.run(_get(config, manifest, node, folder, download, live_status))
    assert [path.name for path in folder.iterdir()] == [LIST_NAME]
