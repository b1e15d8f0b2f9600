"""A classifier with few weights and few layers, for tests of what is done with the weights and gradients of any; ``small_known`` of
``tests/automl/conftest.py`` makes it known by its name."""

from dataclasses import replace

from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.spaces.units import UnitSpace

SMALL = replace(
    TINY,
    name="classifier-small",
    stem_width=8,
    units=(UnitSpace(8, (1, 2), (3, 5), (2, 3)), UnitSpace(16, (1, 2), (3, 5), (2, 3)), UnitSpace(24, (1, 2), (3,), (2, 3))),
)
