"""What an architecture costs: multiply-accumulates (MACs) of one sample, and weights. Pure functions of the architecture.

Convolutions, the head and stereo's correlation count; normalisations and activations do not, as usual in the field. MACs are a sum over
the genes of an architecture, each at its resolution, so that a table prices them all. No torch.
"""

from collections.abc import Iterator
from functools import cache

from automl.spaces.head import head_macs, head_num_weights
from automl.spaces.shapes import layer_shapes, unit_sides
from automl.spaces.space import Architecture, SearchSpace, layer_gene
from automl.spaces.stereo_shapes import fixed_macs as stereo_macs
from automl.spaces.stereo_shapes import fixed_num_weights as stereo_num_weights


@cache
def cost_table(space: SearchSpace) -> tuple[tuple[str, int], ...]:
    """Return (key, MACs) for every gene of the space: ``r32`` is what every network of that resolution has, ``r32 u1.0:k3e2`` a layer
    of one.
    """
    return tuple(_prices(space))


def _prices(space: SearchSpace) -> Iterator[tuple[str, int]]:
    for resolution in space.resolutions:
        yield f"r{resolution}", stereo_macs(space, resolution) if space.task == "stereo" else head_macs(space, resolution)
        sides = unit_sides(space, resolution)
        for shape in layer_shapes(space):
            height, width = sides[shape.unit]
            for layer in space.units[shape.unit].layers():
                yield f"r{resolution} {layer_gene(shape.unit, shape.index, layer)}", shape.macs(layer, height * width)


@cache
def _prices_by_key(space: SearchSpace) -> dict[str, int]:
    return dict(cost_table(space))


def macs(architecture: Architecture, space: SearchSpace) -> int:
    """Return the MACs of one sample through the architecture's network: what ``torch.utils.flop_counter`` counts, halved."""
    costs = _prices_by_key(space)
    resolution, *genes = architecture.genes
    return costs[resolution] + sum(costs[f"{resolution} {gene}"] for gene in genes)


def num_weights(architecture: Architecture, space: SearchSpace) -> int:
    """Return how many weights the architecture's extracted network has."""
    return fixed_num_weights(space) + sum(unit_num_weights(architecture, space))


def fixed_num_weights(space: SearchSpace) -> int:
    """Return how many weights every network of the space has besides those of its units."""
    return stereo_num_weights(space) if space.task == "stereo" else head_num_weights(space)


def unit_macs(architecture: Architecture, space: SearchSpace) -> list[int]:
    """Return the MACs of one sample in each unit."""
    costs = _prices_by_key(space)
    first = f"r{architecture.resolution}"
    return [
        sum(costs[f"{first} {layer_gene(unit, index, layer)}"] for index, layer in enumerate(layers))
        for unit, layers in enumerate(architecture.units)
    ]


def unit_num_weights(architecture: Architecture, space: SearchSpace) -> list[int]:
    """Return how many weights the layers of each unit have."""
    counts = [0] * len(space.units)
    for shape in layer_shapes(space):
        layers = architecture.units[shape.unit]
        if shape.index < len(layers):
            counts[shape.unit] += shape.num_weights(layers[shape.index])
    return counts
