import numpy as np
import pytest
import torch
from torch.nn import functional as F

from automl.data.catalog import load_dataset
from automl.data.images import ImageDataset, resize
from automl.data.views import UNKNOWN, Pair, StereoDataset
from automl.evaluation.held_out import calibrate, evaluate
from automl.evaluation.samples import LOSS_UNIT, MAX_LOSS, evaluate_samples
from automl.models.classifier import Classifier
from automl.models.stereo import Stereo
from automl.spaces.space import STEREO_TINY, TINY


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
