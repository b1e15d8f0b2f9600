"""Classifiers for tests whose units have widths to choose from: layers and neighbours of every kind, small enough to build many of them."""

from dataclasses import replace

import pytest

from manta_swarm.automl.spaces import space as spaces
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.spaces.units import UnitSpace, bottlenecks

NARROW = replace(
    TINY,
    name="classifier-narrow",
    resolutions=(32, 48),
    stem_width=8,
    units=(
        bottlenecks((8, 16), (1, 2), kernels=(3, 5), expansions=(1, 2)),
        UnitSpace(16, (1, 2), (3, 5, 7), (2, 3), is_bottleneck=True, squeezes=True),  # no choice, between two that have one
        UnitSpace(24, (1, 2), (3, 5), (2, 3), widths=(8, 16, 24)),  # layers that convolve on the narrow side
        UnitSpace(16, (1, 2), (3, 5), (1, 2), widths=(8, 16)),
        bottlenecks((24, 40), (1, 2), kernels=(3, 5), expansions=(2, 3), squeezes=True, activation="hard-swish"),
    ),
)
FIXED = replace(NARROW, name="classifier-narrow-fixed", units=tuple(replace(unit, widths=()) for unit in NARROW.units))
WIDENED = replace(NARROW, name="classifier-narrow-widened", head_width=48)
SMALL_NARROW = replace(  # 2 * 12 * 24 architectures
    TINY,
    name="classifier-small-narrow",
    resolutions=(24, 32),
    units=(
        UnitSpace(16, (1, 2), (3,), (1, 2), widths=(8, 16)),
        UnitSpace(16, (1, 2), (3,), (2,)),
        UnitSpace(24, (1,), (3, 5), (2,), widths=(8, 16, 24)),
    ),
)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the spaces known by their names."""
    for space in (NARROW, FIXED, WIDENED, SMALL_NARROW):
        monkeypatch.setitem(spaces._SPACES, space.name, space)
