"""The tiny supernets with kernels of 3, 5 and 7 in every unit: two transforms in a row, also on maps of one pixel."""

from dataclasses import replace

import pytest

from manta_swarm.automl.spaces import space as spaces
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY
from manta_swarm.automl.spaces.units import units_alike

CHOICES = {"depths": (1, 2), "kernels": (3, 5, 7), "expansions": (2, 3, 4)}
KERNELS = replace(TINY, name="classifier-kernels", units=units_alike(TINY.widths, **CHOICES))
STEREO_KERNELS = replace(STEREO_TINY, name="stereo-kernels", units=units_alike(STEREO_TINY.widths, **CHOICES))


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the spaces known by their names."""
    for space in (KERNELS, STEREO_KERNELS):
        monkeypatch.setitem(spaces._SPACES, space.name, space)
