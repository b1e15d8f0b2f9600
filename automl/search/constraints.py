"""What an architecture may cost, and the part of a space that keeps to it: checked, sampled from, and returned to. Pure.

A cost is a sum (``automl.spaces.cost``): of a price of the resolution, and of one price for each layer at that resolution, which depends
on how many channels come in and go on, and on nothing else of the other layers. MACs, weights and a measured latency table are. That is
why the cheapest architecture can be computed.
"""

import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from typing import ClassVar, Protocol

from manta_swarm.automl.spaces.cost import macs, num_weights
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.spaces.units import Layer
from manta_swarm.protocol.errors import UserError

_MISSES = 64  # in a row: a region is too tight to be hit at random, or hardly holds anything that is not known
_DESCENTS = 16  # from random architectures, before limits count as excluding each other
_MAX_DRAWS = 10_000  # until a region that is not tight is hit: never reached, or all but never
_DIGITS = 6  # of a value that is proposed to a person


class Cost(Protocol):
    """One of the things that an architecture costs."""

    @property
    def name(self) -> str:
        """What it is called: "latency", "macs" or "weights"."""

    @property
    def option(self) -> str:
        """The option of ``manta-search find`` that limits it."""

    def of(self, architecture: Architecture) -> float:
        """Return what the architecture costs."""


class LatencyModel(Protocol):
    """Knows how long architectures take, as ``automl.latency.table.LatencyTable`` does."""

    def latency_ms(self, architecture: Architecture) -> float:
        """Return the milliseconds of one run."""


@dataclass(frozen=True, slots=True)
class LatencyCost:
    """Milliseconds of one run, by a model of a device."""

    model: LatencyModel
    name: ClassVar[str] = "latency"
    option: ClassVar[str] = "--latency-ms"

    def of(self, architecture: Architecture) -> float:
        """Return the milliseconds."""
        return self.model.latency_ms(architecture)


@dataclass(frozen=True, slots=True)
class Macs:
    """Multiply-accumulates of one sample."""

    space: SearchSpace
    name: ClassVar[str] = "macs"
    option: ClassVar[str] = "--macs"

    def of(self, architecture: Architecture) -> float:
        """Return how many there are."""
        return macs(architecture, self.space)


@dataclass(frozen=True, slots=True)
class WeightCost:
    """Weights of the architecture's network."""

    space: SearchSpace
    name: ClassVar[str] = "weights"
    option: ClassVar[str] = "--weights"

    def of(self, architecture: Architecture) -> float:
        """Return how many there are."""
        return num_weights(architecture, self.space)


def costs_of(space: SearchSpace, model: LatencyModel | None = None) -> tuple[Cost, ...]:
    """Return what architectures of a space cost; latency comes first, where a model of a device is given."""
    return (*(() if model is None else (LatencyCost(model),)), Macs(space), WeightCost(space))


@dataclass(frozen=True, slots=True)
class Constraint:
    """A cost and the most that it may be."""

    cost: Cost
    limit: float

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ValueError(f"a limit is above zero, not {self.limit}")

    def excess(self, architecture: Architecture) -> float:
        """Return by what share of the limit the architecture is above it; 0 where it keeps it."""
        return max(0.0, (self.cost.of(architecture) - self.limit) / self.limit)  # above zero exactly where the cost is above the limit


class Region:
    """The architectures of a space that keep every constraint; never empty."""

    def __init__(self, space: SearchSpace, constraints: Sequence[Constraint] = ()) -> None:
        """Find one architecture that keeps them all.

        Raises:
            UserError: there is none; the message has the nearest limits that can be kept.
        """
        self.space = space
        self.constraints = tuple(constraints)
        self._refuge = self._found()  # where an architecture goes that cannot be repaired
        rng = random.Random(0)
        is_tight = not any(space.sample(rng) in self for _ in range(_MISSES))
        self._draws = 1 if is_tight else _MAX_DRAWS

    def __contains__(self, architecture: Architecture) -> bool:
        return all(constraint.cost.of(architecture) <= constraint.limit for constraint in self.constraints)

    def sample(self, rng: random.Random) -> Architecture:
        """Return a random architecture of the region.

        Uniform, unless the region is so tight that none of 64 random architectures fell into it: then a random one is repaired, which
        favours those close to the limits. A search wants those most; statistics over the region should not be made of them.
        """
        for _ in range(self._draws):
            architecture = self.space.sample(rng)
            if architecture in self:
                return architecture
        return self.repaired(architecture, rng)

    def sample_new(self, count: int, rng: random.Random, known: Collection[Architecture] = ()) -> list[Architecture]:
        """Return ``count`` different architectures, none of them known; fewer where the region has hardly any more."""
        return distinct((self.sample(rng) for _ in itertools.count()), count, known)

    def repaired(self, architecture: Architecture, rng: random.Random) -> Architecture:
        """Return the architecture with random choices replaced by ones that bring it closer to the limits, until it keeps them all."""
        excess = self._excess(architecture)
        while excess > 0.0:
            better = next((other for other in _neighbours(architecture, self.space, rng) if self._excess(other) < excess), None)
            if better is None:  # limits that pull in different directions, or a table that calls a higher resolution cheaper
                return self._refuge
            architecture, excess = better, self._excess(better)
        return architecture

    def _excess(self, architecture: Architecture) -> float:
        return sum(constraint.excess(architecture) for constraint in self.constraints)

    def _found(self) -> Architecture:
        """Return one architecture of the region: the cheapest by one of the costs, or where a descent from there or from anywhere ends."""
        space, rng = self.space, random.Random(0)
        extremes = [space.smallest(), *(self._cheapest(constraint) for constraint in self.constraints)]
        starts = [replace(start, resolution=resolution) for start in extremes for resolution in space.resolutions]
        nearest = space.smallest()
        for start in [*extremes, *starts, *(space.sample(rng) for _ in range(_DESCENTS))]:
            descended = self._descended(start)
            if descended in self:
                return descended
            nearest = min(nearest, descended, key=self._excess)
        limits = [f"{each.cost.option} {_proposal(max(each.limit, each.cost.of(nearest)))}" for each in self.constraints]
        raise UserError(
            f"each limit can be kept, but no architecture of {space.name} was found that keeps all of them at once: "
            f"the nearest feasible values found are {' '.join(limits)}"
        )

    def _cheapest(self, constraint: Constraint) -> Architecture:
        """Return the architecture that keeps one constraint best."""
        architecture, option = cheapest(self.space, constraint.cost), constraint.cost.option
        if constraint.excess(architecture) > 0.0:
            nearest = _proposal(constraint.cost.of(architecture))
            raise UserError(
                f"no architecture of {self.space.name} keeps {option} {constraint.limit:.12g}: "
                f"the nearest feasible value is {option} {nearest}"
            )
        return architecture

    def _descended(self, architecture: Architecture) -> Architecture:
        """Return where the steepest descent towards the limits ends."""
        while self._excess(architecture) > 0.0:
            nearest = min(_neighbours(architecture, self.space), key=self._excess, default=architecture)
            if self._excess(nearest) >= self._excess(architecture):
                break
            architecture = nearest
        return architecture


def region_within(space: SearchSpace, costs: Sequence[Cost], limits: Mapping[str, float]) -> tuple[Region, tuple[Cost, ...]]:
    """Return the region of a space that keeps limits, and the axes of its Pareto front: the costs with a limit, or else the first one.

    Args:
        space: whose architectures they are.
        costs: of them.
        limits: by the names of their costs; each above zero.

    Raises:
        UserError: no architecture keeps them all.
    """
    constraints = [Constraint(cost, limits[cost.name]) for cost in costs if cost.name in limits]
    return Region(space, constraints), tuple(constraint.cost for constraint in constraints) or tuple(costs[:1])


def cheapest(space: SearchSpace, cost: Cost) -> Architecture:
    """Return the architecture of the space with the lowest cost: exact, because a cost is a sum (see above)."""
    return min((_cheapest_at(resolution, space, cost) for resolution in space.resolutions), key=cost.of)


def _cheapest_at(resolution: int, space: SearchSpace, cost: Cost) -> Architecture:
    # For each width of the unit that was decided last, the cheapest units up to it: what follows depends on nothing else of them.
    best = [replace(space.smallest(), resolution=resolution)]
    for number, unit in enumerate(space.units):
        best = [
            min((_cheapest_unit(_with_width(start, number, width), number, space, cost) for start in best), key=cost.of)
            for width in unit.chosen_widths()
        ]
    return min(best, key=cost.of)


def _cheapest_unit(architecture: Architecture, number: int, space: SearchSpace, cost: Cost) -> Architecture:
    """Return the architecture with the cheapest layers in one unit."""
    unit, of_depth = space.units[number], []
    for depth in unit.depths:
        candidate = _with_unit(architecture, number, (unit.smallest_layer,) * depth)
        for index in range(depth):
            candidate = min(_with_other_layers(candidate, number, index, space), key=cost.of)
        of_depth.append(candidate)
    return min(of_depth, key=cost.of)


def distinct(drawn: Iterator[Architecture], count: int, known: Collection[Architecture]) -> list[Architecture]:
    """Return ``count`` different architectures of endless draws, none of them known; fewer where 64 in a row bring no new one."""
    chosen: dict[Architecture, None] = {}
    misses = 0
    while len(chosen) < count and misses < _MISSES:
        architecture = next(drawn)
        if architecture in known or architecture in chosen:
            misses += 1
        else:
            chosen[architecture] = None
            misses = 0
    return list(chosen)


def _neighbours(architecture: Architecture, space: SearchSpace, rng: random.Random | None = None) -> Iterator[Architecture]:
    """Yield every architecture with another resolution, with one unit less deep or of another width, or with one layer replaced; shuffled
    by ``rng``.
    """
    sites = [(-1, -1)]  # the resolution; unit and -1: a depth; unit and -2: a width
    for unit, layers in enumerate(architecture.units):
        sites += [(unit, index) for index in range(-2 if space.units[unit].widths else -1, len(layers))]
    if rng is not None:
        rng.shuffle(sites)
    for unit, index in sites:
        others = list(_others(architecture, unit, index, space))
        if rng is not None:
            rng.shuffle(others)
        yield from others


def _others(architecture: Architecture, unit: int, index: int, space: SearchSpace) -> Iterator[Architecture]:
    if unit < 0:
        yield from (replace(architecture, resolution=other) for other in space.resolutions if other != architecture.resolution)
    elif index < -1:
        widths = space.units[unit].widths
        yield from (_with_width(architecture, unit, width) for width in widths if width != architecture.width(unit))
    elif index < 0:
        layers = architecture.units[unit]
        yield from (_with_unit(architecture, unit, layers[:depth]) for depth in space.units[unit].depths if depth < len(layers))
    else:
        yield from (other for other in _with_other_layers(architecture, unit, index, space) if other != architecture)


def _with_other_layers(architecture: Architecture, unit: int, index: int, space: SearchSpace) -> Iterator[Architecture]:
    layers = architecture.units[unit]
    for layer in space.units[unit].layers():
        yield _with_unit(architecture, unit, (*layers[:index], layer, *layers[index + 1 :]))


def _with_width(architecture: Architecture, unit: int, width: int | None) -> Architecture:
    """Return the architecture with another width of a unit; itself where that is no choice."""
    widths = architecture.widths
    return architecture if width is None else replace(architecture, widths=(*widths[:unit], width, *widths[unit + 1 :]))


def _with_unit(architecture: Architecture, unit: int, layers: tuple[Layer, ...]) -> Architecture:
    units = architecture.units
    return replace(architecture, units=(*units[:unit], layers, *units[unit + 1 :]))


def _proposal(value: float) -> str:
    """Return the value rounded up, so that a person who types it gets a limit that can be kept."""
    if value == int(value):
        return str(int(value))
    return f"{Context(prec=_DIGITS, rounding=ROUND_CEILING).create_decimal_from_float(value):f}"
