"""The shape of all that is the same in every stereo architecture: the steps up and the join. The network and its cost follow it.

No torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from automl.spaces.shapes import NUM_SHARED_UNITS, joined_channels, unit_sides
from automl.spaces.space import SearchSpace

UP_KERNEL = 4  # of a transposed convolution of stride 2: a multiple of the stride, or it would leave a chequered pattern
_MIN_DECODER_WIDTH = 8  # and that of the full resolution, where a channel costs most


@dataclass(frozen=True, slots=True)
class StageShape:
    """One step up."""

    coarse: int  # channels from below
    link: int  # channels of the U link
    predictions: int  # from below: 1, but for the first step 0
    width: int  # channels that it works with and hands on

    @property
    def merged(self) -> int:
        """The channels that are merged at its scale: what came up, the U link, and the coarser prediction."""
        return self.width + self.link + self.predictions


def decoder_widths(space: SearchSpace) -> tuple[int, ...]:
    """Return the channels of each step up, coarse to fine: half of the linked unit's, for the finer the scale the more a channel costs."""
    linked = space.widths[-2::-1]
    return (*(max(_MIN_DECODER_WIDTH, width // 2) for width in linked), _MIN_DECODER_WIDTH)


def link_widths(space: SearchSpace) -> tuple[int, ...]:
    """Return the channels of each U link, coarse to fine: of units 5 to 1 (3 to 1: for the left view), and of the left view itself.

    That of unit 3 brings the correlation along: without it, disparities would only come up from 1/16, and learning takes much longer.
    """
    widths = list(space.widths)
    widths[NUM_SHARED_UNITS - 1] = joined_channels(space)
    return (*widths[-2::-1], space.image_channels)


def stage_shapes(space: SearchSpace) -> Iterator[StageShape]:
    """Yield the shape of each step up, coarse to fine."""
    coarse, predictions = space.widths[-1], 0
    for link, width in zip(link_widths(space), decoder_widths(space), strict=True):
        yield StageShape(coarse, link, predictions, width)
        coarse, predictions = width, 1


def fixed_macs(space: SearchSpace, resolution: int) -> int:
    """Return the multiply-accumulates of one pair of views in all but the searchable layers."""
    sides = unit_sides(space, resolution)
    height, width = sides[NUM_SHARED_UNITS - 1]
    features = space.widths[NUM_SHARED_UNITS - 1]
    macs = correlation_macs(features, height, width) + height * width * features**2
    height, width = sides[-1]
    for shape in stage_shapes(space):
        macs += height * width * shape.coarse * shape.width * UP_KERNEL**2  # each pixel in spreads over a patch of that size
        height, width = 2 * height, 2 * width
        macs += height * width * 9 * (shape.merged * shape.width + shape.width)
    return macs


def fixed_num_weights(space: SearchSpace) -> int:
    """Return how many weights all but the searchable layers has, those of the normalisations among them."""
    features = space.widths[NUM_SHARED_UNITS - 1]
    weights = features**2 + 2 * joined_channels(space)
    for shape in stage_shapes(space):
        weights += shape.width * (shape.coarse * UP_KERNEL**2 + 9 * shape.merged + 9 + 4) + 1
    return weights


def correlation_macs(channels: int, height: int, width: int) -> int:
    """Return the multiply-accumulates of one pair of views, as ``torch.utils.flop_counter`` counts them: those of the matrix product."""
    return height * width * width * channels
