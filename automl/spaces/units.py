"""One unit of a search space: what it hands on, and the choices that its layers have. Pure data, no torch."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Activation = Literal["relu", "hard-swish"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One active layer: the side of its spatial kernel, and how many times it widens its input inside."""

    kernel: int
    expansion: int


@dataclass(frozen=True, slots=True)
class UnitSpace:
    """The choices of one unit, each ascending, and what is fixed."""

    width: int  # channels that it hands on
    depths: tuple[int, ...]
    kernels: tuple[int, ...]
    expansions: tuple[int, ...]
    is_bottleneck: bool = False  # whether its layers' spatial convolutions work on the expanded channels; see ``automl.spaces.shapes``
    squeezes: bool = False  # whether its bottlenecks weigh their expanded channels by squeeze and excitation
    activation: Activation = "relu"

    @property
    def smallest_layer(self) -> Layer:
        """The layer with every choice at its minimum."""
        return Layer(self.kernels[0], self.expansions[0])

    @property
    def largest_layer(self) -> Layer:
        """The layer with every choice at its maximum."""
        return Layer(self.kernels[-1], self.expansions[-1])

    def layers(self) -> Iterator[Layer]:
        """Yield every choice of a layer."""
        for kernel in self.kernels:
            for expansion in self.expansions:
                yield Layer(kernel, expansion)

    def size(self) -> int:
        """Return how many choices of the whole unit there are."""
        choices = len(self.kernels) * len(self.expansions)
        return sum(choices**depth for depth in self.depths)

    def sample(self, rng: random.Random) -> tuple[Layer, ...]:
        """Return the layers of a random choice: first the depth, then one layer after the other."""
        return tuple(self.sample_layer(rng) for _ in range(rng.choice(self.depths)))

    def sample_layer(self, rng: random.Random) -> Layer:
        """Return a random choice of a layer: first the kernel, then the expansion."""
        return Layer(rng.choice(self.kernels), rng.choice(self.expansions))

    def with_largest(self, *, kernels: int, depths: int, expansions: int) -> "UnitSpace":
        """Return the unit with so many of its largest kernels, depths and expansions, or with all where it has no more."""
        return replace(self, depths=self.depths[-depths:], kernels=self.kernels[-kernels:], expansions=self.expansions[-expansions:])


def units_alike(
    widths: tuple[int, ...], *, depths: tuple[int, ...], kernels: tuple[int, ...], expansions: tuple[int, ...]
) -> tuple[UnitSpace, ...]:
    """Return units of these widths that all have the same choices."""
    return tuple(UnitSpace(width, depths, kernels, expansions) for width in widths)
