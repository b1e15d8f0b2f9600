import random

from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.automl.search.evolution import Point, front, spread
from manta_swarm.automl.spaces.space import TINY

VALUES = st.integers(0, 6).map(float)  # few values, so that there are ties
POINTS = st.integers(1, 3).flatmap(  # axes
    lambda axes: st.lists(st.builds(Point, st.just(TINY.smallest()), st.tuples(*[VALUES] * axes), VALUES), max_size=30)
)


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
