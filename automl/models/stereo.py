"""The stereo network: two views in, the left one's disparities out, from coarse to fine.

Units 1-3 see the left and the right view with the same weights; at an eighth of the resolution their outputs are correlated along the
rows and joined by a 1 x 1 convolution of the left features; units 4-6 go down to 1/64. Six transposed convolutions go back up, each
joined by a U link to the output of the unit at its scale (at full resolution: the left view), and each predicts disparities, as what is
to be added to the coarser prediction. The first of all is the mean, over 64 x 64 pixels, of what a correlation at a quarter of the
resolution says (``automl.models.matching``); at that scale each pixel chooses between it and the coarser prediction; the last two steps
are told how well the views agree when the right one is moved by the prediction so far. All but the units is the same in every
architecture: ``FixedPart``, of which the supernet and an extracted network each have one.

Disparities: how many pixels of the full resolution further to the left a point of the left view is found in the right one.

Shapes: B batch (both views: 2B), C channels, D disparities of the correlation, H and W height and width at any scale.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from manta_swarm.automl.models.gradients import doubled, joined, of_length_one, split
from manta_swarm.automl.models.layers import ElasticBatchNorm, batch_norm
from manta_swarm.automl.models.matching import FineMatch, correlate, warped_likeness
from manta_swarm.automl.models.supernet import Supernet, draw, plain_units
from manta_swarm.automl.spaces.shapes import (
    FULL_STEP,
    MATCH_STEP,
    NUM_SHARED_UNITS,
    UP_KERNEL,
    WARP_OFFSETS,
    WARP_STEP,
    StageShape,
    match_shape,
    stage_shapes,
)
from manta_swarm.automl.spaces.space import Architecture, SearchSpace

_NUM_VIEWS = 2
_HALF, _QUARTER = 2, 4  # pixels of the full resolution to a pixel of these scales, each way


class Units(Protocol):
    """The units of a subnet."""

    def run_unit(self, unit: int, x_BCHW: Tensor) -> Tensor:
        """Return what a unit makes of its input; units count from 0."""


class Stage(nn.Module):
    """One step up: a transposed convolution, merged with the U link and the coarser prediction, and a finer prediction."""

    def __init__(self, shape: StageShape, *, is_elastic: bool) -> None:
        super().__init__()
        self.takes_match = shape.takes_match
        # Without torch's own first weights, which would come from the global generator.
        self.up = skip_init(nn.ConvTranspose2d, shape.coarse, shape.width, UP_KERNEL, stride=2, padding=1, bias=False)
        self.up_norm = batch_norm(shape.width, is_elastic=is_elastic)
        self.merge = skip_init(nn.Conv2d, shape.merged, shape.width, 3, padding=1, bias=False)
        self.merge_norm = batch_norm(shape.width, is_elastic=is_elastic)
        self.predict = skip_init(nn.Conv2d, shape.width, shape.outputs, 3, padding=1)

    def forward(self, x_BCHW: Tensor, link_BCHW: Tensor, coarser_B1HW: Tensor, evidence: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return features and prediction at the link's resolution, twice that of ``x_BCHW``; the coarser prediction has the link's already.

        ``evidence`` speaks for or against the coarser prediction; where the match can be taken, its first channel is what it says less
        the coarser prediction.
        """
        merged = [F.relu(self.up_norm(self.up(x_BCHW))), link_BCHW, coarser_B1HW, *evidence]
        y_BCHW = self.merge(joined(merged))
        y_BCHW = F.relu(self.merge_norm(y_BCHW))
        finer_BOHW = self.predict(y_BCHW)
        if not self.takes_match:
            return y_BCHW, coarser_B1HW + finer_BOHW
        change_B1HW, choice_B1HW = finer_BOHW.split(1, 1)
        return y_BCHW, coarser_B1HW + choice_B1HW.sigmoid() * evidence[0] + change_B1HW


class FixedPart(nn.Module):
    """What every architecture has: the correlation with its join, the fine match, and the way back up."""

    def __init__(self, space: SearchSpace, *, is_elastic: bool) -> None:
        super().__init__()
        features = space.widths[NUM_SHARED_UNITS - 1]
        self.num_disparities = space.num_disparities
        # What a prediction of 1 is inside, in pixels: 1/32 of what the correlation reaches. Larger units learnt more slowly.
        self.unit_px = space.num_disparities / 4
        self.join = skip_init(nn.Conv2d, features, features, 1, bias=False)
        self.join_norm = batch_norm(features, is_elastic=is_elastic)
        self.correlation_norm = batch_norm(space.num_disparities, is_elastic=is_elastic)
        match = match_shape(space)
        self.describe_half = skip_init(nn.Conv2d, space.widths[0], match.warp_channels, 1, bias=False)
        self.describe_quarter = skip_init(nn.Conv2d, space.widths[1], match.channels, 1, bias=False)
        self.fine = FineMatch(match, is_elastic=is_elastic)
        self.stages = nn.ModuleList(Stage(shape, is_elastic=is_elastic) for shape in stage_shapes(space))

    def forward(self, x_BCHW: Tensor, units: Units) -> tuple[Tensor, ...]:
        """Return what the match says and the predictions of the six steps up, each (B, 1, H, W) in pixels.

        ``units``: which the subnet has.
        """
        batch = x_BCHW.shape[0]
        views_BCHW = torch.cat(x_BCHW.chunk(_NUM_VIEWS, 1)).contiguous(memory_format=torch.channels_last)
        halves = [split(each_BCHW, batch) for each_BCHW in self.features(views_BCHW, units)]
        right = self.compared([half_BCHW for _, half_BCHW in halves])
        return self.disparities([views_BCHW[:batch], *(half_BCHW for half_BCHW, _ in halves)], right, units)

    def features(self, views_BCHW: Tensor, units: Units) -> list[Tensor]:
        """Return what each of the shared units makes of the views, which are one batch."""
        features = []
        for unit in range(NUM_SHARED_UNITS):
            views_BCHW = units.run_unit(unit, views_BCHW)
            features.append(views_BCHW)
        return features

    def compared(self, features: list[Tensor]) -> list[Tensor]:
        """Return what of a view's ``features`` is compared with the other view: at half, a quarter and an eighth of the resolution."""
        half_BCHW, quarter_BCHW, eighth_BCHW = features
        return [self.describe_half(half_BCHW), self.describe_quarter(quarter_BCHW), eighth_BCHW]

    def disparities(self, links: list[Tensor], right: list[Tensor], units: Units) -> tuple[Tensor, ...]:
        """Return what ``forward`` does.

        Args:
            links: the left view and its ``features``.
            right: what is ``compared`` of the right view.
            units: of which those that are not shared are run.
        """
        left = self.compared(links[1:])
        *links, left_BCHW = links
        correlation_BDHW = self.match(left_BCHW, right[-1])
        y_BCHW = torch.cat([correlation_BDHW, F.relu(self.join_norm(self.join(left_BCHW)))], 1)
        links.append(torch.cat([correlation_BDHW, left_BCHW], 1))
        for unit in range(NUM_SHARED_UNITS, len(self.stages)):
            y_BCHW = units.run_unit(unit, y_BCHW)
            links.append(y_BCHW)
        return self.refine(links, left, right)

    def match(self, left_BCHW: Tensor, right_BCHW: Tensor) -> Tensor:
        """Return how alike the features of the two views are at each disparity: the cosine of their angle, normalised over the batch."""
        scale = left_BCHW.shape[1] ** 0.5  # the correlation is a mean over the channels, a cosine a sum
        left_BCHW, right_BCHW = (scale * of_length_one(view_BCHW, 1) for view_BCHW in (left_BCHW, right_BCHW))
        correlation_BDHW: Tensor = self.correlation_norm(correlate(left_BCHW, right_BCHW, self.num_disparities))
        return correlation_BDHW

    def refine(self, links: list[Tensor], left: list[Tensor], right: list[Tensor]) -> tuple[Tensor, ...]:
        """Return what the match says, and the predictions of the six steps up.

        Args:
            links: the left view and what the units make of it, fine to coarse.
            left: what is ``compared`` of the left view.
            right: the same of the right one.
        """
        (left_half_BCHW, left_quarter_BCHW, _), (right_half_BCHW, right_quarter_BCHW, _) = left, right
        # In rows: so they are searched in twice, each time for several columns.
        left_half_BCHW, right_half_BCHW = (of_length_one(each, 1).contiguous() for each in (left_half_BCHW, right_half_BCHW))

        def likeness(disparity_B1HW: Tensor) -> Tensor:
            return warped_likeness(left_half_BCHW, right_half_BCHW, disparity_B1HW * (self.unit_px / _HALF), WARP_OFFSETS)

        match_B1HW, certainty_B1HW = self.fine(left_quarter_BCHW, right_quarter_BCHW)
        match_B1HW = match_B1HW * (_QUARTER / self.unit_px)
        y_BCHW = links.pop()
        prediction_B1HW = F.avg_pool2d(match_B1HW, match_B1HW.shape[2] // y_BCHW.shape[2])
        predictions = [self.unit_px * match_B1HW]  # it has to learn before the steps up do
        for step, (stage, link_BCHW) in enumerate(zip(self.stages, reversed(links), strict=True)):
            coarser_B1HW = doubled(prediction_B1HW)
            evidence: list[Tensor] = []
            if step == MATCH_STEP:
                evidence = [match_B1HW - coarser_B1HW, certainty_B1HW]
            elif step == WARP_STEP:
                evidence = [likeness(coarser_B1HW)]
            elif step == FULL_STEP:  # half of the resolution is the finest at which views are compared
                evidence = [doubled(likeness(prediction_B1HW))]
            y_BCHW, prediction_B1HW = stage(y_BCHW, link_BCHW, coarser_B1HW, evidence)
            predictions.append(self.unit_px * prediction_B1HW)
        return tuple(predictions)


class Stereo(Supernet):
    """The stereo supernet."""

    def __init__(self, space: SearchSpace, device: torch.device | str = "cpu") -> None:
        super().__init__(space)
        self.fixed = FixedPart(space, is_elastic=True)
        self._flatten(device)

    def _initialise_fixed(self, generator: torch.Generator) -> None:
        for module in self.fixed.modules():
            if isinstance(module, nn.ConvTranspose2d):
                draw(module.weight.transpose(0, 1), generator)  # it has its channels in first
            elif isinstance(module, nn.Conv2d):
                draw(module.weight, generator)
        self.fixed.fine.initialise()
        for stage in self.fixed.stages:
            assert isinstance(stage, Stage)
            stage.predict.weight.mul_(0.1)  # training begins at about zero disparity everywhere, and still has a gradient
            assert stage.predict.bias is not None
            stage.predict.bias.zero_()

    def forward(self, x_BCHW: Tensor, architecture: Architecture) -> tuple[Tensor, ...]:
        """Return seven disparities (B, H, W) of the batch (B, 6, H, W: left RGB, then right RGB): of the match, at a quarter of its height
        and width, and of the steps up, at 1/32 to 1/1.

        All are in pixels of the full resolution. Height and width are multiples of 64.
        """
        predictions = self.fixed(x_BCHW, SubnetUnits(self, architecture))
        return tuple(prediction.squeeze(1) for prediction in predictions)

    @torch.no_grad()
    def extract(self, architecture: Architecture) -> "PlainStereo":
        """Return the subnet as a plain network in evaluation mode, with copies of its weights and running statistics."""
        plain = PlainStereo(self.space, architecture).to(self.flat_weights_N.device)
        plain.units = nn.ModuleList(self.extract_unit(unit, architecture) for unit in range(len(self.units)))
        for elastic, fixed in zip(self.fixed.modules(), plain.fixed.modules(), strict=True):
            if isinstance(elastic, ElasticBatchNorm):
                assert isinstance(fixed, nn.BatchNorm2d)
                elastic.copy_to(fixed)
            elif isinstance(elastic, (nn.Conv2d, nn.ConvTranspose2d)):
                fixed.load_state_dict(elastic.state_dict())
        return plain.eval()


@dataclass(frozen=True, slots=True)
class SubnetUnits:
    """The units of one of a supernet's subnets."""

    supernet: Stereo
    architecture: Architecture

    def run_unit(self, unit: int, x_BCHW: Tensor) -> Tensor:
        """See ``Units``."""
        return self.supernet.run_unit(unit, x_BCHW, self.architecture)


@dataclass(frozen=True, slots=True)
class _PlainUnits:
    """The units of a plain network."""

    units: nn.ModuleList

    def run_unit(self, unit: int, x_BCHW: Tensor) -> Tensor:
        made: Tensor = self.units[unit](x_BCHW)
        return made


class PlainStereo(nn.Module):
    """One subnet of stereo, of torch's own modules."""

    def __init__(self, space: SearchSpace, architecture: Architecture) -> None:
        super().__init__()
        self.units = plain_units(space, architecture)
        self.fixed = FixedPart(space, is_elastic=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the disparities (B, H, W) in pixels of a batch (B, 6, H, W)."""
        return self.scales(x_BCHW)[-1]

    def scales(self, x_BCHW: Tensor) -> tuple[Tensor, ...]:
        """Return the disparities of all scales, as ``Stereo`` does: what training needs."""
        predictions = self.fixed(x_BCHW, _PlainUnits(self.units))
        return tuple(prediction.squeeze(1) for prediction in predictions)
