import numpy as np
import pytest
import torch
from torch import Tensor

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.images import ImageDataset, resize
from manta_swarm.automl.evaluation.held_out import baseline, calibrate, check_fit, evaluate, measure, quality_report, recalibrate
from manta_swarm.automl.evaluation.metrics import disparity_metrics
from manta_swarm.automl.models.classifier import Classifier
from manta_swarm.automl.models.layers import ElasticBatchNorm
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY, space_named
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.protocol.errors import UserError
from tests.automl.small import SMALL


def statistics(supernet: Supernet) -> list[Tensor]:
    norms = [module for module in supernet.modules() if isinstance(module, ElasticBatchNorm)]
    return [buffer.clone() for norm in norms for buffer in (norm.running_mean, norm.running_variance)]


def test_recalibration_changes_running_statistics_only(supernet: Classifier, digits: ImageDataset) -> None:
    weights, gradient, before = supernet.flat_weights_N.clone(), supernet.flat_gradient_N.clone(), statistics(supernet)
    recalibrate(supernet, TINY.smallest(), [resize(digits.train_images[:64], 16, 28)])
    assert torch.equal(supernet.flat_weights_N, weights)
    assert torch.equal(supernet.flat_gradient_N, gradient)
    assert any(not torch.equal(a, b) for a, b in zip(before, statistics(supernet), strict=True))
    after = statistics(supernet)
    supernet.train()
    supernet(resize(digits.train_images[64:96], 16, 28), TINY.smallest())
    assert all(torch.equal(a, b) for a, b in zip(after, statistics(supernet), strict=True))


def test_statistics_of_one_batch_make_evaluation_what_training_computed(supernet: Classifier, digits: ImageDataset) -> None:
    images = resize(digits.train_images[:256], 16, 28)
    with torch.no_grad():
        by_the_batch = supernet.train()(images, TINY.largest())
        recalibrate(supernet, TINY.largest(), [images])
        torch.testing.assert_close(supernet(images, TINY.largest()), by_the_batch, rtol=0.05, atol=0.05)  # n against n - 1


def test_the_running_mean_is_the_mean_over_all_batches(supernet: Classifier, digits: ImageDataset) -> None:
    images = resize(digits.train_images[:96], 16, 28)
    seen: list[Tensor] = []
    first = next(module for module in supernet.modules() if isinstance(module, ElasticBatchNorm))
    hook = first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    recalibrate(supernet, TINY.largest(), torch.split(images, 32))
    hook.remove()
    assert len(seen) == 3
    torch.testing.assert_close(first.running_mean, torch.cat(seen).mean((0, 2, 3)))
    torch.testing.assert_close(first.running_variance, torch.stack([batch.var((0, 2, 3)) for batch in seen]).mean(0), rtol=1e-4, atol=1e-4)


def test_an_accuracy_counts_the_held_out_images_that_are_right(supernet: Classifier, digits: ImageDataset) -> None:
    calibrate(supernet, digits, TINY.smallest())
    logits = supernet(resize(digits.held_out_images, 16, 28), TINY.smallest())
    right = int(np.sum(logits.detach().argmax(1).numpy() == digits.held_out_labels))
    assert evaluate(supernet, digits, [TINY.smallest()]) == [{"accuracy": right / len(digits.held_out_labels)}]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_network_that_computes_no_numbers_has_no_accuracy(digits: ImageDataset, broken: float) -> None:
    with pytest.raises(UserError, match="what a subnet computes is no number"):
        measure(lambda inputs: torch.full((len(inputs), 10), broken), digits, 16)


def test_a_few_steps_of_training_beat_chance_in_the_largest_and_the_smallest_subnet(digits: ImageDataset, few: ImageDataset) -> None:
    supernet, worker = Classifier(TINY), Worker("classifier-tiny", digits)
    supernet.initialise(torch.Generator().manual_seed(0))
    weights = supernet.flat_weights_N.clone()
    momentum = torch.zeros_like(weights)
    for round_ in range(30):
        worker.load(weights)
        base = bytes([round_]) * 32
        microbatches = [Microbatch(0, base, 0, b"k" * 32, index, one, 16) for index, one in enumerate((TINY.largest(), TINY.smallest()))]
        momentum = 0.9 * momentum + torch.stack([worker.train(microbatch).gradient for microbatch in microbatches]).mean(0)
        weights = weights - 0.05 * momentum
    report = quality_report(weights, "classifier-tiny", few, num_random=1)
    assert report["metric"] == "accuracy"
    assert report["baseline"] is None
    assert report["largest"] > 0.4
    assert report["smallest"] > 0.4
    assert len(report["random"]) == 1
    assert 0 <= report["random"][0] <= 1


def test_a_report_tries_the_same_subnets_for_the_same_seed(small: Classifier, few: ImageDataset) -> None:
    reports = [quality_report(small.flat_weights_N, SMALL.name, few, num_random=2, seed=5) for _ in range(2)]
    assert reports[0] == reports[1]


def test_a_part_of_the_held_out_data_is_evaluated_alone(supernet: Classifier, digits: ImageDataset) -> None:
    whole, search, test = (evaluate(supernet, digits, [TINY.smallest()], part=part)[0]["accuracy"] for part in ("all", "search", "test"))
    sizes = [sum(len(batch.targets) for batch in digits.held_out_batches(28, 64, part)) for part in ("search", "test")]
    assert whole == pytest.approx((search * sizes[0] + test * sizes[1]) / sum(sizes))


def test_a_stereo_report_has_the_error_in_pixels_and_that_of_a_constant(stereo: Stereo) -> None:
    motorcycle = load_dataset("motorcycle")
    report = quality_report(stereo.flat_weights_N, "stereo-tiny", motorcycle, num_random=1)
    assert report["metric"] == "epe"
    assert report["baseline"] == baseline(motorcycle, 64)
    assert report["largest"] > 0
    assert stereo.space == STEREO_TINY


def test_no_constant_errs_less_on_the_held_out_pairs_than_the_baseline() -> None:
    motorcycle = load_dataset("motorcycle")
    truths = [batch.targets for batch in motorcycle.held_out_batches(64, 1)]
    assert sum(len(truth) for truth in truths) == motorcycle.num_held_out
    found = baseline(motorcycle, 64)
    values = torch.cat([truth[truth >= 0] for truth in truths])
    constants = torch.linspace(values.min().item(), values.max().item(), 200)
    errors = [disparity_metrics((torch.full_like(truth, one), truth) for truth in truths)["epe"] for one in constants.tolist()]
    assert found <= min(errors)
    assert found == pytest.approx(min(errors), rel=0.02)  # and one that is near its median is about as good


def test_data_of_another_task_or_with_other_channels_or_classes_does_not_fit(digits: ImageDataset) -> None:
    check_fit(digits, TINY)
    for name, words in (("stereo-tiny", "3 and 0"), ("classifier-tiny-3x10", "3 and 10"), ("classifier-tiny-1x11", "1 and 11")):
        with pytest.raises(UserError, match=f"digits does not fit {name}: .*{words}; choose another data set with --data"):
            check_fit(digits, space_named(name))
