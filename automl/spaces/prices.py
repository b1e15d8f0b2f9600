"""What of an architecture has a price, and the keys of these prices in a table: of MACs, in a manifest, or of milliseconds.

A layer has a price for each resolution, kernel and expansion, and where units have a choice of widths, for each number of channels that
come in and go on. So a layer costs the same in all architectures that have it, and a table prices them all.

A key is genes joined by single spaces: the resolution; the width of the unit before, if the layer is its unit's first and that is a
choice; its own unit's width, if that is one; the layer. What every network of a resolution has besides its layers has the resolution as
its key, and the last unit's width, if that is a choice. ``protocol.rewards.architecture_cost`` finds them in a text. No torch.
"""

from collections.abc import Iterator

from manta_swarm.automl.spaces.shapes import LayerShape, layer_shapes, unit_read
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, layer_gene, resolution_gene, width_gene
from manta_swarm.automl.spaces.units import Layer


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
