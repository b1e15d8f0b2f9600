from array import array

import numpy as np
import pytest

from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.resampling import unseen


def measured(losses: list[int], wrong: list[int]) -> Measured:
    accuracy = 1.0 - len(wrong) / len(losses)
    return Measured({"accuracy": accuracy, "loss": sum(losses) / len(losses) / 10_000}, array("i", losses), array("i", wrong))


def test_the_choice_is_compared_with_the_smallest_and_the_median_of_random_ones() -> None:
    choice, smallest = measured([1000] * 10, [0]), measured([3000] * 10, [0, 1, 2])
    others = [measured([loss] * 10, list(range(count))) for loss, count in ((2000, 2), (9000, 9), (1500, 1))]
    found = unseen(choice, smallest, others, seed=0)
    assert (found.samples, found.num_random) == (10, 3)
    assert found.loss.choice.value == pytest.approx(0.1)
    assert found.loss.smallest == pytest.approx(0.3)
    assert found.loss.random_median == pytest.approx(0.2)
    assert found.loss.behind == found.loss.behind.__class__(0.2, 0.2, 0.2)  # the same of every sample: no doubt
    assert found.errors is not None
    assert found.errors.choice.value == pytest.approx(0.1)
    assert found.errors.smallest == pytest.approx(0.3)
    assert found.errors.random_median == pytest.approx(0.2)
    assert found.errors.behind.value == pytest.approx(0.2)
    assert found.errors.behind.low < 0.2 < found.errors.behind.high


def test_differences_are_of_the_same_samples() -> None:
    hard = np.random.default_rng(0).integers(0, 100_000, 50)
    found = unseen(measured(hard.tolist(), []), measured((hard + 10).tolist(), []), [], seed=0)
    assert found.loss.behind.low == found.loss.behind.high == pytest.approx(0.001)
    assert found.loss.choice.high - found.loss.choice.low > 1.0
    assert (found.loss.random_median, found.loss.random_behind) == (None, None)


def test_stereo_has_a_loss_and_no_classes() -> None:
    pair = Measured({"epe": 1.5, "d1": 0.1, "bad3": 0.1}, array("i", [10_000, 20_000]), array("i"))
    assert unseen(pair, pair, [pair], seed=0).errors is None
