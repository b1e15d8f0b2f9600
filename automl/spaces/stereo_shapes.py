"""The shape of all that is the same in every stereo architecture: the join, the fine match and the steps up. Network and cost follow it.

No torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from manta_swarm.automl.spaces.shapes import NUM_SHARED_UNITS, joined_channels, unit_sides
from manta_swarm.automl.spaces.space import SearchSpace

UP_KERNEL = 4  # of a transposed convolution of stride 2: a multiple of the stride, or it would leave a chequered pattern
WARP_OFFSETS = (-1, 0, 1)  # pixels of half the resolution by which the right view is moved from where a disparity says
_MIN_DECODER_WIDTH = 8  # and that of the step to half the resolution
_FULL_WIDTH = 4  # of the step to the full resolution, where a channel costs most
MATCH_STEP, WARP_STEP, FULL_STEP = 3, 4, 5  # the steps up to a quarter, to half and to the full resolution


@dataclass(frozen=True, slots=True)
class MatchShape:
    """The correlation at a quarter of the resolution, and the disparities regressed from it."""

    groups: int  # of the channels by which views are compared: a correlation of each
    group_channels: int
    num_disparities: int  # in pixels of a quarter of the resolution: as far as the correlation at an eighth reaches
    hidden: int  # channels in which a disparity's correlations are weighed, together with those of the pixels around
    warp_channels: int  # of what views are compared by at half the resolution

    @property
    def channels(self) -> int:
        """By which the views are compared at a quarter of the resolution."""
        return self.groups * self.group_channels


@dataclass(frozen=True, slots=True)
class StageShape:
    """One step up."""

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
