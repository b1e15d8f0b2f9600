from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import ALL, Batch
from manta_swarm.automl.data.images import ImageDataset, resize
from manta_swarm.automl.data.views import UNKNOWN, Pair, StereoDataset
from manta_swarm.automl.evaluation.held_out import calibrate, evaluate, outputs_of
from manta_swarm.automl.evaluation.samples import LOSS_UNIT, MAX_LOSS, KeptBatches, evaluate_samples
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY

IMAGE_BYTES = 4 * 10 * 10


def test_every_image_has_its_cross_entropy(supernet: Classifier, digits: ImageDataset) -> None:
    measured = evaluate_samples(supernet, digits, TINY.smallest(), "all")
    calibrate(supernet, digits, TINY.smallest())
    logits = supernet(resize(digits.held_out_images, 16, 28), TINY.smallest()).detach()
    labels = torch.from_numpy(digits.held_out_labels)
    expected = F.cross_entropy(logits, labels, reduction="none").numpy()
    assert np.abs(np.array(measured.losses) / LOSS_UNIT - expected).max() < 0.001
    assert measured.loss == pytest.approx(measured.quality["loss"], abs=1 / LOSS_UNIT)
    assert measured.wrong.tolist() == (logits.argmax(1) != labels).nonzero().flatten().tolist()
    assert {"accuracy": measured.quality["accuracy"]} == evaluate(supernet, digits, [TINY.smallest()])[0]


def test_every_window_has_its_mean_error(stereo: Stereo) -> None:
    motorcycle = load_dataset("motorcycle")
    measured = evaluate_samples(stereo, motorcycle, STEREO_TINY.smallest(), "all")
    assert measured.quality == evaluate(stereo, motorcycle, [STEREO_TINY.smallest()])[0]
    assert len(measured.losses) == sum(len(batch.targets) for batch in motorcycle.held_out_batches(64, 4))
    assert measured.loss == pytest.approx(measured.quality["epe"], rel=0.2)  # windows have about as many known pixels
    assert not measured.wrong


def test_in_bf16_figures_are_near_those_in_fp32_and_not_the_same(supernet: Classifier, few: ImageDataset) -> None:
    exact, rounded, again = (evaluate_samples(supernet, few, TINY.smallest(), "all", each) for each in ("fp32", "bf16", "fp32"))
    assert again == exact != rounded
    assert rounded.loss == pytest.approx(exact.loss, rel=0.05)
    qualities = [evaluate(supernet, few, [TINY.smallest()], precision=each)[0] for each in ("fp32", "bf16")]
    assert [each["accuracy"] for each in qualities] == [each.quality["accuracy"] for each in (exact, rounded)]


def test_in_bf16_disparities_are_near_those_in_fp32_and_not_the_same(stereo: Stereo) -> None:
    motorcycle = load_dataset("motorcycle")
    exact, rounded = (evaluate_samples(stereo, motorcycle, STEREO_TINY.smallest(), "all", each) for each in ("fp32", "bf16"))
    assert rounded.losses != exact.losses
    assert rounded.quality["epe"] == pytest.approx(exact.quality["epe"], rel=0.05)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_statistics_and_outputs_are_fp32_whatever_is_computed_in(precision: str, supernet: Classifier, few: ImageDataset) -> None:
    weights = supernet.flat_weights_N.clone()
    calibrate(supernet, few, TINY.smallest(), 256, precision)
    outputs = outputs_of(supernet, resize(few.held_out_images[:5], 16, 28), TINY.smallest(), precision)
    assert outputs.dtype == torch.float32
    assert {buffer.dtype for buffer in supernet.buffers()} == {torch.float32}
    assert torch.equal(supernet.flat_weights_N, weights)
    rounded = outputs.bfloat16().float()
    assert torch.equal(outputs, rounded) == (precision == "bf16")


def test_a_window_of_which_nothing_is_known_is_no_sample(stereo: Stereo) -> None:
    rng = np.random.default_rng(0)
    views = [rng.integers(0, 256, (64, 128, 3), dtype=np.uint8) for _ in range(2)]
    unknown = np.full((64, 128), UNKNOWN, np.float32)
    known = unknown.copy()
    known[10:20] = 5.0
    pairs = [Pair(*views, known), Pair(*views, unknown), Pair(*views, known)]
    dataset = StereoDataset.from_pairs("pairs", pairs, pairs)
    assert len(evaluate_samples(stereo, dataset, STEREO_TINY.smallest(), "all").losses) == 2


def test_broken_weights_show_in_the_quality(supernet: Classifier, few: ImageDataset) -> None:
    supernet.flat_weights_N.fill_(float("nan"))
    measured = evaluate_samples(supernet, few, TINY.smallest(), "search")
    assert np.isnan(measured.quality["loss"])
    assert set(measured.losses) == {MAX_LOSS}


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


def test_what_is_measured_with_kept_batches_is_the_same_to_the_bit(supernet: Classifier, digits: ImageDataset) -> None:
    expected = evaluate_samples(supernet, digits, TINY.smallest(), "test")
    for limit in (0, 1 << 20, 1 << 30):
        kept = KeptBatches(digits, limit)
        assert [evaluate_samples(supernet, kept, TINY.smallest(), "test") for _ in range(2)] == [expected] * 2
