"""A classifier with few weights and few layers, for tests of what is done with the weights and gradients of any."""

from dataclasses import replace

import pytest

from manta_swarm.automl.spaces import space as spaces
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.spaces.units import UnitSpace

SMALL = replace(
    TINY,
    name="classifier-small",
    stem_width=8,
    units=(UnitSpace(8, (1, 2), (3, 5), (2, 3)), UnitSpace(16, (1, 2), (3, 5), (2, 3)), UnitSpace(24, (1, 2), (3,), (2, 3))),
)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the space known by its name."""
    monkeypatch.setitem(spaces._SPACES, SMALL.name, SMALL)
