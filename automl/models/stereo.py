"""The stereo network: two views in, the left one's disparities out, from coarse to fine, matched by a correlation.

Units 1-3 see the left and the right view with the same weights; at an eighth of the resolution their outputs are correlated along the
rows and joined by a 1 x 1 convolution of the left features; units 4-6 go down to 1/64. Six transposed convolutions go back up, each
joined by a U link to the output of the unit at its scale (at full resolution: the left view), and each predicts disparities, as what is
to be added to the coarser prediction. The first of all is the mean, over 64 x 64 pixels, of what a correlation at a quarter of the
resolution says; at that scale each pixel chooses between it and the coarser prediction; the last two steps are told how well the views
agree when the right one is moved by the prediction so far. All but the units is the same in every architecture: ``FixedPart``, of which the
supernet and an extracted network each have one.

A disparity says how many pixels of the full resolution further to the left a point of the left view is found in the right one.

The correlation at a quarter of the resolution, and the comparison of the left view with the moved right one, compare *descriptors*:
channels that a 1 x 1 convolution makes of a unit's features, of either view with the same weights. Each comparison is a cosine, so what
scale the features have plays no part. The row is searched in products and gathers alone, which every form of export has.

Shapes: B batch (both views: 2B), C channels, D disparities of a correlation, G groups of channels, K offsets, H and W height and width at
any scale.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from manta_swarm.automl.models import gradients
from manta_swarm.automl.models.gradients import doubled, joined, of_length_one, split
from manta_swarm.automl.models.layers import ElasticBatchNorm, batch_norm
from manta_swarm.automl.models.supernet import Supernet, draw, plain_units
from manta_swarm.automl.spaces.shapes import (
    FULL_STEP,
    MATCH_STEP,
    NUM_SHARED_UNITS,
    UP_KERNEL,
    WARP_OFFSETS,
    WARP_STEP,
    MatchShape,
    StageShape,
    match_shape,
    stage_shapes,
)
from manta_swarm.automl.spaces.space import Architecture, SearchSpace

_SHARPNESS = 10.0  # of the first weights: a disparity whose cosine is higher by a tenth has e times the weight

_NUM_VIEWS = 2
_HALF, _QUARTER = 2, 4  # pixels of the full resolution to a pixel of these scales, each way


class FineMatch(nn.Module):
    """The disparity at each pixel of the left view, as the mean of all disparities, weighted by the softmax of how well each matches
    (soft argmin, arXiv:1703.04309, section 3.4).

    How well is the mean of the groups' correlations (arXiv:1903.04025, section 3.2) at first, and with it whatever is learnt from those at
    the pixel and around it, at each disparity alike: so its weights are few, whatever the number of disparities.
    """

    def __init__(self, shape: MatchShape, *, is_elastic: bool) -> None:
        super().__init__()
        self.shape = shape
        # Without torch's own first weights, which would come from the global generator.
        self.weigh = skip_init(nn.Conv2d, shape.groups, shape.hidden, 3, padding=1, bias=False)
        self.weigh_norm = batch_norm(shape.hidden, is_elastic=is_elastic)
        self.score = skip_init(nn.Conv2d, shape.hidden, 1, 3, padding=1)
        self.likeness = skip_init(nn.Conv2d, shape.groups, 1, 1, bias=False)

    @torch.no_grad()
    def initialise(self) -> None:
        """Let the drawn weights begin as the likeness alone: so the match is one from the first step on."""
        self.likeness.weight.fill_(_SHARPNESS / self.shape.groups)
        self.score.weight.mul_(0.1)
        assert self.score.bias is not None
        self.score.bias.zero_()

    def forward(self, left_BCHW: Tensor, right_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Return the disparities (B, 1, H, W) in pixels of this scale, and how certain they are: 1 where one alone has all the weight."""
        volume_NGHW = correlate_groups(left_BCHW, right_BCHW, self.shape.groups, self.shape.num_disparities)
        hidden_NEHW = F.relu(self.weigh_norm(self.weigh(volume_NGHW)))
        scores_N1HW = self.likeness(volume_NGHW) + gradients.convolved(hidden_NEHW, self.score)
        scores_BDHW = scores_N1HW.view(-1, self.shape.num_disparities, *left_BCHW.shape[2:])
        weights_BDHW = scores_BDHW.softmax(1)
        disparities_D11 = torch.arange(self.shape.num_disparities, dtype=weights_BDHW.dtype, device=weights_BDHW.device)[:, None, None]
        return (weights_BDHW * disparities_D11).sum(1, keepdim=True), (weights_BDHW * weights_BDHW).sum(1, keepdim=True)


def correlate_groups(left_BCHW: Tensor, right_BCHW: Tensor, num_groups: int, num_disparities: int) -> Tensor:
    """Return (B * D, G, H, W), in the memory layout channels_last: the cosine of each group's channels of the two views at each disparity,
    0 where the right view has ended.
    """
    channels, height, width = left_BCHW.shape[1:]
    group = channels // num_groups
    grouped = (view_BCHW.reshape(-1, num_groups, group, height, width) for view_BCHW in (left_BCHW, right_BCHW))
    # The rows of the groups are rows of one picture, each as good as any other: the batch stays what it was, which the exports follow.
    left, right = ((of_length_one(each, 2) * group**0.5).transpose(1, 2).flatten(2, 3) for each in grouped)
    volume = correlate(left, right, num_disparities).reshape(-1, num_disparities, num_groups, height, width)
    volume_NHWG = volume.permute(0, 1, 3, 4, 2).reshape(-1, height, width, num_groups)
    return volume_NHWG.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def warped_likeness(left_BCHW: Tensor, right_BCHW: Tensor, disparity_B1HW: Tensor, offsets: tuple[int, ...]) -> Tensor:
    """Return (B, K, H, W): the cosine of each pixel of the left view with the one that the right view has at that disparity, and at that
    many pixels more or less, where each pixel of the views has the length 1.

    Between two pixels of a row it is linear, and beyond the ends of one it is what is at the end. No gradient flows to the disparity: what
    it makes of the likeness is learnt where it is read, and a gradient through a row of noise leads nowhere.
    """
    last, reach = left_BCHW.shape[3] - 1, max(map(abs, offsets)) + 1
    columns_W = torch.arange(last + 1, dtype=left_BCHW.dtype, device=left_BCHW.device)
    column_B1HW = (columns_W - disparity_B1HW.detach()).clamp(-reach, last + reach)
    low_B1HW = column_B1HW.floor()
    share_B1HW = column_B1HW - low_B1HW
    # Bounded as an integer too: what is not a number becomes any integer at all, and stays what it is in the share alone.
    index_B1HW = low_B1HW.to(torch.int64).clamp(-reach, last + reach)
    # The offsets are whole pixels, so that those in between which they are linear are next to each other: each is compared once.
    alike: dict[int, Tensor] = {}
    for step in sorted({step for offset in offsets for step in (-offset, 1 - offset)}):
        seen_BCHW = right_BCHW.gather(3, (index_B1HW + step).clamp(0, last).expand_as(right_BCHW))
        alike[step] = (left_BCHW * seen_BCHW).sum(1, keepdim=True)
    return torch.cat([alike[-offset] + (alike[1 - offset] - alike[-offset]) * share_B1HW for offset in offsets], 1)


def correlate(left_BCHW: Tensor, right_BCHW: Tensor, num_disparities: int) -> Tensor:
    """Return (B, D, H, W), in the memory layout channels_last: at [b, d, y, x] the mean over the channels of
    ``left[b, :, y, x] * right[b, :, y, x - d]``, and 0 where ``x - d`` lies outside of the view.

    One matrix product a row matches every pair of its pixels, and a gather keeps the D diagonals that are disparities
    (arXiv:1512.02134, section 4.2, in one dimension). That is more products than needed, and still many times faster than a loop.
    """
    batch, channels, height, width = left_BCHW.shape
    left_BHWC = left_BCHW.permute(0, 2, 3, 1)
    right_BHCW = right_BCHW.permute(0, 2, 1, 3)
    matches_BHWW = torch.matmul(left_BHWC, right_BHCW)
    column_WD = torch.arange(width, device=left_BCHW.device)[:, None] - torch.arange(num_disparities, device=left_BCHW.device)
    matches_BHWD = matches_BHWW.gather(3, column_WD.clamp(min=0).expand(batch, height, -1, -1))
    scale_WD = (column_WD >= 0).to(matches_BHWD.dtype) / channels
    return (matches_BHWD * scale_WD).permute(0, 3, 1, 2)


class Units(Protocol):
    """The units of a subnet."""

    def run_unit(self, unit: int, x_BCHW: Tensor) -> Tensor:
        """Return what a unit makes of its input; units count from 0."""


class UpStage(nn.Module):
    """One stage of the way back up: a transposed convolution, merged with the U link and the coarser prediction, and a finer prediction."""

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
        self.stages = nn.ModuleList(UpStage(shape, is_elastic=is_elastic) for shape in stage_shapes(space))

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
            assert isinstance(stage, UpStage)
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
