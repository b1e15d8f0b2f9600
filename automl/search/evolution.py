"""Evolution in a region of a search space, where the best stay, and the Pareto front: what no other beats in every cost and in the score.

The best stay as in arXiv:1904.00420 (section 3.4) and once-for-all (arXiv:1908.09791). Every generation consists of architectures not seen
before. Parents are the best of all generations and, so that the whole Pareto front grows, some spread over the front. Everything random
comes from one generator: the same seed and the same scores give the same search.

New architectures are made of known ones by mutation and crossover. Pure.
"""

import math
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from manta_swarm.automl.search.constraints import Cost, Region, distinct
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, noted_widths
from manta_swarm.automl.spaces.units import Layer, UnitSpace

Item = TypeVar("Item")

MIN_SAMPLES = 20  # that a predictor is fitted to
_PARENTS = 4  # one in so many of a population
_MUTATION = 0.1  # the chance of every choice; arXiv:1904.00420


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


class Scorer(Protocol):
    """Says how good architectures are."""

    def scores(self, architectures: Sequence[Architecture]) -> Sequence[float]:
        """Return a number for each architecture, higher for a better one."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is searched: at most ``population * generations`` architectures; the first generation is random."""

    population: int = 40
    generations: int = 15

    @property
    def budget(self) -> int:
        """The most architectures that are scored."""
        return self.population * self.generations


def evolve(
    region: Region, axes: Sequence[Cost], scorer: Scorer, effort: Effort, rng: random.Random, start: Sequence[Architecture] = ()
) -> list[Point]:
    """Return every architecture that was scored, in the order of their birth; the last generation is scored like all others.

    Ends early where the region has no architectures left. ``axes`` are the costs of the points; ``start``, different ones of the region,
    are of the first generation, as many as it has room for.
    """
    points: dict[Architecture, Point] = {}
    for generation in range(effort.generations):
        parents = _parents(list(points.values()), max(2, effort.population // _PARENTS)) if generation else []
        newborn = _children(parents, region, effort.population, points, rng) if parents else list(start)[: effort.population]
        newborn += region.sample_new(effort.population - len(newborn), rng, {*points, *newborn})
        if not newborn:
            break
        for architecture, score in zip(newborn, scorer.scores(newborn), strict=True):
            points[architecture] = Point(architecture, tuple(axis.of(architecture) for axis in axes), score)
    return list(points.values())


def _parents(points: Sequence[Point], count: int) -> list[Architecture]:
    chosen = [*sorted(points, key=by_merit)[:count], *spread(front(points), count)]
    return list(dict.fromkeys(point.architecture for point in chosen))


def _children(
    parents: Sequence[Architecture], region: Region, count: int, known: Collection[Architecture], rng: random.Random
) -> list[Architecture]:
    """Return at most ``count`` new architectures of the region: about half mutants of one parent, the others crossings of two."""

    def children() -> Iterator[Architecture]:
        while True:
            one, other = rng.choice(parents), rng.choice(parents)
            yield region.repaired(mutated(one, region.space, rng, _MUTATION) if rng.random() < 0.5 else crossed(one, other, rng), rng)

    return distinct(children(), count, known)


def mutated(architecture: Architecture, space: SearchSpace, rng: random.Random, probability: float) -> Architecture:
    """Return the architecture with each choice drawn anew with ``probability``: resolution, widths, depths, kernels, expansions.

    A unit that becomes deeper gets random layers, one that becomes shallower loses its last ones. May return what it was given.
    """
    resolution = rng.choice(space.resolutions) if rng.random() < probability else architecture.resolution
    units, widths = [], []
    for number, (layers, unit) in enumerate(zip(architecture.units, space.units, strict=True)):
        widths.append(_mutated_width(architecture.width(number), unit, rng, probability))
        units.append(_mutated_unit(layers, unit, rng, probability))
    return Architecture(resolution, tuple(units), noted_widths(widths))


def _mutated_width(width: int | None, unit: UnitSpace, rng: random.Random, probability: float) -> int | None:
    """Return another width, or the same; where there is no choice nothing is drawn."""
    return rng.choice(unit.widths) if unit.widths and rng.random() < probability else width


def _mutated_unit(layers: tuple[Layer, ...], unit: UnitSpace, rng: random.Random, probability: float) -> tuple[Layer, ...]:
    depth = rng.choice(unit.depths) if rng.random() < probability else len(layers)
    mutated = [*layers[:depth], *(unit.sample_layer(rng) for _ in range(depth - len(layers)))]
    for index, layer in enumerate(mutated):
        kernel = rng.choice(unit.kernels) if rng.random() < probability else layer.kernel
        expansion = rng.choice(unit.expansions) if rng.random() < probability else layer.expansion
        mutated[index] = Layer(kernel, expansion)
    return tuple(mutated)


def crossed(one: Architecture, other: Architecture, rng: random.Random) -> Architecture:
    """Return a child: the resolution and each unit's width and depth from either parent, each layer from either parent that has it."""
    resolution = rng.choice((one.resolution, other.resolution))
    units, widths = [], []
    for number, (mine, theirs) in enumerate(zip(one.units, other.units, strict=True)):
        width, their_width = one.width(number), other.width(number)
        widths.append(width if width is None else rng.choice((width, their_width)))
        depth = len(rng.choice((mine, theirs)))
        layers = [rng.choice([unit[index] for unit in (mine, theirs) if index < len(unit)]) for index in range(depth)]
        units.append(tuple(layers))
    return Architecture(resolution, tuple(units), noted_widths(widths))
