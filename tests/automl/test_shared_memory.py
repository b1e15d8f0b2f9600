"""Data in memory that processes share: the same microbatches as from the data set itself."""

import resource
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.data.layered import layers
from manta_swarm.automl.data.views import Pair
from manta_swarm.automl.shared_memory import ImagesIn, SharedPairs, SharedRegion, aligned, region_for, share_images, shared_images
from manta_swarm.protocol.errors import StorageError


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    region = SharedRegion.make(1000)
    yield region
    region.close()


def test_what_one_writes_the_other_reads_and_nobody_writes_what_is_read_only(region: SharedRegion) -> None:
    written, read = region.floats(is_writable=True), SharedRegion.inherited(region.descriptor).floats(is_writable=False)
    written[:] = torch.arange(250.0)
    assert torch.equal(read, torch.arange(250.0))
    assert region.bytes(is_writable=False).flags.writeable is False
    region.close()
    assert read[249] == 249.0  # what is mapped outlives the descriptor
    region.close()


def test_memory_that_there_is_not_is_said() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StorageError, match="use one worker"):
            SharedRegion.make(1001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_sizes_are_rounded_up_to_what_is_aligned() -> None:
    assert [aligned(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_shared_images_give_the_same_batches_and_have_nothing_held_out() -> None:
    dataset = digits()
    images, region = share_images(dataset)
    shared = shared_images(images, region)
    region.close()
    for seed, indices in ((1, [0, 5, 1441]), (2**64 - 1, [7, 7])):
        here, there = dataset.training_batch(indices, seed, 32), shared.training_batch(indices, seed, 32)
        assert torch.equal(here.inputs, there.inputs)
        assert torch.equal(here.targets, there.targets)
    assert (shared.name, shared.num_train, shared.num_held_out, shared.num_classes) == ("digits", 1442, 0, 10)
    assert not shared.train_images.flags.writeable


def test_colours_and_mirrors_are_kept() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, 3, 9, 9), dtype=np.uint8)
    dataset = replace(digits(), white=255, train_images=noise, train_labels=np.arange(5), flips=True)
    images, region = share_images(dataset)
    here, there = dataset.training_batch(range(5), 3, 16), shared_images(images, region).training_batch(range(5), 3, 16)
    region.close()
    assert torch.equal(here.inputs, there.inputs)


def test_images_that_do_not_fit_their_memory_are_refused(region: SharedRegion) -> None:
    with pytest.raises(ValueError, match="too few"):
        shared_images(ImagesIn("digits", 16, 10, (1442, 1, 8, 8), 0), region)
    with pytest.raises(ValueError, match="no images"):
        ImagesIn("digits", 16, 10, (0, 1, 8, 8), 0)


class Made(Sequence[Pair]):  # type: ignore[misc]
    """Pairs that count how often each was made; the one at 3 is larger."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Pair:  # type: ignore[override]
        self.made.append(index)
        rows = 20 if index == 3 else 10
        views = np.random.default_rng(index).integers(0, 256, (2, rows, 20, 3), dtype=np.uint8)
        return Pair(views[0], views[1], np.full((rows, 20), index - 1.5, np.float32))


def same(one: Pair, other: Pair) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("left", "right", "disparity"))


def test_a_pair_that_one_process_made_the_others_find() -> None:
    made, others = Made(), Made()
    region, place_bytes = region_for(Made())
    one, other = SharedPairs(made, region, place_bytes), SharedPairs(others, SharedRegion.inherited(region.descriptor), place_bytes)
    for index in (0, 5, -2, 0, 3, 3):
        assert same(one[index], Made()[range(6)[index]])
    assert made.made == [0, 5, 4, 3, 3]  # what is larger than a place is not kept
    assert all(same(there, here) for there, here in zip(other[0:6:5], (made[0], made[5]), strict=True))
    assert others.made == []
    region.close()


def test_in_less_memory_the_newest_of_those_that_share_a_place_is_kept() -> None:
    made = Made()
    region, place_bytes = region_for(made, kept_bytes=2 * 2112 + 1)
    assert region.size_bytes == 2 * place_bytes
    made.made.clear()
    pairs = SharedPairs(made, region, place_bytes)
    for index in (0, 1, 2, 0, 1):
        assert same(pairs[index], Made()[index])
    assert made.made == [0, 1, 2, 0]
    region.close()


@pytest.mark.parametrize("at", [0, 8, 30, 64, 2000])
def test_a_place_that_somebody_writes_to_at_the_moment_holds_no_pair(at: int) -> None:
    made = Made()
    region, place_bytes = region_for(made)
    pairs = SharedPairs(made, region, place_bytes)
    first = pairs[1]
    region.bytes(is_writable=True)[place_bytes + at] ^= 1
    made.made.clear()
    assert same(pairs[1], first)
    assert made.made == [1]
    assert same(pairs[1], first)
    assert made.made == [1]
    region.close()


def test_shared_pairs_give_the_same_batches() -> None:
    dataset = layers()
    region, place_bytes = region_for(dataset.train, kept_bytes=10**6)
    shared = replace(dataset, train=SharedPairs(dataset.train, region, place_bytes))
    for _ in range(2):
        here, there = dataset.training_batch([1, 4000], 5, 64), shared.training_batch([1, 4000], 5, 64)
        assert torch.equal(here.inputs, there.inputs)
        assert torch.equal(here.targets, there.targets)
    region.close()
