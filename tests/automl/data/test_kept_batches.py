from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import ALL, Batch
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.evaluation.samples import KeptBatches, evaluate_samples
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.spaces.space import TINY

IMAGE_BYTES = 4 * 10 * 10


class Counted:
    """Ten images at any resolution, four calibration samples; counts the batches that it makes."""

    task = "classification"

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        for _ in range(4 // batch):
            self.made.append(("calibration", resolution))
            yield torch.full((batch, 1, resolution, resolution), 0.5)

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        for start in range(0, 10, batch * every):
            self.made.append((part, resolution))
            yield Batch(
                torch.full((min(batch, 10 - start), 1, resolution, resolution), start / 10), torch.arange(start, min(start + batch, 10))
            )


def images(batches: Iterator[Batch]) -> Tensor:
    return torch.cat([batch.inputs for batch in batches])


def test_each_answer_is_made_once() -> None:
    source = Counted()
    kept = KeptBatches(source)
    assert kept.task == "classification"
    for _ in range(3):
        assert torch.equal(images(kept.held_out_batches(10, 4, "search")), images(Counted().held_out_batches(10, 4)))
        assert [len(inputs) for inputs in kept.calibration_batches(10, 2, 4)] == [2, 2]
    assert source.made == [("search", 10)] * 3 + [("calibration", 10)] * 2
    images(kept.held_out_batches(10, 4, "test"))
    images(kept.held_out_batches(12, 4, "search"))
    assert source.made[5:] == [("test", 10)] * 3 + [("search", 12)] * 3


def test_no_more_is_kept_than_allowed_and_what_was_asked_for_longest_ago_goes() -> None:
    source = Counted()
    kept = KeptBatches(source, 25 * (IMAGE_BYTES + 8))
    for part in ("all", "search", "all", "test"):
        for _ in kept.held_out_batches(10, 5, part):
            assert kept.size_bytes <= 25 * (IMAGE_BYTES + 8)
    assert kept.size_bytes == 20 * (IMAGE_BYTES + 8)
    source.made.clear()
    images(kept.held_out_batches(10, 5, "all"))
    images(kept.held_out_batches(10, 5, "test"))
    assert source.made == []
    images(kept.held_out_batches(10, 5, "search"))
    assert source.made == [("search", 10)] * 2


def test_what_is_too_large_is_made_anew_and_leaves_the_others_alone() -> None:
    source = Counted()
    kept = KeptBatches(source, 5 * (IMAGE_BYTES + 8))
    images(kept.held_out_batches(10, 5))
    assert kept.size_bytes == 0
    list(kept.calibration_batches(10, 4, 4))
    source.made.clear()
    assert len(images(kept.held_out_batches(10, 5))) == 10
    list(kept.calibration_batches(10, 4, 4))
    assert source.made == [("all", 10)] * 2


def test_an_answer_that_nobody_read_to_its_end_is_not_kept() -> None:
    source = Counted()
    kept = KeptBatches(source)
    batches = kept.held_out_batches(10, 5)
    next(batches)
    del batches
    assert kept.size_bytes == 0
    assert len(images(kept.held_out_batches(10, 5))) == 10


def test_two_that_read_the_same_at_once_both_get_it_and_it_counts_once() -> None:
    kept = KeptBatches(Counted())
    pairs = list(zip(kept.held_out_batches(10, 5), kept.held_out_batches(10, 5), strict=True))
    assert all(torch.equal(one.inputs, other.inputs) for one, other in pairs)
    assert kept.size_bytes == 10 * (IMAGE_BYTES + 8)


@pytest.mark.parametrize("limit", [0, 1 << 20, 1 << 30])
def test_what_is_measured_with_kept_batches_is_the_same_to_the_bit(supernet: Classifier, digits: ImageDataset, limit: int) -> None:
    kept = KeptBatches(digits, limit)
    architectures = [TINY.smallest(), TINY.largest(), TINY.smallest()]
    measured = [evaluate_samples(supernet, kept, architecture, "test") for architecture in architectures]
    assert measured == [evaluate_samples(supernet, digits, architecture, "test") for architecture in architectures]
