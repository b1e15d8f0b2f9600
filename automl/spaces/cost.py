"""What an architecture costs: multiply-accumulates (MACs) of one sample, and weights. Pure functions of the architecture.

Convolutions, the head and stereo's correlation count; normalisations and activations do not, as usual in the field. MACs are a sum of what
its layers cost, each at its resolution and its width, so that a table prices them all (``automl.spaces.prices``). No torch.
"""

from collections.abc import Iterator
from functools import cache

from manta_swarm.automl.spaces.head import head_macs, head_num_weights
from manta_swarm.automl.spaces.prices import keys_of_unit, layer_keys, price_keys, rest_keys
from manta_swarm.automl.spaces.shapes import active_shapes, unit_sides
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.spaces.stereo_shapes import fixed_macs as stereo_macs
from manta_swarm.automl.spaces.stereo_shapes import fixed_num_weights as stereo_num_weights


@cache
def cost_table(space: SearchSpace) -> tuple[tuple[str, int], ...]:
    """Return (key, MACs) of all that architectures consist of: ``r32`` is what every network of that resolution has, ``r32 u1.0:k3e2`` a
    layer of one; see ``automl.spaces.prices``.
    """
    return tuple(_prices(space))


def _prices(space: SearchSpace) -> Iterator[tuple[str, int]]:
    for resolution in space.resolutions:
        for key, channels in rest_keys(space, resolution):
            yield key, stereo_macs(space, resolution) if space.task == "stereo" else head_macs(space, resolution, channels)
        sides = unit_sides(space, resolution)
        for key, shape, layer in layer_keys(space, resolution):
            height, width = sides[shape.unit]
            yield key, shape.macs(layer, height * width)


@cache
def _prices_by_key(space: SearchSpace) -> dict[str, int]:
    return dict(cost_table(space))


def macs(architecture: Architecture, space: SearchSpace) -> int:
    """Return the MACs of one sample through the architecture's network: what ``torch.utils.flop_counter`` counts, halved."""
    costs = _prices_by_key(space)
    return sum(costs[key] for key in price_keys(architecture))


def num_weights(architecture: Architecture, space: SearchSpace) -> int:
    """Return how many weights the architecture's extracted network has."""
    return fixed_num_weights(architecture, space) + sum(unit_num_weights(architecture, space))


def fixed_num_weights(architecture: Architecture, space: SearchSpace) -> int:
    """Return how many weights the architecture's network has besides those of its units."""
    return stereo_num_weights(space) if space.task == "stereo" else head_num_weights(space, space.widths_of(architecture)[-1])


def unit_macs(architecture: Architecture, space: SearchSpace) -> list[int]:
    """Return the MACs of one sample in each unit."""
    costs = _prices_by_key(space)
    return [sum(costs[key] for key in keys_of_unit(architecture, unit)) for unit in range(len(space.units))]


def unit_num_weights(architecture: Architecture, space: SearchSpace) -> list[int]:
    """Return how many weights the layers of each unit have."""
    counts = [0] * len(space.units)
    for shape, layer in active_shapes(architecture, space):
        counts[shape.unit] += shape.num_weights(layer)
    return counts
