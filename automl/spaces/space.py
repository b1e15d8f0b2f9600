"""The search space of a supernet and the architectures in it: pure data, no torch.

A gene is the text of one choice: ``r32`` (the resolution, and with it everything that every architecture has), ``u2:w24`` (unit 2 hands
on 24 channels: named where a unit has a choice of widths, before its layers) or ``u2.1:k5e3`` (unit 2, layer 1: kernel 5, expansion 3).
An architecture is its active genes in order, so one network has one text; a unit's depth is the number of its layers that are named. The
resolution is the height of what the network is fed.
"""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from manta_swarm.automl.spaces.units import Layer, UnitSpace, bottlenecks, units_alike
from manta_swarm.protocol.errors import UserError

MAX_TEXT = 400  # a claim names architectures by their text (protocol.records.Claim)

MAX_CLASSES = 100_000
_MAX_TRIES = 10_000  # of a sampling under a condition
_RESOLUTION_GENE = re.compile(r"r([1-9][0-9]{0,3})")
_FITTED = re.compile(r"([a-z]+-[a-z]+)-([13])x([1-9][0-9]{0,5})")
_WIDTH_GENE = re.compile(r"u([1-9]):w([1-9][0-9]{0,3})")
_LAYER_GENE = re.compile(r"u([1-9])\.([0-9]):k([1-9][0-9]?)e([1-9])")


@dataclass(frozen=True, slots=True)
class Architecture:
    """One point of a search space: what is active, and nothing else."""

    resolution: int
    units: tuple[tuple[Layer, ...], ...]
    widths: tuple[int | None, ...] = ()  # what each unit hands on, None where that is no choice; empty where it is one nowhere

    @property
    def genes(self) -> tuple[str, ...]:
        """The architecture's active genes, in order."""
        genes = [resolution_gene(self.resolution)]
        for unit, layers in enumerate(self.units):
            width = self.width(unit)
            if width is not None:
                genes.append(width_gene(unit, width))
            genes += [layer_gene(unit, index, layer) for index, layer in enumerate(layers)]
        return tuple(genes)

    @property
    def text(self) -> str:
        """The architecture's canonical form: the active genes joined by single spaces."""
        return " ".join(self.genes)

    @property
    def id(self) -> str:
        """SHA-256 of the canonical form, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def width(self, unit: int) -> int | None:
        """Return the width that it chooses for a unit; None: that is no choice."""
        return self.widths[unit] if self.widths else None

    def layers(self) -> Iterator[tuple[int, int, Layer]]:
        """Yield (unit, layer index, layer) for every active layer; units and layers count from 0."""
        for unit, layers in enumerate(self.units):
            for index, layer in enumerate(layers):
                yield unit, index, layer

    def to_json(self) -> str:
        """Return it as JSON: resolution, and per unit the kernel and expansion of each layer, and its width if that is a choice."""
        units = [[{"kernel": layer.kernel, "expansion": layer.expansion} for layer in unit] for unit in self.units]
        widths = {"widths": self.widths} if self.widths else {}
        return json.dumps({"resolution": self.resolution, "units": units, **widths})

    @classmethod
    def from_json(cls, text: str, space: "SearchSpace") -> "Architecture":
        """Return the architecture of ``to_json``'s text.

        Raises:
            ValueError: the text is no architecture of this space.
        """
        try:
            value = json.loads(text)
            units = tuple(tuple(Layer(int(layer["kernel"]), int(layer["expansion"])) for layer in unit) for unit in value["units"])
            widths = tuple(None if width is None else int(width) for width in value.get("widths", ()))
            architecture = cls(int(value["resolution"]), units, widths)
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
        units: list[list[Layer]] = [[] for _ in space.units]
        widths: list[int | None] = [None for _ in space.units]
        first, *others = text.split(" ")
        resolution = _RESOLUTION_GENE.fullmatch(first)
        if resolution is None:
            raise ValueError(f"an architecture begins with its resolution, as in r{space.resolutions[-1]}, not with {first!r}")
        for gene in others:
            match = _LAYER_GENE.fullmatch(gene) or _WIDTH_GENE.fullmatch(gene)
            if match is None or int(match[1]) > len(units):
                raise ValueError(f"unknown gene {gene!r}")
            if match.re is _WIDTH_GENE:
                widths[int(match[1]) - 1] = int(match[2])
            else:
                units[int(match[1]) - 1].append(Layer(int(match[3]), int(match[4])))
        architecture = cls(int(resolution[1]), tuple(map(tuple, units)), noted_widths(widths))
        space.check(architecture)
        if architecture.text != text:
            raise ValueError("not the canonical text of an architecture")
        return architecture


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Every choice there is, and what is fixed: the image, the outputs and what stands between the units."""

    name: str
    task: str  # "classification" | "stereo"
    resolutions: tuple[int, ...]  # heights in pixels; ascending, as all choices are
    aspect: int  # width of what the network is fed, in heights
    image_channels: int  # of one image; stereo has two
    num_classes: int  # 0 in stereo
    num_disparities: int  # of the correlation, in pixels at an eighth of the resolution; 0 in classification
    stem_width: int  # channels that the very first convolution makes of the image
    units: tuple[UnitSpace, ...]
    head_width: int = 0  # channels that a 1 x 1 convolution makes of the last unit's, before the mean; 0: there is none

    def __post_init__(self) -> None:
        if self.task == "stereo" and any(unit.widths for unit in self.units):
            raise ValueError("what stereo has besides its units is made for one width of each")

    @property
    def widths(self) -> tuple[int, ...]:
        """What each unit hands on at most."""
        return tuple(unit.width for unit in self.units)

    def widths_of(self, architecture: Architecture) -> tuple[int, ...]:
        """Return what each unit of an architecture hands on."""
        return tuple(architecture.width(number) or unit.width for number, unit in enumerate(self.units))

    def check(self, architecture: Architecture) -> None:
        """Refuse an architecture from outside.

        Raises:
            ValueError: it is not in this space.
        """
        if architecture.resolution not in self.resolutions:
            raise ValueError(f"{self.name} has a resolution of {_choices(self.resolutions)}, not {architecture.resolution}")
        if len(architecture.units) != len(self.units):
            raise ValueError(f"{self.name} has {len(self.units)} units, not {len(architecture.units)}")
        self._check_widths(architecture)
        for number, (unit, layers) in enumerate(zip(self.units, architecture.units, strict=True), 1):
            if len(layers) not in unit.depths:
                raise ValueError(f"unit {number} of {self.name} has a depth of {_choices(unit.depths)}")
            if any(layer.kernel not in unit.kernels or layer.expansion not in unit.expansions for layer in layers):
                raise ValueError(
                    f"a layer of unit {number} of {self.name} has a kernel of {_choices(unit.kernels)} "
                    f"and an expansion of {_choices(unit.expansions)}"
                )

    def _check_widths(self, architecture: Architecture) -> None:
        if len(architecture.widths) not in (0, len(self.units)):
            raise ValueError(f"{self.name} has {len(self.units)} units, and not {len(architecture.widths)} widths")
        for number, unit in enumerate(self.units):
            width = architecture.width(number)
            if width not in unit.chosen_widths():
                said = "which an architecture has to name" if width is None else f"not {width}"
                choices = f"hands on {_choices(unit.widths)} channels, {said}" if unit.widths else "has no choice of widths"
                raise ValueError(f"unit {number + 1} of {self.name} {choices}")
        if architecture.widths != noted_widths(architecture.widths):
            raise ValueError(f"{self.name} has no choice of widths")

    def restricted(
        self,
        *,
        resolutions: tuple[int, ...] | None = None,
        kernels: tuple[int, ...] | None = None,
        depths: tuple[int, ...] | None = None,
        expansions: tuple[int, ...] | None = None,
    ) -> "SearchSpace":
        """Return a part of this space, with these choices in every unit; what is not given stays as it is.

        Its architectures belong to the same supernet.
        """
        units = (
            replace(unit, depths=depths or unit.depths, kernels=kernels or unit.kernels, expansions=expansions or unit.expansions)
            for unit in self.units
        )
        return replace(self, resolutions=resolutions or self.resolutions, units=tuple(units))

    def with_largest(self, *, kernels: int, depths: int, expansions: int, widths: int) -> "SearchSpace":
        """Return the part in which each unit has so many of its largest choices, or all where it has no more."""
        units = (unit.with_largest(kernels=kernels, depths=depths, expansions=expansions, widths=widths) for unit in self.units)
        return replace(self, units=tuple(units))

    def largest(self) -> Architecture:
        """Return the architecture with every choice at its maximum."""
        widths = noted_widths(unit.chosen_widths()[-1] for unit in self.units)
        return Architecture(self.resolutions[-1], tuple((unit.largest_layer,) * unit.depths[-1] for unit in self.units), widths)

    def smallest(self) -> Architecture:
        """Return the architecture with every choice at its minimum."""
        widths = noted_widths(unit.chosen_widths()[0] for unit in self.units)
        return Architecture(self.resolutions[0], tuple((unit.smallest_layer,) * unit.depths[0] for unit in self.units), widths)

    def sample(self, rng: random.Random, accept: Callable[[Architecture], bool] = lambda _: True) -> Architecture:
        """Return an architecture with every choice uniform; the same generator state gives the same one everywhere.

        With ``accept`` the first one that it accepts: uniform among those.

        Raises:
            ValueError: none of ten thousand was accepted.
        """
        for _ in range(_MAX_TRIES):
            resolution = rng.choice(self.resolutions)
            drawn = [(unit.sample_width(rng), unit.sample(rng)) for unit in self.units]
            architecture = Architecture(resolution, tuple(layers for _, layers in drawn), noted_widths(width for width, _ in drawn))
            if accept(architecture):
                return architecture
        raise ValueError(f"none of {_MAX_TRIES} random architectures of {self.name} was acceptable")

    def genes(self) -> tuple[str, ...]:
        """Return every gene there is."""
        genes = [resolution_gene(resolution) for resolution in self.resolutions]
        for number, unit in enumerate(self.units):
            genes += [width_gene(number, width) for width in unit.widths]
            genes += [layer_gene(number, index, layer) for index in range(unit.depths[-1]) for layer in unit.layers()]
        return tuple(genes)

    def size(self) -> int:
        """Return how many architectures there are."""
        return len(self.resolutions) * prod(unit.size() for unit in self.units)

    def __iter__(self) -> Iterator[Architecture]:
        """Yield every architecture, each once; for spaces that are small enough."""
        units = [
            [
                (width, layers)
                for width in unit.chosen_widths()
                for depth in unit.depths
                for layers in itertools.product(list(unit.layers()), repeat=depth)
            ]
            for unit in self.units
        ]
        for resolution in self.resolutions:
            for chosen in itertools.product(*units):
                yield Architecture(resolution, tuple(layers for _, layers in chosen), noted_widths(width for width, _ in chosen))


def _choices(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))


def noted_widths(chosen: Iterable[int | None]) -> tuple[int | None, ...]:
    """Return the widths of an architecture's units as it has them: none where no unit has a choice."""
    widths = tuple(chosen)
    return widths if any(widths) else ()


def resolution_gene(resolution: int) -> str:
    """Return the gene of a resolution."""
    return f"r{resolution}"


def width_gene(unit: int, width: int) -> str:
    """Return the gene of a unit's width; units count from 0."""
    return f"u{unit + 1}:w{width}"


def layer_gene(unit: int, index: int, layer: Layer) -> str:
    """Return the gene of a layer; unit and index count from 0."""
    return f"u{unit + 1}.{index}:k{layer.kernel}e{layer.expansion}"


TINY = SearchSpace(
    name="classifier-tiny",
    task="classification",
    resolutions=(28,),
    aspect=1,
    image_channels=1,
    num_classes=10,
    num_disparities=0,
    stem_width=16,
    units=(  # maps of 14, 7, 4, 2 and 1 pixel: on the last two a kernel of 3 reaches everything
        UnitSpace(16, (1, 2), (3, 5), (2, 3, 4)),
        UnitSpace(24, (1, 2), (3, 5), (2, 3, 4)),
        UnitSpace(40, (1, 2), (3, 5), (2, 3, 4)),
        UnitSpace(64, (1, 2), (3,), (2, 3, 4)),
        UnitSpace(96, (1, 2), (3,), (2, 3, 4)),
    ),
)

BASE = SearchSpace(
    name="classifier-base",
    task="classification",
    resolutions=(128, 160, 192, 224),
    aspect=1,
    image_channels=3,
    num_classes=1000,
    num_disparities=0,
    stem_width=16,
    units=(  # the finer the map, the fewer choices: a layer costs most there, and gives least
        bottlenecks((8, 16), (1, 2), kernels=(3, 5), expansions=(1, 2)),
        bottlenecks((16, 24), (1, 2, 3)),
        bottlenecks((32, 40), (2, 3, 4), squeezes=True),
        bottlenecks((80, 96, 112), (3, 4, 5, 6), squeezes=True, activation="hard-swish"),
        bottlenecks((128, 144, 160), (2, 3, 4), squeezes=True, activation="hard-swish"),
    ),
    head_width=960,
)

STEREO_TINY = SearchSpace(
    name="stereo-tiny",
    task="stereo",
    resolutions=(64,),
    aspect=2,
    image_channels=3,
    num_classes=0,
    num_disparities=8,
    stem_width=16,
    units=(  # the finest map, where layers cost most, is expanded least; the last three have 4, 2 and 1 rows
        UnitSpace(16, (1, 2), (3, 5), (1, 2, 3)),
        UnitSpace(24, (1, 2), (3, 5), (2, 3, 4)),
        UnitSpace(40, (1, 2), (3, 5), (2, 3, 4)),
        UnitSpace(64, (1, 2), (3,), (2, 3, 4)),
        UnitSpace(80, (1, 2), (3,), (2, 3, 4)),
        UnitSpace(96, (1, 2), (3,), (2, 3, 4)),
    ),
)

STEREO_BASE = SearchSpace(
    name="stereo-base",
    task="stereo",
    resolutions=(320,),
    aspect=2,
    image_channels=3,
    num_classes=0,
    num_disparities=40,
    stem_width=32,
    units=units_alike((32, 64, 128, 192, 256, 352), depths=(2, 3, 4), kernels=(3, 5, 7), expansions=(3, 4, 6)),
)

_SPACES = {space.name: space for space in (TINY, BASE, STEREO_TINY, STEREO_BASE)}
FAMILIES = tuple(_SPACES)


def space_named(name: str) -> SearchSpace:
    """Return the search space of a manifest's ``supernet``: ``classifier-tiny``, or ``classifier-tiny-3x100`` with the image
    channels and the classes in its name where they are not the usual ones.

    Raises:
        UserError: this version knows no such supernet.
    """
    if name in _SPACES:
        return _SPACES[name]
    fitted = _FITTED.fullmatch(name)
    if fitted is not None and fitted[1] in _SPACES and _SPACES[fitted[1]].task == "classification":
        channels, classes = int(fitted[2]), int(fitted[3])
        if 2 <= classes <= MAX_CLASSES and fitted_name(fitted[1], channels, classes) == name:
            return replace(_SPACES[fitted[1]], name=name, image_channels=channels, num_classes=classes)
    raise UserError(f"unknown supernet {name!r}: this version knows {', '.join(_SPACES)}")


def fitted_name(family: str, image_channels: int, num_classes: int) -> str:
    """Return the name of the supernet of a family for data with so many image channels and classes; see ``space_named``.

    Raises:
        UserError: this version knows no such family.
    """
    if family not in _SPACES:
        raise UserError(f"unknown supernet {family!r}: this version knows {', '.join(_SPACES)}")
    usual = _SPACES[family]
    if usual.task != "classification" or (usual.image_channels, usual.num_classes) == (image_channels, num_classes):
        return family
    return f"{family}-{image_channels}x{num_classes}"
