"""A set of which only some shards to train with are here: which samples microbatches are drawn from, and what stays as it is."""

from pathlib import Path

import pytest
import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.shards.reading import open_shards
from manta_swarm.automl.data.shards.sharded import Part, ShardedImages, ShardedPairs, sharded_pairs
from manta_swarm.automl.data.shards.writing import shard_images, shard_pairs
from manta_swarm.automl.data.views import Pair, StereoDataset
from tests.automl.data.files import noise, nothing, write_classes


def _images(tmp_path: Path) -> ShardedImages:
    shard_images(write_classes(tmp_path / "own", {"cat": 15, "dog": 15}, 30, 24, 3), tmp_path / "some", nothing, shard_bytes=8 << 10)
    return _again(tmp_path)


def _again(tmp_path: Path) -> ShardedImages:
    dataset = load_dataset("shards-some", tmp_path)
    assert isinstance(dataset, ShardedImages)
    return dataset


def test_microbatches_of_a_part_have_its_samples_and_no_others_and_are_those_of_the_whole_set(tmp_path: Path) -> None:
    whole = _images(tmp_path)
    starts = [0]
    for shard in whole.shards.list.shards:
        starts.append(starts[-1] + shard.samples)
    assert whole.shards.list.num_train_shards > 4
    part = whole.with_part((1, 3))
    there = [*range(starts[1], starts[2]), *range(starts[3], starts[4])]
    assert part.num_train == len(there)
    assert (part.num_held_out, part.digest) == (whole.num_held_out, whole.digest)
    for number in set(range(whole.shards.list.num_train_shards)) - {1, 3}:
        whole.shards.path(number).rename(tmp_path / f"away-{number}")
    found = part.training_batch(range(len(there)), 5, 16)
    held_out = [batch.targets for batch in part.held_out_batches(16, 4)]
    for number in set(range(whole.shards.list.num_train_shards)) - {1, 3}:
        (tmp_path / f"away-{number}").rename(whole.shards.path(number))
    again = _again(tmp_path)
    expected = again.training_batch(there, 5, 16)
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)
    assert all(torch.equal(*pair) for pair in zip(held_out, (batch.targets for batch in again.held_out_batches(16, 4)), strict=True))
    statistics = zip(again.with_part((0,)).calibration_batches(16, 4, 8), again.calibration_batches(16, 4, 8), strict=True)
    assert all(torch.equal(*pair) for pair in statistics)


def test_pairs_come_of_a_part_too(tmp_path: Path) -> None:
    def pair(seed: int) -> Pair:
        return Pair(noise(16, 32, 3, seed=seed), noise(16, 32, 3, seed=seed + 100), noise(16, 32, seed=seed).astype("float32"))

    shard_pairs(
        StereoDataset.from_pairs("x", [pair(seed) for seed in range(8)], [pair(50), pair(51)]), tmp_path / "x", nothing, shard_bytes=9000
    )
    whole = sharded_pairs("shards-x", open_shards(tmp_path / "x"))
    assert whole.shards.list.num_train_shards > 2
    part = whole.with_part((1,))
    assert isinstance(part, ShardedPairs)
    first = whole.shards.list.shards[0].samples
    assert (part.num_train, part.num_held_out, part.digest) == (whole.shards.list.shards[1].samples, 2, whole.digest)
    found, expected = part.training_batch([0], 3, 16), whole.training_batch([first], 3, 16)
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)
    statistics = zip(part.calibration_batches(16, 2, 4), whole.calibration_batches(16, 2, 4), strict=True)
    assert all(torch.equal(*pair) for pair in statistics)


@pytest.mark.parametrize("numbers", [(), (1, 0), (0, 0), (-1,), (99,)])
def test_what_is_no_part_is_refused(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no part"):
        Part(_images(tmp_path).shards.list, numbers)
