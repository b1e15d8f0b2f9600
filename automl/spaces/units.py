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

    width: int  # channels that it hands on; the most, where it has a choice of ``widths``
    depths: tuple[int, ...]
    kernels: tuple[int, ...]
    expansions: tuple[int, ...]
    is_bottleneck: bool = False  # whether its layers' spatial convolutions work on the expanded channels; see ``automl.spaces.shapes``
    squeezes: bool = False  # whether its bottlenecks weigh their expanded channels by squeeze and excitation
    activation: Activation = "relu"
    widths: tuple[int, ...] = ()  # what there is to choose from; none: it hands on ``width``, and no architecture says so

    @property
    def smallest_layer(self) -> Layer:
        """The layer with every choice at its minimum."""
        return Layer(self.kernels[0], self.expansions[0])

    @property
    def largest_layer(self) -> Layer:
        """The layer with every choice at its maximum."""
        return Layer(self.kernels[-1], self.expansions[-1])

    def chosen_widths(self) -> tuple[int | None, ...]:
        """Return every choice of a width as architectures have it: None alone where there is none."""
        return self.widths or (None,)

    def layers(self) -> Iterator[Layer]:
        """Yield every choice of a layer."""
        for kernel in self.kernels:
            for expansion in self.expansions:
                yield Layer(kernel, expansion)

    def size(self) -> int:
        """Return how many choices of the whole unit there are."""
        choices = len(self.kernels) * len(self.expansions)
        of_layers: int = sum(choices**depth for depth in self.depths)
        return len(self.chosen_widths()) * of_layers

    def sample_width(self, rng: random.Random) -> int | None:
        """Return a random width; None, and nothing drawn, where there is no choice."""
        return rng.choice(self.widths) if self.widths else None

    def sample(self, rng: random.Random) -> tuple[Layer, ...]:
        """Return the layers of a random choice, whatever its width: first the depth, then one layer after the other."""
        return tuple(self.sample_layer(rng) for _ in range(rng.choice(self.depths)))

    def sample_layer(self, rng: random.Random) -> Layer:
        """Return a random choice of a layer: first the kernel, then the expansion."""
        return Layer(rng.choice(self.kernels), rng.choice(self.expansions))

    def with_largest(self, *, kernels: int, depths: int, expansions: int, widths: int) -> "UnitSpace":
        """Return the unit with so many of its largest kernels, depths, expansions and widths, or with all where it has no more."""
        return replace(
            self,
            depths=self.depths[-depths:],
            kernels=self.kernels[-kernels:],
            expansions=self.expansions[-expansions:],
            widths=self.widths[-widths:],
        )


def units_alike(
    widths: tuple[int, ...], *, depths: tuple[int, ...], kernels: tuple[int, ...], expansions: tuple[int, ...]
) -> tuple[UnitSpace, ...]:
    """Return units of these widths that all have the same choices."""
    return tuple(UnitSpace(width, depths, kernels, expansions) for width in widths)


def bottlenecks(
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    *,
    kernels: tuple[int, ...] = (3, 5, 7),
    expansions: tuple[int, ...] = (3, 4, 6),
    squeezes: bool = False,
    activation: Activation = "relu",
) -> UnitSpace:
    """Return a unit of bottlenecks with a choice of these widths."""
    return UnitSpace(widths[-1], depths, kernels, expansions, is_bottleneck=True, squeezes=squeezes, activation=activation, widths=widths)
