"""How new architectures are made of known ones: mutation and crossover. Pure."""

import random

from manta_swarm.automl.spaces.space import Architecture, SearchSpace, noted_widths
from manta_swarm.automl.spaces.units import Layer, UnitSpace


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
