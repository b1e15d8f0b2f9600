import random

import numpy as np
import pytest

from manta_swarm.automl.evaluation.samples import LOSS_UNIT
from manta_swarm.automl.search.evolution import Point
from manta_swarm.automl.search.resampling import Losses
from manta_swarm.automl.search.search import HALVES, chosen, rehearsed
from manta_swarm.automl.spaces.space import TINY

RNG = random.Random(0)
ARCHITECTURES = [TINY.smallest(), *(TINY.sample(RNG) for _ in range(9))]


def points_of(losses_AN: Losses, costs: list[float] | None = None) -> list[Point]:
    costs = costs or [float(1 + place) for place in range(len(losses_AN))]
    return [Point(each, (cost,), -float(row.mean())) for each, cost, row in zip(ARCHITECTURES, costs, losses_AN, strict=False)]


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_what_the_textbook_standard_error_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.integers(0, 10_000, (10, 60)) + rng.integers(0, 1500, 10)[:, None]
    best = losses[losses.mean(axis=1).argmin()]
    close = [row for row in range(10) if (losses[row] - best).mean() <= (losses[row] - best).std(ddof=1) / np.sqrt(60)]
    assert chosen(points_of(losses), losses) == close[0]  # they are in the order of their costs


def test_what_all_find_hard_does_not_hide_a_difference() -> None:
    hard = np.array([0, 100, 50_000, 200_000])
    losses = np.stack([hard + 60, hard])
    assert chosen(points_of(losses), losses) == 1


def test_of_equals_the_cheaper_one_is_taken_by_the_product_of_its_costs() -> None:
    losses = np.full((3, 8), 500)
    points = [Point(each, costs, 0.0) for each, costs in zip(ARCHITECTURES, [(2.0, 300.0), (5.0, 100.0), (1.0, 700.0)], strict=False)]
    assert chosen(points, losses) == 1


def test_a_rehearsal_shows_the_luck_of_the_half_that_chooses() -> None:
    losses = np.random.default_rng(0).integers(0, 2 * LOSS_UNIT, (10, 100))
    found = rehearsed(points_of(losses), losses, 0, seed=1)
    assert found is not None
    assert found.halves == HALVES
    assert found.chosen_on < found.elsewhere
    assert rehearsed(points_of(losses), losses, 0, seed=1) == found


def test_a_rehearsal_finds_a_real_difference_on_every_half() -> None:
    losses = np.random.default_rng(0).integers(0, 2000, (3, 100)) + np.array([9000, 3000, 9000])[:, None]
    found = rehearsed(points_of(losses), losses, 0, seed=1)
    assert found is not None
    assert found.better == HALVES
    assert found.elsewhere == pytest.approx(0.4, abs=0.02)
    assert found.smallest == pytest.approx(1.0, abs=0.02)


def test_too_few_samples_are_not_halved() -> None:
    losses = np.ones((2, 3), np.int64)
    assert rehearsed(points_of(losses), losses, 0, seed=1) is None
