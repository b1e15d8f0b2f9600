"""What an architecture costs: multiply-accumulates (MACs) of one sample, and weights. Pure functions of the architecture. No torch.

Convolutions, the head and stereo's correlation count; normalisations and activations do not, as usual in the field.

MACs are a sum of prices, and so are milliseconds in a latency table. A layer has a price for each resolution, kernel and expansion, and
where units have a choice of widths, for each number of channels that come in and go on. So a layer costs the same in all architectures
that have it, and a table prices them all.

A key is genes joined by single spaces: the resolution; the width of the unit before, if the layer is its unit's first and that is a
choice; its own unit's width, if that is one; the layer. What every network of a resolution has besides its layers has the resolution as
its key, and the last unit's width, if that is a choice. ``protocol.rewards.architecture_cost`` finds them in a text.
"""

from collections.abc import Iterator
from functools import cache

from manta_swarm.automl.spaces.shapes import LayerShape, active_shapes, layer_shapes, unit_read, unit_sides
from manta_swarm.automl.spaces.shapes import fixed_macs as stereo_macs
from manta_swarm.automl.spaces.shapes import fixed_num_weights as stereo_num_weights
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, layer_gene, resolution_gene, width_gene
from manta_swarm.automl.spaces.units import Layer


@cache
def cost_table(space: SearchSpace) -> tuple[tuple[str, int], ...]:
    """Return (key, MACs) of all that architectures consist of: ``r32`` is what every network of that resolution has, ``r32 u1.0:k3e2`` a
    layer of one.
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


def rest_keys(space: SearchSpace, resolution: int) -> Iterator[tuple[str, int]]:
    """Yield the key of what every network of a resolution has besides its layers, for each number of channels that it reads, and these."""
    last = len(space.units) - 1
    for width in space.units[last].chosen_widths():
        yield _key(resolution, [(last, width)]), width or space.widths[last]


def layer_keys(space: SearchSpace, resolution: int) -> Iterator[tuple[str, LayerShape, Layer]]:
    """Yield the key of every layer that there may be at a resolution, its shape, and its kernel and expansion."""
    for widest in layer_shapes(space):
        unit, reads = space.units[widest.unit], unit_read(widest)
        before = space.units[reads].chosen_widths() if 0 <= reads < widest.unit else (None,)
        for channels_in in before:
            for width in unit.chosen_widths():
                own_in = width if reads == widest.unit else channels_in
                shape = widest.narrowed(own_in or widest.channels_in, width or widest.width)
                for layer in unit.layers():
                    gene = layer_gene(widest.unit, widest.index, layer)
                    yield _key(resolution, [(reads, channels_in), (widest.unit, width)], gene), shape, layer


def rest_key(architecture: Architecture) -> str:
    """Return the key of what the architecture has besides its layers."""
    last = len(architecture.units) - 1
    return _key(architecture.resolution, [(last, architecture.width(last))])


def keys_of_unit(architecture: Architecture, unit: int) -> list[str]:
    """Return the keys of the layers of a unit, in order."""
    before = (unit - 1, architecture.width(unit - 1) if unit else None)
    own = (unit, architecture.width(unit))
    return [
        _key(architecture.resolution, [own] if index else [before, own], layer_gene(unit, index, layer))
        for index, layer in enumerate(architecture.units[unit])
    ]


def price_keys(architecture: Architecture) -> list[str]:
    """Return the keys of all that an architecture consists of: what it costs is the sum of their prices."""
    return [rest_key(architecture), *(key for unit in range(len(architecture.units)) for key in keys_of_unit(architecture, unit))]


def _key(resolution: int, widths: list[tuple[int, int | None]], *genes: str) -> str:
    named = [width_gene(unit, width) for unit, width in widths if width is not None]
    return " ".join([resolution_gene(resolution), *named, *genes])


def num_features(space: SearchSpace, channels: int) -> int:
    """Return how many channels the linear layer reads, where the last unit hands on ``channels``."""
    return space.head_width or channels


def head_macs(space: SearchSpace, resolution: int, channels: int) -> int:
    """Return the multiply-accumulates of one image in all but the searchable layers, of which the last one hands on ``channels``."""
    height, width = unit_sides(space, resolution)[-1]
    return height * width * channels * space.head_width + num_features(space, channels) * space.num_classes


def head_num_weights(space: SearchSpace, channels: int) -> int:
    """Return how many weights all but the searchable layers has, those of the normalisation among them."""
    return (channels + 2) * space.head_width + (num_features(space, channels) + 1) * space.num_classes
