import numpy as np
import pytest
import torch
from torch.nn import functional as F

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.images import ImageDataset, resize
from manta_swarm.automl.data.views import UNKNOWN, Pair, StereoDataset
from manta_swarm.automl.evaluation.held_out import calibrate, evaluate, outputs_of
from manta_swarm.automl.evaluation.samples import LOSS_UNIT, MAX_LOSS, evaluate_samples
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY


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


def test_in_bf16_figures_are_near_those_in_fp32_and_not_the_same(supernet: Classifier, digits: ImageDataset) -> None:
    exact, rounded, again = (evaluate_samples(supernet, digits, TINY.smallest(), "all", each) for each in ("fp32", "bf16", "fp32"))
    assert again == exact != rounded
    assert rounded.loss == pytest.approx(exact.loss, rel=0.05)
    qualities = [evaluate(supernet, digits, [TINY.smallest()], precision=each)[0] for each in ("fp32", "bf16")]
    assert [each["accuracy"] for each in qualities] == [each.quality["accuracy"] for each in (exact, rounded)]


def test_in_bf16_disparities_are_near_those_in_fp32_and_not_the_same(stereo: Stereo) -> None:
    motorcycle = load_dataset("motorcycle")
    exact, rounded = (evaluate_samples(stereo, motorcycle, STEREO_TINY.smallest(), "all", each) for each in ("fp32", "bf16"))
    assert rounded.losses != exact.losses
    assert rounded.quality["epe"] == pytest.approx(exact.quality["epe"], rel=0.05)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_statistics_and_outputs_are_fp32_whatever_is_computed_in(precision: str, supernet: Classifier, digits: ImageDataset) -> None:
    weights = supernet.flat_weights_N.clone()
    calibrate(supernet, digits, TINY.smallest(), 256, precision)
    outputs = outputs_of(supernet, resize(digits.held_out_images[:5], 16, 28), TINY.smallest(), precision)
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


def test_broken_weights_show_in_the_quality(supernet: Classifier, digits: ImageDataset) -> None:
    supernet.flat_weights_N.fill_(float("nan"))
    measured = evaluate_samples(supernet, digits, TINY.smallest(), "search")
    assert np.isnan(measured.quality["loss"])
    assert set(measured.losses) == {MAX_LOSS}
