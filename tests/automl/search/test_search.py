import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from manta_swarm.automl.evaluation.samples import LOSS_UNIT, Measured
from manta_swarm.automl.search.constraints import Constraint, Region
from manta_swarm.automl.search.evolution import Effort, Point, front
from manta_swarm.automl.search.journal import Journal
from manta_swarm.automl.search.search import Found, Strategy, default_predictor, search
from manta_swarm.automl.spaces.space import BASE, STEREO_TINY, TINY, Architecture
from manta_swarm.protocol.errors import UserError
from tests.automl.search.synthetic import SMALL, Silent, SyntheticEvaluator, macs_of, measured_of, score_of, weights_of

DIRECT = Strategy(Effort(6, 5), seed=1, has_predictor=False, num_samples=40)
PREDICTED = Strategy(Effort(6, 5), seed=1, has_predictor=True, num_samples=40)
WHOLE = Strategy(Effort(20, 10), seed=1, has_predictor=False, num_samples=40)
MACS = macs_of(TINY)
REGION = Region(TINY, [Constraint(MACS, 1.2e6)])


@pytest.fixture(autouse=True)
def _few_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.automl.search.search._PREDICTED_EFFORT", Effort(30, 6))


def searched(evaluator: SyntheticEvaluator, strategy: Strategy, journal: Journal, watch: Silent | None = None) -> Found:
    return search(REGION, [MACS], evaluator, strategy, journal, watch or Silent())


@cache
def heard(strategy: Strategy) -> tuple[Found, list[tuple[str, Architecture]], Silent, Journal]:
    """Return what a search finds, what it asks for, what is heard of it, and what is kept of it."""
    evaluator, watch, journal = SyntheticEvaluator(), Silent(), Journal()
    return searched(evaluator, strategy, journal, watch), evaluator.asked, watch, journal


def undisturbed(strategy: Strategy) -> tuple[Found, list[tuple[str, Architecture]]]:
    """Return what a search finds, and what it asks for."""
    found, asked, _, _ = heard(strategy)
    return found, asked


def test_the_front_of_a_space_within_the_budget_equals_brute_force() -> None:
    cost = macs_of(SMALL)
    everything = [Point(each, (cost.of(each),), score_of(each)) for each in SMALL]
    limit = sorted(point.costs[0] for point in everything)[80]
    found = search(Region(SMALL, [Constraint(cost, limit)]), [cost], SyntheticEvaluator(), WHOLE, Journal(), Silent())
    expected = front(point for point in everything if point.costs[0] <= limit)
    assert [candidate.architecture for candidate in found.front] == [point.architecture for point in expected]
    assert found.best.architecture == max(expected, key=lambda point: point.score).architecture
    assert found.is_whole


@pytest.mark.parametrize("strategy", [DIRECT, PREDICTED], ids=["direct", "predicted"])
def test_no_result_violates_a_constraint_and_everything_measured_counts(strategy: Strategy) -> None:
    found, everything = undisturbed(strategy)
    asked = [architecture for part, architecture in everything if part == "search"]
    assert all(MACS.of(architecture) <= 1.2e6 for architecture in asked)
    assert [point.architecture for point in found.points] == asked
    assert found.best.search.quality["accuracy"] == max(map(score_of, asked))
    assert len(asked) == (30 if strategy is DIRECT else 46)


def test_the_front_the_smallest_and_random_ones_are_measured_on_the_test_half() -> None:
    found, asked = undisturbed(DIRECT)
    tested = [architecture for part, architecture in asked if part == "test"]
    assert tested[: len(found.front)] == [each.architecture for each in found.front]
    assert TINY.smallest() in tested
    assert (
        len(tested) == len(set(tested)) == len(found.front) + (TINY.smallest() not in tested[: len(found.front)]) + found.unseen.num_random
    )
    assert found.unseen.num_random == 20
    assert all(MACS.of(architecture) <= 1.2e6 for architecture in tested)
    assert all(each.search == measured_of(each.architecture, "search") for each in found.front)
    assert all(each.test == measured_of(each.architecture, "test") for each in found.front)


@pytest.mark.parametrize(("strategy", "failing"), [(DIRECT, 0), (DIRECT, 1), (DIRECT, 17), (DIRECT, 30), (PREDICTED, 17), (PREDICTED, 43)])
def test_a_search_that_was_broken_off_goes_on_to_the_same_result(strategy: Strategy, failing: int) -> None:
    expected, asked = undisturbed(strategy)
    journal, first, second = Journal(), SyntheticEvaluator(failing), SyntheticEvaluator()
    with pytest.raises(KeyboardInterrupt):
        searched(first, strategy, journal)
    assert searched(second, strategy, journal) == expected
    assert first.asked + second.asked == asked


def test_a_finished_search_measures_nothing_when_repeated() -> None:
    again = SyntheticEvaluator()
    expected, _, _, journal = heard(PREDICTED)
    assert searched(again, PREDICTED, journal) == expected
    assert again.asked == []


def test_a_predictor_finds_better_ones_than_those_it_was_fitted_to() -> None:
    found, _ = undisturbed(PREDICTED)
    assert found.fit is not None
    assert found.fit.rank_correlation > 0.5
    fitted, verified = found.points[:40], found.points[40:]
    assert -found.best.search.loss > max(point.score for point in fitted)
    assert max(point.score for point in verified) == -found.best.search.loss


def test_a_region_too_small_for_a_predictor_is_searched_without() -> None:
    region = Region(TINY, [Constraint(MACS, MACS.of(TINY.smallest()))])
    found = search(region, [MACS], SyntheticEvaluator(), PREDICTED, Journal(), Silent())
    assert found.fit is None
    assert [point.architecture for point in found.points] == [TINY.smallest()]


def test_a_search_is_at_least_as_good_as_two_hundred_random_architectures() -> None:
    strategy = Strategy(Effort(20, 10), seed=1, has_predictor=False, num_samples=40)
    rng = random.Random(5)
    best_of_random = max(map(score_of, REGION.sample_new(200, rng)))
    assert searched(SyntheticEvaluator(), strategy, Journal()).best.search.quality["accuracy"] >= best_of_random


def test_a_quality_that_is_no_number_is_refused() -> None:
    class Broken:
        def measure(self, architectures: Sequence[Architecture], part: str) -> list[Measured]:
            return [Measured({"epe": float("nan")}, array("i", [0]), array("i")) for _ in architectures]

    with pytest.raises(UserError, match="no number"):
        search(REGION, [MACS], Broken(), DIRECT, Journal(), Silent())


def test_large_spaces_get_a_predictor_and_small_ones_do_not() -> None:
    assert default_predictor(BASE)
    assert not default_predictor(TINY)
    assert not default_predictor(STEREO_TINY)


def test_the_watch_hears_of_every_measurement() -> None:
    _, asked, watch, _ = heard(PREDICTED)
    assert [what for what, _ in watch.parts] == ["sampling", "verifying", "testing"]
    assert watch.count == sum(total for _, total in watch.parts) == len(asked)


def test_several_axes_make_one_front_over_all_of_them() -> None:
    axes = [macs_of(SMALL), weights_of(SMALL)]
    found = search(Region(SMALL), axes, SyntheticEvaluator(), WHOLE, Journal(), Silent())
    expected = front(Point(each, tuple(axis.of(each) for axis in axes), score_of(each)) for each in SMALL)
    assert [candidate.architecture for candidate in found.front] == [point.architecture for point in expected]
    alone = search(Region(SMALL), axes[:1], SyntheticEvaluator(), WHOLE, Journal(), Silent())
    assert {each.architecture for each in alone.front} < {each.architecture for each in found.front}


class Noisy:
    """All architectures are equally good but for luck."""

    def __init__(self, salt: int = 0) -> None:
        self._salt = salt

    def measure(self, architectures: Sequence[Architecture], part: str) -> list[Measured]:
        return [self._measured(architecture, part) for architecture in architectures]

    def _measured(self, architecture: Architecture, part: str) -> Measured:
        rng = random.Random(f"{architecture.id}:{part}:{self._salt}")
        losses = array("i", [LOSS_UNIT + rng.randrange(LOSS_UNIT) for _ in range(400)])
        return Measured({"accuracy": 0.5, "loss": sum(losses) / len(losses) / LOSS_UNIT}, losses, array("i", range(0, 400, 2)))


def test_where_nothing_but_luck_tells_architectures_apart_a_cheap_one_is_taken_and_no_advantage_is_claimed() -> None:
    cheaper = 0
    for seed in range(5):
        found = search(REGION, [MACS], Noisy(), replace(DIRECT, seed=seed), Journal(), Silent())
        luckiest = MACS.of(found.front[-1].architecture)  # now and then a cheap one
        assert MACS.of(found.best.architecture) <= luckiest
        cheaper += MACS.of(found.best.architecture) < luckiest
        assert found.rehearsal is not None
        assert found.rehearsal.chosen_on < found.rehearsal.elsewhere  # the luck of who chooses
        advantage = found.unseen.loss.random_behind
        assert advantage is not None
        assert advantage.low < 0.0 < advantage.high
    assert cheaper >= 3


def test_what_is_no_better_than_the_smallest_on_samples_that_did_not_choose_it_is_not_taken() -> None:
    pays, costly, lucky = [], [], 0
    for salt in range(12):
        found = search(REGION, [MACS], Noisy(salt), DIRECT, Journal(), Silent())
        assert found.rehearsal is not None
        pays.append(found.rehearsal.pays)
        costly.append(found.best.architecture != REGION.space.smallest())
        assert found.rehearsal.pays or not costly[-1]
        lowest = [point.architecture for point in found.points if point.score == max(each.score for each in found.points)]
        lucky += lowest != [REGION.space.smallest()]
    assert lucky >= 10  # by luck another one nearly always has the lowest loss of all
    assert not all(pays)
