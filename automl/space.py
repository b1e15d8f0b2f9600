"""The search space of a supernet and the architectures in it: pure data, no torch.

A gene is the text of one choice: ``r32`` (the resolution, and with it everything that every architecture has) or ``u2.1:k5e3``
(unit 2, layer 1: kernel 5, expansion 3). An architecture is its active genes in order, so one network has one text; a unit's
depth is the number of its layers that are named.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from protocol.errors import UserError

MAX_TEXT = 200  # a claim names architectures by their text (protocol.records.Claim)

_LAYER_GENE = re.compile(r"u([1-9])\.([0-9]):k([1-9][0-9]?)e([1-9])")


@dataclass(frozen=True, slots=True)
class Layer:
    """One active layer: the side of its spatial kernel, and how many times it widens its input inside."""

    kernel: int
    expansion: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """One point of a search space: what is active, and nothing else."""

    resolution: int
    units: tuple[tuple[Layer, ...], ...]

    @property
    def genes(self) -> tuple[str, ...]:
        """Its active genes, in order."""
        return (_resolution_gene(self.resolution), *(_layer_gene(unit, index, layer) for unit, index, layer in self.layers()))

    @property
    def text(self) -> str:
        """Its canonical form: the active genes joined by single spaces."""
        return " ".join(self.genes)

    @property
    def id(self) -> str:
        """SHA-256 of the canonical form, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def layers(self) -> Iterator[tuple[int, int, Layer]]:
        """Yield (unit, layer index, layer) for every active layer; units and layers count from 0."""
        for unit, layers in enumerate(self.units):
            for index, layer in enumerate(layers):
                yield unit, index, layer

    def to_json(self) -> str:
        """Return it as JSON: resolution, and per unit the kernel and expansion of each layer."""
        units = [[{"kernel": layer.kernel, "expansion": layer.expansion} for layer in unit] for unit in self.units]
        return json.dumps({"resolution": self.resolution, "units": units})

    @classmethod
    def from_json(cls, text: str, space: "SearchSpace") -> "Architecture":
        """Return the architecture of ``to_json``'s text.

        Raises:
            ValueError: the text is no architecture of this space.
        """
        try:
            value = json.loads(text)
            units = tuple(tuple(Layer(int(layer["kernel"]), int(layer["expansion"])) for layer in unit) for unit in value["units"])
            architecture = cls(int(value["resolution"]), units)
        except (TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(f"not an architecture: {error!r}") from error
        space.check(architecture)
        if json.loads(architecture.to_json()) != value:
            raise ValueError("not an architecture: it says more than an architecture has")
        return architecture

    @classmethod
    def parse(cls, text: str, space: "SearchSpace") -> "Architecture":
        """Return the architecture whose canonical text is ``text``.

        Raises:
            ValueError: the text is not the canonical text of an architecture of this space.
        """
        if len(text) > MAX_TEXT:
            raise ValueError(f"an architecture's text has at most {MAX_TEXT} characters")
        units: list[list[Layer]] = [[] for _ in space.widths]
        for gene in text.split(" ")[1:]:
            match = _LAYER_GENE.fullmatch(gene)
            if match is None or int(match[1]) > len(units):
                raise ValueError(f"unknown gene {gene!r}")
            units[int(match[1]) - 1].append(Layer(int(match[3]), int(match[4])))
        architecture = cls(space.resolution, tuple(map(tuple, units)))
        space.check(architecture)
        if architecture.text != text:
            raise ValueError("not the canonical text of an architecture")
        return architecture


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Every choice there is, and what is fixed: the widths that the units hand on, the image and the classes."""

    name: str
    resolution: int
    image_channels: int
    num_classes: int
    stem_width: int  # channels that the very first convolution makes of the image
    widths: tuple[int, ...]  # what each unit hands on
    depths: tuple[int, ...]  # ascending, as all choices are
    kernels: tuple[int, ...]
    expansions: tuple[int, ...]

    def check(self, architecture: Architecture) -> None:
        """Refuse an architecture from outside.

        Raises:
            ValueError: it is not in this space.
        """
        if architecture.resolution != self.resolution or len(architecture.units) != len(self.widths):
            raise ValueError(f"{self.name} has {len(self.widths)} units at resolution {self.resolution}")
        if any(len(unit) not in self.depths for unit in architecture.units):
            raise ValueError(f"a unit of {self.name} has a depth of {self.depths}")
        if any(layer.kernel not in self.kernels or layer.expansion not in self.expansions for _, _, layer in architecture.layers()):
            raise ValueError(f"a layer of {self.name} has a kernel of {self.kernels} and an expansion of {self.expansions}")

    def largest(self) -> Architecture:
        """Return the architecture with every choice at its maximum."""
        return self._uniform(self.depths[-1], Layer(self.kernels[-1], self.expansions[-1]))

    def smallest(self) -> Architecture:
        """Return the architecture with every choice at its minimum."""
        return self._uniform(self.depths[0], Layer(self.kernels[0], self.expansions[0]))

    def _uniform(self, depth: int, layer: Layer) -> Architecture:
        return Architecture(self.resolution, ((layer,) * depth,) * len(self.widths))

    def sample(self, rng: random.Random) -> Architecture:
        """Return an architecture with every choice uniform; the same generator state gives the same one everywhere."""
        units = []
        for _ in self.widths:
            depth = rng.choice(self.depths)
            units.append(tuple(Layer(rng.choice(self.kernels), rng.choice(self.expansions)) for _ in range(depth)))
        return Architecture(self.resolution, tuple(units))

    def genes(self) -> tuple[str, ...]:
        """Return every gene there is."""
        layers = [Layer(kernel, expansion) for kernel in self.kernels for expansion in self.expansions]
        positions = [(unit, index) for unit in range(len(self.widths)) for index in range(self.depths[-1])]
        return (_resolution_gene(self.resolution), *(_layer_gene(unit, index, layer) for unit, index in positions for layer in layers))

    def size(self) -> int:
        """Return how many architectures there are."""
        choices = len(self.kernels) * len(self.expansions)
        return prod(sum(choices**depth for depth in self.depths) for _ in self.widths)


def _resolution_gene(resolution: int) -> str:
    return f"r{resolution}"


def _layer_gene(unit: int, index: int, layer: Layer) -> str:
    return f"u{unit + 1}.{index}:k{layer.kernel}e{layer.expansion}"


TINY = SearchSpace(
    name="classifier-tiny",
    resolution=32,
    image_channels=1,
    num_classes=10,
    stem_width=16,
    widths=(16, 24, 40, 64, 96),
    depths=(1, 2),
    kernels=(3, 5, 7),
    expansions=(2, 3, 4),
)

_SPACES = {space.name: space for space in (TINY,)}


def space_named(name: str) -> SearchSpace:
    """Return the search space of a manifest's ``supernet``.

    Raises:
        UserError: this version knows no such supernet.
    """
    if name not in _SPACES:
        raise UserError(f"unknown supernet {name!r}: this version knows {', '.join(_SPACES)}")
    return _SPACES[name]
