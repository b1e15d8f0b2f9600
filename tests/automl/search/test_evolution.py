import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.search.constraints import Constraint, Region
from manta_swarm.automl.search.evolution import Effort, Point, by_merit, evolve, front, spread
from manta_swarm.automl.spaces.space import TINY, Architecture
from tests.automl.search.synthetic import SMALL, macs_of, score_of, weights_of

MACS = macs_of(SMALL)
WHOLE = list(SMALL)
LIMITS = sorted(set(map(MACS.of, WHOLE)))

VALUES = st.integers(0, 6).map(float)  # few values, so that there are ties
POINTS = st.integers(1, 3).flatmap(  # axes
    lambda axes: st.lists(st.builds(Point, st.just(TINY.smallest()), st.tuples(*[VALUES] * axes), VALUES), max_size=30)
)


class Scorer:
    """Scores as ``score_of``, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Architecture] = []

    def scores(self, architectures: Sequence[Architecture]) -> list[float]:
        self.asked.extend(architectures)
        return [score_of(architecture) for architecture in architectures]


@pytest.mark.parametrize("limit", LIMITS[::6])
def test_evolution_finds_the_true_optimum_under_a_constraint(limit: float) -> None:
    region = Region(SMALL, [Constraint(MACS, limit)])
    points = evolve(region, [MACS], Scorer(), Effort(8, 6), random.Random(0))
    assert min(points, key=by_merit).score == max(score_of(each) for each in WHOLE if MACS.of(each) <= limit)


@given(st.floats(0.0, 1.0), st.integers(0, 2**32))
@settings(max_examples=12)
def test_no_architecture_is_scored_that_violates_a_constraint_or_twice(share: float, seed: int) -> None:
    weights = weights_of(SMALL)
    constraints = [
        Constraint(MACS, LIMITS[0] + share * (LIMITS[-1] - LIMITS[0])),
        Constraint(weights, 1.2 * weights.of(SMALL.smallest())),
    ]
    scorer = Scorer()
    points = evolve(Region(SMALL, constraints), [MACS, weights], scorer, Effort(5, 4), random.Random(seed))
    asked = scorer.asked
    assert [point.architecture for point in points] == asked
    assert len(set(asked)) == len(asked) <= 20
    assert all(constraint.cost.of(each) <= constraint.limit for constraint in constraints for each in asked)


def test_the_last_generation_counts() -> None:
    generations: list[Sequence[Architecture]] = []

    class LaterIsBetter:
        def scores(self, architectures: Sequence[Architecture]) -> list[float]:
            generations.append(architectures)
            return [float(len(generations))] * len(architectures)

    points = evolve(Region(TINY), [macs_of(TINY)], LaterIsBetter(), Effort(6, 4), random.Random(0))
    assert [len(generation) for generation in generations] == [6] * 4
    assert min(points, key=by_merit).architecture in generations[-1]


def test_the_same_seed_and_the_same_scores_give_the_same_search() -> None:
    one, same, other = (evolve(Region(TINY), [macs_of(TINY)], Scorer(), Effort(6, 4), random.Random(seed)) for seed in (1, 1, 2))
    assert one == same != other


def test_evolution_ends_when_the_region_is_exhausted() -> None:
    region = Region(SMALL, [Constraint(MACS, LIMITS[2])])
    points = evolve(region, [MACS], Scorer(), Effort(10, 100), random.Random(0))
    assert {point.architecture for point in points} == {each for each in WHOLE if MACS.of(each) <= LIMITS[2]}


def test_evolution_beats_as_many_random_architectures() -> None:
    limit = 1.5e6
    region = Region(TINY, [Constraint(macs_of(TINY), limit)])
    evolved = evolve(region, [macs_of(TINY)], Scorer(), Effort(20, 10), random.Random(0))
    drawn = region.sample_new(200, random.Random(1))
    assert max(point.score for point in evolved) > max(map(score_of, drawn))


def test_what_it_starts_from_is_of_the_first_generation() -> None:
    start = [TINY.smallest(), TINY.largest()]
    points = evolve(Region(TINY), [macs_of(TINY)], Scorer(), Effort(6, 2), random.Random(0), start)
    assert [point.architecture for point in points[:2]] == start
    assert len(points) == 12


def dominates(one: Point, other: Point) -> bool:
    is_cheap = all(first <= second for first, second in zip(one.costs, other.costs, strict=True))
    return is_cheap and one.score >= other.score and (one.costs, one.score) != (other.costs, other.score)


@given(POINTS)
def test_the_front_is_what_brute_force_finds_undominated(points: list[Point]) -> None:
    found = [(point.costs, point.score) for point in front(points)]
    assert found == sorted({(p.costs, p.score) for p in points if not any(dominates(other, p) for other in points)})


@given(POINTS, st.randoms(use_true_random=False))
def test_the_front_does_not_depend_on_the_order(points: list[Point], rng: random.Random) -> None:
    shuffled = rng.sample(points, len(points))
    assert front(shuffled) == front(points)


def test_of_equal_points_the_first_stands_for_all() -> None:
    points = [Point(TINY.smallest(), (1.0,), 1.0), Point(TINY.largest(), (1.0,), 1.0)]
    assert front(points) == points[:1]
    assert front(points[::-1]) == points[1:]


@given(st.integers(0, 40), st.integers(0, 12))
def test_a_spread_has_both_ends_and_nothing_twice(length: int, count: int) -> None:
    chosen = spread(range(length), count)
    assert len(chosen) == min(length, count)
    assert sorted(set(chosen)) == chosen
    if length and count:
        assert chosen[-1] == length - 1
    if length and count > 1:
        assert chosen[0] == 0
