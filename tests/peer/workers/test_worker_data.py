from pathlib import Path

import pytest
import torch

from manta_swarm.automl.data.catalog import digits, load_dataset
from manta_swarm.automl.data.layered import layers
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.automl.shared_memory import shared_images
from manta_swarm.peer.workers.processes import WorkerData
from manta_swarm.protocol.errors import UserError
from tests.automl.data.files import noise, write_picture


def test_images_are_in_memory_once_for_the_peer_and_its_workers() -> None:
    dataset = digits()
    data = WorkerData.of(dataset, None)
    here, there = data.here(dataset), shared_images(data.images[0], data.region)
    data.close()
    assert (here.digest, here.num_held_out) == (dataset.digest, dataset.num_held_out)
    assert not here.train_images.flags.writeable  # type: ignore[attr-defined]
    for one, other in ((here, dataset), (there, dataset)):
        assert torch.equal(one.training_batch([3, 9], 1, 32).inputs, other.training_batch([3, 9], 1, 32).inputs)


def test_stereo_pairs_are_opened_by_their_name_and_have_a_place_to_be_kept(tmp_path: Path) -> None:
    dataset = layers()
    data = WorkerData.of(dataset, tmp_path)
    (pairs,) = data.pairs
    assert (data.images, pairs.name, pairs.root) == ((), "layers", str(tmp_path))
    assert data.region.size_bytes >= pairs.place_bytes > 10 * dataset.train[0].disparity.size
    assert data.here(dataset) is dataset
    data.close()


def test_a_set_in_shards_is_opened_by_its_name_and_takes_no_memory(tmp_path: Path) -> None:
    for number in range(4):
        write_picture(tmp_path / "own" / ("cat", "dog")[number % 2] / f"{number}.png", noise(9, 9, seed=number))
    shard_images(tmp_path / "own", tmp_path / "some", lambda *_: None)
    dataset = load_dataset("shards-some", tmp_path)
    data = WorkerData.of(dataset, tmp_path)
    (shards,) = data.shards
    assert (shards.name, shards.root, shards.digest) == ("shards-some", str(tmp_path), dataset.digest)
    assert (data.images, data.pairs, data.region.size_bytes) == ((), (), 0)
    assert data.here(dataset) is dataset
    data.close()


def test_a_data_set_of_another_kind_is_refused() -> None:
    class Other:
        name = "other"

    with pytest.raises(UserError, match="other cannot be shared among workers: give --workers 1"):
        WorkerData.of(Other(), None)  # type: ignore[arg-type]
