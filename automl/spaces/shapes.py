"""The shape of every searchable layer of a supernet: one list, which the networks, their cost and their latency all follow.

No torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from automl.spaces.space import SearchSpace
from automl.spaces.units import Layer

NUM_SHARED_UNITS = 3  # of stereo: they see both views
_REDUCTION = 2  # of each unit's first layer


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One searchable layer, whatever its kernel and expansion."""

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

    def macs(self, layer: Layer, pixels: int) -> int:
        """Return the multiply-accumulates of one sample at ``pixels`` pixels of its output."""
        hidden = self.spatial * layer.expansion
        dense = 1 if self.is_depthwise else self.channels_in
        return self.views * pixels * (layer.kernel**2 * self.spatial * dense + self.spatial * hidden + hidden * self.width)

    def num_weights(self, layer: Layer) -> int:
        """Return how many weights the extracted layer has, those of its two normalisations among them."""
        hidden = self.spatial * layer.expansion
        dense = 1 if self.is_depthwise else self.channels_in
        return layer.kernel**2 * self.spatial * dense + (self.spatial + self.width) * hidden + 2 * (hidden + self.width)


def layer_shapes(space: SearchSpace) -> Iterator[LayerShape]:
    """Yield the shape of every searchable layer there is, in order."""
    channels_in, spatial = space.image_channels, space.stem_width
    for unit, choices in enumerate(space.units):
        if space.task == "stereo" and unit == NUM_SHARED_UNITS:
            channels_in = spatial = joined_channels(space)
        views = 2 if space.task == "stereo" and unit < NUM_SHARED_UNITS else 1
        for index in range(choices.depths[-1]):
            yield LayerShape(unit, index, channels_in, spatial, choices.width, _REDUCTION if index == 0 else 1, views)
            channels_in = spatial = choices.width


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
