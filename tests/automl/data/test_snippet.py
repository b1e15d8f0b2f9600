"""Samples cut out of a data set: the same pixels after augmentation as the whole set gives, and nothing else parses."""

import zlib

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.snippet import MAX_BYTES, cut, load, sample_bytes
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.protocol.encoding import decode, encode
from manta_swarm.protocol.errors import EncodingError

INDICES = [5, 3, 40, 5, 11]  # of a microbatch, in its order; one of them twice


def photographs() -> ImageDataset:
    random = np.random.default_rng(1)
    images, labels = random.integers(0, 256, (60, 3, 20, 24), dtype=np.uint8), random.integers(0, 7, 60)
    return ImageDataset("photographs", 255, 7, images[:50], labels[:50], images[50:], labels[50:], flips=True)


def pairs() -> StereoDataset:
    random = np.random.default_rng(2)

    def pair(rows: int, columns: int) -> Pair:
        views = random.integers(0, 256, (2, rows, columns, 3), dtype=np.uint8)
        return Pair(views[0], views[1], random.integers(-1, 9, (rows, columns)).astype(np.float32))

    return StereoDataset.from_pairs("pairs", [pair(16 + index % 3, 40) for index in range(50)], [pair(16, 40), pair(16, 40)])


DATASETS = [load_dataset("digits"), photographs(), pairs()]
every_kind = pytest.mark.parametrize("dataset", DATASETS, ids=lambda dataset: dataset.name)


@every_kind
def test_a_snippet_gives_the_batches_of_the_whole_set(dataset: Dataset) -> None:
    snippet = load(cut(dataset, INDICES), dataset.task, dataset.num_train, INDICES)
    assert snippet.num_train == dataset.num_train
    for seed in (0, 2**64 - 1):
        whole, part = dataset.training_batch(INDICES, seed, 16), snippet.training_batch(INDICES, seed, 16)
        assert torch.equal(whole.inputs, part.inputs)
        assert torch.equal(whole.targets, part.targets)


@every_kind
def test_a_snippet_has_no_other_samples_and_is_about_as_long_as_its_own(dataset: Dataset) -> None:
    data = cut(dataset, INDICES)
    with pytest.raises(KeyError):
        load(data, dataset.task, dataset.num_train, INDICES).training_batch([6], 0, 16)
    assert len(data) <= 1.1 * 4 * sample_bytes(dataset) + 100


@every_kind
def test_a_snippet_of_other_samples_of_another_task_cut_or_with_more_after_it_is_refused(dataset: Dataset) -> None:
    data, other = cut(dataset, INDICES), "stereo" if dataset.task == "classification" else "classification"
    for wrong, task, indices in (
        (data, dataset.task, [*INDICES, 6]),
        (data, dataset.task, INDICES[:2]),
        (data, other, INDICES),
        (data[:-1], dataset.task, INDICES),
        (data + b"x", dataset.task, INDICES),
        (b"", dataset.task, INDICES),
        (zlib.compress(b""), dataset.task, INDICES),
        (zlib.compress(zlib.decompress(data) + b"\x00"), dataset.task, INDICES),
    ):
        with pytest.raises(EncodingError):
            load(wrong, task, dataset.num_train, indices)


def test_a_snippet_that_unfolds_to_more_than_there_may_be_is_refused_before_it_does() -> None:
    with pytest.raises(EncodingError, match="too long"):
        load(zlib.compress(bytes(MAX_BYTES + 1)), "classification", 10, [1])


def test_labels_and_pixels_that_the_set_cannot_have_are_refused() -> None:
    white, classes, flips, shape, labels, pixels = decode(zlib.decompress(cut(DATASETS[0], [1])), max_bytes=10_000)  # type: ignore[misc]
    assert isinstance(labels, bytes)
    assert isinstance(pixels, bytes)
    for wrong in (
        (white, classes, flips, shape, (10).to_bytes(4, "little"), pixels),
        (white, classes, flips, shape, (2**32 - 1).to_bytes(4, "little"), pixels),
        (white, classes, flips, shape, labels, b"\xff" * len(pixels)),
        (white, classes, flips, shape, labels, pixels[1:]),
        (white, classes, flips, (1, 8, 2**20), labels, pixels),
        (white, classes, flips, (2, 8, 8), labels, pixels),
        (0, classes, flips, shape, labels, pixels),
        (white, 0, flips, shape, labels, pixels),
        (white, classes, 2, shape, labels, pixels),
    ):
        with pytest.raises(EncodingError):
            load(zlib.compress(encode(wrong)), "classification", 1442, [1])


def test_a_disparity_that_is_not_finite_is_refused() -> None:
    ((found,),) = decode(zlib.decompress(cut(DATASETS[2], [1])), max_bytes=10_000)  # type: ignore[misc]
    assert isinstance(found, tuple)
    shape, left, right, disparity = found
    assert isinstance(disparity, bytes)
    wrong = np.full(len(disparity) // 4, np.nan, "<f4").tobytes()
    with pytest.raises(EncodingError, match="not finite"):
        load(zlib.compress(encode((((shape, left, right, wrong),),))), "stereo", 50, [1])


def test_a_data_set_of_another_kind_is_not_handed_out() -> None:
    class Other:
        pass

    with pytest.raises(ValueError, match="cannot be handed out"):
        cut(Other(), [1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be handed out"):
        sample_bytes(Other())  # type: ignore[arg-type]
