"""The Pareto front: what no other architecture beats in every cost and in the score at once. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from manta_swarm.automl.spaces.space import Architecture

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Point:
    """An architecture whose score is known."""

    architecture: Architecture
    costs: tuple[float, ...]  # one for each of the search's axes, in its unit; lower is better
    score: float  # the negative loss, or what a predictor makes of it; higher is better


def expense(point: Point) -> float:
    """Return one number for all costs, to say which is cheaper: their product, in which no unit and no scale matters."""
    return math.prod(point.costs)


def by_merit(point: Point) -> tuple[float, float]:
    """Return what to sort by, best first: the score; of equal scores the cheaper."""
    return (-point.score, expense(point))


def front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other one dominates, by ascending first cost; with one axis so by ascending score as well.

    One dominates another if it costs no more on any axis, scores no less, and is better in one of them. Of points with the same costs
    and the same score the first stands for all. O(n log n) with one axis, O(n times the front) with several.
    """
    kept: list[Point] = []
    best = -math.inf
    for point in sorted(points, key=lambda point: (point.costs, -point.score)):
        # Nobody later dominates one that is kept: its costs come later in that order, or are equal with no better a score.
        if point.score > best or (len(point.costs) > 1 and not any(_covers(other, point) for other in kept)):
            kept.append(point)
            best = max(best, point.score)
    return kept


def _covers(other: Point, point: Point) -> bool:
    return other.score >= point.score and all(one <= two for one, two in zip(other.costs, point.costs, strict=True))


def spread(points: Sequence[Item], count: int) -> list[Item]:
    """Return at most ``count`` of the points of a front, evenly over their order, the first and the last among them."""
    if len(points) <= count:
        return list(points)
    if count < 2:
        return list(points[-1:])[:count]
    return [points[index * (len(points) - 1) // (count - 1)] for index in range(count)]
