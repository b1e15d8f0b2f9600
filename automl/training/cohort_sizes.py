"""What a cohort's size allows: architectures up to a part of the range of costs, and how one of them is drawn. Pure.

Costs are MACs (``automl.spaces.cost``), over the whole of the supernet's search space, whichever part of it a phase trains: a device is as
fast in one phase as in another.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.protocol.cohorts import ALL, NUM_SIZES

_REMEMBERED = 4096  # draws: a table's rows are asked for again and again
_Choice = tuple[int, int, str]  # unit and layer; -1 where it is not of one


def bound_macs(space: SearchSpace, size: int) -> int:
    """Return the most MACs that an architecture of a size costs: as many quarters of the way from the smallest to the largest.

    Args:
        space: the supernet's whole space.
        size: see ``protocol.cohorts``.
    """
    least, most = macs(space.smallest(), space), macs(space.largest(), space)
    return least + (most - least) * size // NUM_SIZES


@lru_cache(_REMEMBERED)
def drawn(part: SearchSpace, whole: SearchSpace, size: int, seed: str) -> Architecture:
    """Return a random architecture of ``part`` that costs no more than its size allows, or the smallest one, if even that costs more.

    The first draw is that of every size. As long as it costs too much, one choice at random becomes the next smaller one, which ends at
    the smallest architecture at the latest.

    Args:
        part: what a phase trains of ``whole``.
        whole: the supernet's space.
        size: see ``protocol.cohorts``.
        seed: the same one gives the same architecture everywhere.
    """
    rng = random.Random(seed)
    architecture = part.sample(rng)
    if size == ALL:
        return architecture
    bound = bound_macs(whole, size)
    while macs(architecture, whole) > bound:
        choices = list(_reducible(part, architecture))
        if not choices:
            break
        architecture = _reduced(part, architecture, rng.choice(choices))
    return architecture


def _reducible(space: SearchSpace, architecture: Architecture) -> Iterator[_Choice]:
    """Yield each choice that is not the least one there is."""
    if architecture.resolution > space.resolutions[0]:
        yield -1, -1, "resolution"
    for unit, layers in enumerate(architecture.units):
        least = space.units[unit]
        width = architecture.width(unit)
        if width is not None and width > least.widths[0]:
            yield unit, -1, "width"
        if len(layers) > least.depths[0]:
            yield unit, -1, "depth"
        for index, layer in enumerate(layers):
            if layer.kernel > least.kernels[0]:
                yield unit, index, "kernel"
            if layer.expansion > least.expansions[0]:
                yield unit, index, "expansion"


def _reduced(space: SearchSpace, architecture: Architecture, choice: _Choice) -> Architecture:
    """Return the architecture with the next smaller one of a choice; a unit loses its last layers."""
    unit, index, what = choice
    if what == "resolution":
        return replace(architecture, resolution=_before(space.resolutions, architecture.resolution))
    layers, choices = list(architecture.units[unit]), space.units[unit]
    width = architecture.width(unit)
    if what == "width" and width is not None:
        widths = (*architecture.widths[:unit], _before(choices.widths, width), *architecture.widths[unit + 1 :])
        return replace(architecture, widths=widths)
    if what == "depth":
        layers = layers[: _before(choices.depths, len(layers))]
    elif what == "kernel":
        layers[index] = replace(layers[index], kernel=_before(choices.kernels, layers[index].kernel))
    else:
        layers[index] = replace(layers[index], expansion=_before(choices.expansions, layers[index].expansion))
    units = list(architecture.units)
    units[unit] = tuple(layers)
    return replace(architecture, units=tuple(units))


def _before(choices: tuple[int, ...], choice: int) -> int:
    return choices[choices.index(choice) - 1]
