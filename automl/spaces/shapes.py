"""The shape of every layer of a supernet, searchable or fixed: lists that the networks, their cost and their latency all follow. No torch.

Searchable layers are in one list, each layer at its widest. Where units have a choice of widths, an architecture's layer is that layer
``narrowed``: fewer channels come in, or go on.

What is the same in every stereo architecture is the join, the fine match and the steps up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.spaces.units import Activation, Layer

NUM_SHARED_UNITS = 3  # of stereo: they see both views
_REDUCTION = 2  # of each unit's first layer
_SQUEEZE = 4  # a bottleneck squeezes to a fourth of its channels in, in whole steps
_SQUEEZE_STEP = 8

UP_KERNEL = 4  # of a transposed convolution of stride 2: a multiple of the stride, or it would leave a chequered pattern
WARP_OFFSETS = (-1, 0, 1)  # pixels of half the resolution by which the right view is moved from where a disparity says
_MIN_DECODER_WIDTH = 8  # and that of the step to half the resolution
_FULL_WIDTH = 4  # of the step to the full resolution, where a channel costs most
MATCH_STEP, WARP_STEP, FULL_STEP = 3, 4, 5  # the steps up to a quarter, to half and to the full resolution


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One searchable layer, whatever its kernel and expansion: its K x K convolution works on the narrow side."""

    unit: int  # from 0
    index: int  # in its unit, from 0
    channels_in: int
    spatial: int  # channels of its K x K convolution; dense where that is not ``channels_in``, else depthwise
    width: int  # channels that it hands on
    stride: int
    views: int  # images that run through it at once: 2 in the shared units of stereo

    @property
    def is_depthwise(self) -> bool:
        """Whether the K x K convolution keeps its channels apart."""
        return self.channels_in == self.spatial

    @property
    def blocks(self) -> int:
        """How many runs of equal length the expanded channels consist of, of each of which a smaller expansion takes the first ones."""
        return 1

    def hidden(self, expansion: int) -> int:
        """Return how many channels it expands to."""
        return self.spatial * expansion

    def narrowed(self, channels_in: int, width: int) -> Self:
        """Return the layer where so many channels come in, and so many go on: no more than here."""
        if (channels_in, width) == (self.channels_in, self.width):
            return self
        return replace(self, channels_in=channels_in, spatial=channels_in if self.is_depthwise else self.spatial, width=width)

    def macs(self, layer: Layer, pixels: int) -> int:
        """Return the multiply-accumulates of one sample at ``pixels`` pixels of its output."""
        hidden = self.hidden(layer.expansion)
        dense = 1 if self.is_depthwise else self.channels_in
        return self.views * pixels * (layer.kernel**2 * self.spatial * dense + self.spatial * hidden + hidden * self.width)

    def num_weights(self, layer: Layer) -> int:
        """Return how many weights the extracted layer has, those of its two normalisations among them."""
        hidden = self.hidden(layer.expansion)
        dense = 1 if self.is_depthwise else self.channels_in
        return layer.kernel**2 * self.spatial * dense + (self.spatial + self.width) * hidden + 2 * (hidden + self.width)


@dataclass(frozen=True, slots=True)
class BottleneckShape(LayerShape):
    """One searchable layer whose K x K convolution works on the expanded channels (arXiv:1801.04381).

    Where the layer has the unit's stride, that convolution is its first, and expands as well: each channel in has as many filters as the
    expansion says (an image's channels are mixed). So the fine side is never expanded, and what the stride drops was seen by several
    filters before. Elsewhere a 1 x 1 convolution expands.
    """

    squeezes: bool  # whether squeeze and excitation weighs its expanded channels
    activation: Activation

    @property
    def squeezed(self) -> int:
        """Channels that squeeze and excitation goes through: a fourth of those that come in, in whole steps; 0: there is none."""
        return -(-self.spatial // (_SQUEEZE * _SQUEEZE_STEP)) * _SQUEEZE_STEP if self.squeezes else 0

    @property
    def expands_apart(self) -> bool:
        """Whether a 1 x 1 convolution expands, before the spatial one."""
        return self.stride == 1

    @property
    def blocks(self) -> int:
        """See ``LayerShape``: one for each channel in, if each has filters of its own; else one."""
        return 1 if self.expands_apart or not self.is_depthwise else self.channels_in

    def groups(self, hidden: int) -> int:
        """Return how many groups the spatial convolution to so many expanded channels has."""
        return hidden if self.expands_apart else self.blocks

    def macs(self, layer: Layer, pixels: int) -> int:
        """See ``LayerShape``."""
        hidden = self.hidden(layer.expansion)
        expand, spatial = self._convolutions(layer)
        return self.views * (pixels * (expand + spatial + hidden * self.width) + 2 * hidden * self.squeezed)

    def num_weights(self, layer: Layer) -> int:
        """See ``LayerShape``."""
        hidden = self.hidden(layer.expansion)
        expand, spatial = self._convolutions(layer)
        gate = (2 * hidden + 1) * self.squeezed + hidden if self.squeezed else 0
        norms = 2 * (hidden * (2 if self.expands_apart else 1) + self.width)
        return expand + spatial + hidden * self.width + gate + norms

    def _convolutions(self, layer: Layer) -> tuple[int, int]:
        """Return how many weights expand and spatial convolution have: what they multiply for each pixel, too."""
        hidden = self.hidden(layer.expansion)
        fan_in = self.channels_in if self.groups(hidden) == 1 else 1
        return self.channels_in * hidden if self.expands_apart else 0, layer.kernel**2 * hidden * fan_in


def layer_shapes(space: SearchSpace) -> Iterator[LayerShape]:
    """Yield the shape of every searchable layer there is, in order."""
    channels_in, spatial = space.image_channels, space.stem_width
    for unit, choices in enumerate(space.units):
        if space.task == "stereo" and unit == NUM_SHARED_UNITS:
            channels_in = spatial = joined_channels(space)
        views = 2 if space.task == "stereo" and unit < NUM_SHARED_UNITS else 1
        for index in range(choices.depths[-1]):
            stride = _REDUCTION if index == 0 else 1
            if choices.is_bottleneck:
                yield BottleneckShape(
                    unit,
                    index,
                    channels_in,
                    spatial,
                    choices.width,
                    stride,
                    views,
                    squeezes=choices.squeezes,
                    activation=choices.activation,
                )
            else:
                yield LayerShape(unit, index, channels_in, spatial, choices.width, stride, views)
            channels_in = spatial = choices.width


def active_shapes(architecture: Architecture, space: SearchSpace) -> Iterator[tuple[LayerShape, Layer]]:
    """Yield the shape of every layer of an architecture, in order, with its kernel and expansion."""
    for shape in layer_shapes(space):
        layers = architecture.units[shape.unit]
        if shape.index < len(layers):
            reads, makes = unit_read(shape), shape.unit
            channels_in = (architecture.width(reads) if reads >= 0 else None) or shape.channels_in
            yield shape.narrowed(channels_in, architecture.width(makes) or shape.width), layers[shape.index]


def unit_read(shape: LayerShape) -> int:
    """Return of which unit a layer's input comes: its own, for all layers but the first, or the one before; -1: it reads the image."""
    return shape.unit if shape.index else shape.unit - 1


def joined_channels(space: SearchSpace) -> int:
    """Return what the fourth unit of stereo reads: the correlation, and as many channels of the left view as the third unit makes."""
    return space.num_disparities + space.widths[NUM_SHARED_UNITS - 1]


def unit_sides(space: SearchSpace, resolution: int) -> list[tuple[int, int]]:
    """Return height and width of what each unit hands on."""
    height, width = resolution, resolution * space.aspect
    sides = []
    for _ in space.units:
        height, width = -(-height // _REDUCTION), -(-width // _REDUCTION)
        sides.append((height, width))
    return sides


@dataclass(frozen=True, slots=True)
class MatchShape:
    """The shape of the correlation at a quarter of the resolution, and of how disparities are regressed from it."""

    groups: int  # of the channels by which views are compared: a correlation of each
    group_channels: int
    num_disparities: int  # in pixels of a quarter of the resolution: as far as the correlation at an eighth reaches
    hidden: int  # channels in which a disparity's correlations are weighed, together with those of the pixels around
    warp_channels: int  # of what views are compared by at half the resolution

    @property
    def channels(self) -> int:
        """How many channels the views are compared by at a quarter of the resolution."""
        return self.groups * self.group_channels


@dataclass(frozen=True, slots=True)
class StageShape:
    """The shape of one stage of a stereo network's way back up to a finer resolution."""

    coarse: int  # channels from below
    link: int  # channels of the U link
    evidence: int  # channels of what says how good the coarser prediction is
    width: int  # channels that it works with and hands on
    takes_match: bool  # whether it chooses between the coarser prediction and the match

    @property
    def merged(self) -> int:
        """The channels that are merged at its scale: what came up, the U link, the coarser prediction, and evidence for or against it."""
        return self.width + self.link + 1 + self.evidence

    @property
    def outputs(self) -> int:
        """The channels of its last convolution: what is added to the prediction and, where it has the choice, how much the match counts."""
        return 2 if self.takes_match else 1


def match_shape(space: SearchSpace) -> MatchShape:
    """Return the shape of the fine match: half of the second unit's channels, or a little more, in four groups."""
    return MatchShape(4, max(4, space.widths[1] // 8), 2 * space.num_disparities, 8, 4)


def decoder_widths(space: SearchSpace) -> tuple[int, ...]:
    """Return the channels of each step up, coarse to fine: half of the linked unit's, and few at the last two, where each costs most."""
    linked = space.widths[-2:0:-1]
    return (*(max(_MIN_DECODER_WIDTH, width // 2) for width in linked), _MIN_DECODER_WIDTH, _FULL_WIDTH)


def link_widths(space: SearchSpace) -> tuple[int, ...]:
    """Return the channels of each U link, coarse to fine: of units 5 to 1 (3 to 1: for the left view), and of the left view itself.

    That of unit 3 brings the correlation along: without it, disparities would only come up from 1/16, and learning takes much longer.
    """
    widths = list(space.widths)
    widths[NUM_SHARED_UNITS - 1] = joined_channels(space)
    return (*widths[-2::-1], space.image_channels)


def stage_shapes(space: SearchSpace) -> Iterator[StageShape]:
    """Yield the shape of each step up, coarse to fine."""
    coarse = space.widths[-1]
    evidence = {MATCH_STEP: 2, WARP_STEP: len(WARP_OFFSETS), FULL_STEP: len(WARP_OFFSETS)}
    for step, (link, width) in enumerate(zip(link_widths(space), decoder_widths(space), strict=True)):
        yield StageShape(coarse, link, evidence.get(step, 0), width, step == MATCH_STEP)
        coarse = width


def fixed_macs(space: SearchSpace, resolution: int) -> int:
    """Return the multiply-accumulates of one pair of views in all but the searchable layers."""
    sides = unit_sides(space, resolution)
    height, width = sides[NUM_SHARED_UNITS - 1]
    features = space.widths[NUM_SHARED_UNITS - 1]
    macs = correlation_macs(features, height, width) + height * width * features**2 + match_macs(space, resolution)
    height, width = sides[-1]
    for shape in stage_shapes(space):
        macs += height * width * shape.coarse * shape.width * UP_KERNEL**2  # each pixel in spreads over a patch of that size
        height, width = 2 * height, 2 * width
        macs += height * width * 9 * (shape.merged + shape.outputs) * shape.width
    return macs


def match_macs(space: SearchSpace, resolution: int) -> int:
    """Return the multiply-accumulates of one pair of views in what compares them at a quarter and at half of the resolution."""
    shape = match_shape(space)
    (half_height, half_width), (height, width), *_ = unit_sides(space, resolution)
    descriptors = 2 * (half_height * half_width * space.widths[0] * shape.warp_channels + height * width * space.widths[1] * shape.channels)
    weighing = shape.num_disparities * height * width * (9 * (shape.groups + 1) * shape.hidden + shape.groups)
    return descriptors + correlation_macs(shape.channels, height, width) + weighing


def fixed_num_weights(space: SearchSpace) -> int:
    """Return how many weights all but the searchable layers has, those of the normalisations among them."""
    features = space.widths[NUM_SHARED_UNITS - 1]
    match = match_shape(space)
    weights = features**2 + 2 * joined_channels(space)
    weights += space.widths[0] * match.warp_channels + space.widths[1] * match.channels
    weights += 9 * (match.groups + 1) * match.hidden + 2 * match.hidden + 1 + match.groups
    for shape in stage_shapes(space):
        weights += shape.width * (shape.coarse * UP_KERNEL**2 + 9 * (shape.merged + shape.outputs) + 4) + shape.outputs
    return weights


def correlation_macs(channels: int, height: int, width: int) -> int:
    """Return the multiply-accumulates of one pair of views, as ``torch.utils.flop_counter`` counts them: those of the matrix product."""
    return height * width * width * channels
