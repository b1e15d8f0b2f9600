"""The Pareto front: what no other architecture beats in cost and score at once. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from automl.spaces.space import Architecture

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Point:
    """An architecture whose score is known."""

    architecture: Architecture
    cost: float  # in the unit of the search's axis; lower is better
    score: float  # see automl.evaluation.held_out.score; higher is better


def by_merit(point: Point) -> tuple[float, float]:
    """Return what to sort by, best first: the score; of equal scores the cheaper."""
    return (-point.score, point.cost)


def front(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other one dominates, by ascending cost and so by ascending score; O(n log n).

    One dominates another if it costs no more, scores no less, and is better in one of the two. Of points with the same cost and the
    same score the first stands for all.
    """
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.score)):
        if not kept or point.score > kept[-1].score:
            kept.append(point)
    return kept


def spread(points: Sequence[Item], count: int) -> list[Item]:
    """Return at most ``count`` of the points of a front, evenly over their order, the first and the last among them."""
    if len(points) <= count:
        return list(points)
    if count < 2:
        return list(points[-1:])[:count]
    return [points[index * (len(points) - 1) // (count - 1)] for index in range(count)]
