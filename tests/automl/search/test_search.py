import random

import pytest

from automl.evaluation.held_out import Quality
from automl.search.constraints import Constraint, Region
from automl.search.evolution import Effort
from automl.search.front import Point, front
from automl.search.journal import Journal
from automl.search.search import Found, Strategy, default_predictor, search
from automl.spaces.space import BASE, STEREO_TINY, TINY, Architecture
from protocol.errors import UserError
from tests.automl.search.synthetic import SMALL, Silent, SyntheticEvaluator, macs_of, quality_of, score_of

DIRECT = Strategy(Effort(6, 5), seed=1, has_predictor=False, num_samples=40)
PREDICTED = Strategy(Effort(6, 5), seed=1, has_predictor=True, num_samples=40)
WHOLE = Strategy(Effort(20, 10), seed=1, has_predictor=False, num_samples=40)
MACS = macs_of(TINY)
REGION = Region(TINY, [Constraint(MACS, 1.2e6)])


@pytest.fixture(autouse=True)
def _few_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("automl.search.search._PREDICTED_EFFORT", Effort(60, 8))


def searched(evaluator: SyntheticEvaluator, strategy: Strategy, journal: Journal | None = None) -> Found:
    return search(REGION, MACS, evaluator, strategy, journal or Journal(), Silent())


def test_the_front_of_a_space_within_the_budget_equals_brute_force() -> None:
    cost = macs_of(SMALL)
    everything = [Point(each, cost.of(each), score_of(each)) for each in SMALL]
    limit = sorted(point.cost for point in everything)[80]
    found = search(Region(SMALL, [Constraint(cost, limit)]), cost, SyntheticEvaluator(), WHOLE, Journal(), Silent())
    expected = front(point for point in everything if point.cost <= limit)
    assert [candidate.architecture for candidate in found.front] == [point.architecture for point in expected]
    assert found.best.architecture == max(expected, key=lambda point: point.score).architecture
    assert found.is_whole


@pytest.mark.parametrize("strategy", [DIRECT, PREDICTED], ids=["direct", "predicted"])
def test_no_result_violates_a_constraint_and_everything_measured_counts(strategy: Strategy) -> None:
    evaluator = SyntheticEvaluator()
    found = searched(evaluator, strategy)
    asked = [architecture for part, architecture in evaluator.asked if part == "search"]
    assert all(MACS.of(architecture) <= 1.2e6 for architecture in asked)
    assert [point.architecture for point in found.points] == asked
    assert found.best.search_quality["accuracy"] == max(map(score_of, asked))
    assert len(asked) == (30 if strategy is DIRECT else 46)


def test_the_reported_front_alone_is_measured_on_the_test_half() -> None:
    evaluator = SyntheticEvaluator()
    found = searched(evaluator, DIRECT)
    assert [architecture for part, architecture in evaluator.asked if part == "test"] == [each.architecture for each in found.front]
    assert all(each.search_quality == quality_of(each.architecture, "search") for each in found.front)
    assert all(each.test_quality == quality_of(each.architecture, "test") for each in found.front)


@pytest.mark.parametrize(("strategy", "failing"), [(DIRECT, 0), (DIRECT, 1), (DIRECT, 17), (DIRECT, 30), (PREDICTED, 17), (PREDICTED, 43)])
def test_a_search_that_was_broken_off_goes_on_to_the_same_result(strategy: Strategy, failing: int) -> None:
    undisturbed = SyntheticEvaluator()
    expected = searched(undisturbed, strategy)
    journal, first, second = Journal(), SyntheticEvaluator(failing), SyntheticEvaluator()
    with pytest.raises(KeyboardInterrupt):
        searched(first, strategy, journal)
    assert searched(second, strategy, journal) == expected
    assert first.asked + second.asked == undisturbed.asked


def test_a_finished_search_measures_nothing_when_repeated() -> None:
    journal, again = Journal(), SyntheticEvaluator()
    expected = searched(SyntheticEvaluator(), PREDICTED, journal)
    assert searched(again, PREDICTED, journal) == expected
    assert again.asked == []


def test_a_predictor_finds_better_ones_than_those_it_was_fitted_to() -> None:
    found = searched(SyntheticEvaluator(), PREDICTED)
    assert found.fit is not None
    assert found.fit.rank_correlation > 0.5
    fitted, verified = found.points[:40], found.points[40:]
    assert found.best.search_quality["accuracy"] > max(point.score for point in fitted)
    assert max(point.score for point in verified) == found.best.search_quality["accuracy"]


def test_a_region_too_small_for_a_predictor_is_searched_without() -> None:
    region = Region(TINY, [Constraint(MACS, MACS.of(TINY.smallest()))])
    found = search(region, MACS, SyntheticEvaluator(), PREDICTED, Journal(), Silent())
    assert found.fit is None
    assert [point.architecture for point in found.points] == [TINY.smallest()]


def test_a_search_is_at_least_as_good_as_two_hundred_random_architectures() -> None:
    strategy = Strategy(Effort(20, 10), seed=0, has_predictor=False, num_samples=40)
    rng = random.Random(5)
    best_of_random = max(map(score_of, REGION.sample_new(200, rng)))
    assert searched(SyntheticEvaluator(), strategy).best.search_quality["accuracy"] >= best_of_random


def test_a_quality_that_is_no_number_is_refused() -> None:
    class Broken:
        def qualities(self, architectures: list[Architecture], part: str) -> list[Quality]:
            return [{"epe": float("nan")} for _ in architectures]

    with pytest.raises(UserError, match="no number"):
        search(REGION, MACS, Broken(), DIRECT, Journal(), Silent())


def test_large_spaces_get_a_predictor_and_small_ones_do_not() -> None:
    assert default_predictor(BASE)
    assert not default_predictor(TINY)
    assert not default_predictor(STEREO_TINY)


def test_the_watch_hears_of_every_measurement() -> None:
    watch, evaluator = Silent(), SyntheticEvaluator()
    search(REGION, MACS, evaluator, PREDICTED, Journal(), watch)
    assert [what for what, _ in watch.parts] == ["sampling", "verifying", "testing"]
    assert watch.count == sum(total for _, total in watch.parts) == len(evaluator.asked)
