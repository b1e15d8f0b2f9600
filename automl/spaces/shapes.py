"""The shape of every searchable layer of a supernet: one list, which the networks, their cost and their latency all follow.

The list has each layer at its widest. Where units have a choice of widths, an architecture's layer is that layer ``narrowed``: fewer
channels come in, or go on.

No torch.
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
