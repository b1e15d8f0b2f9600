"""Small spaces, costs and scores that are functions of the architecture, and evaluators made of them."""

import itertools
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from manta_swarm.automl.evaluation.held_out import Quality
from manta_swarm.automl.evaluation.samples import LOSS_UNIT, Measured
from manta_swarm.automl.search.constraints import Cost, LatencyCost, Macs, WeightCost
from manta_swarm.automl.spaces.space import TINY, Architecture, SearchSpace
from manta_swarm.automl.spaces.units import units_alike

# 108 architectures
SMALL = replace(TINY, resolutions=(24, 28, 32), units=units_alike((8, 8), depths=(1, 2), kernels=(3, 5), expansions=(2,)))

Key = tuple[int, ...]


def macs_of(space: SearchSpace) -> Cost:
    return Macs(space)


def weights_of(space: SearchSpace) -> Cost:
    return WeightCost(space)


class UnevenTable:
    """A latency table in which a larger kernel, a deeper layer or a higher resolution may well be the faster one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._prices: dict[Key, float] = {}

    def latency_ms(self, architecture: Architecture) -> float:
        r = architecture.resolution
        layers = []
        for unit, index, layer in architecture.layers():
            channels_in = architecture.width(unit if index or not unit else unit - 1)
            widths = () if not architecture.widths else (channels_in or 0, architecture.width(unit) or 0)
            layers.append((r, unit, index, layer.kernel, layer.expansion, *widths))
        last = architecture.width(len(architecture.units) - 1)
        return sum(map(self._price, layers), self._price((r,) if last is None else (r, last)))

    def _price(self, key: Key) -> float:
        if key not in self._prices:
            self._prices[key] = random.Random(f"{self._seed}:{key}").uniform(0.1, 1.0)
        return self._prices[key]


@cache
def latency_of(seed: int) -> Cost:
    return LatencyCost(UnevenTable(seed))


def score_of(architecture: Architecture) -> float:
    """Larger is better, with less and less gain; some layers matter more, and neighbours interact."""
    size = 0.02 * architecture.resolution
    for unit, index, layer in architecture.layers():
        size += (1.0 + 0.3 * unit) * (1.0 + 0.1 * layer.kernel * (layer.expansion - index)) / (1.0 + index)
    sizes = [len(unit) * unit[0].kernel for unit in architecture.units]
    size += 0.05 * sum(one * other for one, other in itertools.pairwise(sizes))
    return 1.0 - 1.0 / (1.0 + size)


def quality_of(architecture: Architecture, part: str) -> Quality:
    loss = 1.0 - score_of(architecture) + (0.01 if part == "test" else 0.0)
    return {"accuracy": 1.0 - loss, "loss": loss}


def measured_of(architecture: Architecture, part: str) -> Measured:
    """Return eight samples, none of which finds any architecture harder than another does: no standard error blurs their order."""
    loss = round(quality_of(architecture, part)["loss"] * 100 * LOSS_UNIT)  # so fine that rounding makes no two equal
    return Measured(quality_of(architecture, part), array("i", [loss * (1 + place) for place in range(8)]), array("i", [0, 5]))


class SyntheticEvaluator:
    """Measures nothing; remembers what it was asked for, and fails at request ``failing`` (from 0)."""

    def __init__(self, failing: int | None = None) -> None:
        self.asked: list[tuple[str, Architecture]] = []
        self._failing = failing

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterator[Measured]:
        for architecture in architectures:
            if len(self.asked) == self._failing:
                raise KeyboardInterrupt
            self.asked.append((part, architecture))
            yield measured_of(architecture, part)


class Silent:
    """Watches a search for nobody."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, int]] = []
        self.count = 0

    def begin(self, what: str, total: int) -> None:
        self.parts.append((what, total))

    def measured(self, measured: Measured) -> None:
        self.count += 1
