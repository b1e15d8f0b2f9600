"""The stereo network: two views in, the left one's disparities out, from coarse to fine.

Units 1-3 see the left and the right view with the same weights; at an eighth of the resolution their outputs are correlated along the
rows and joined by a 1 x 1 convolution of the left features; units 4-6 go down to 1/64. Six transposed convolutions go back up, each
joined by a U link to the output of the unit at its scale (at full resolution: the left view), and each predicts disparities. All but the
units is the same in every architecture: ``FixedPart``, of which the supernet and an extracted network each have one.

Disparities: how many pixels of the full resolution further to the left a point of the left view is found in the right one.

Shapes: B batch (both views: 2B), C channels, D disparities of the correlation, H and W height and width at any scale.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from automl.models.correlation import correlate
from automl.models.layers import BATCH_NORM_EPSILON, ElasticBatchNorm, ElasticLayer, is_residual
from automl.models.supernet import Supernet, draw, plain_units
from automl.spaces.shapes import NUM_SHARED_UNITS
from automl.spaces.space import Architecture, SearchSpace
from automl.spaces.stereo_shapes import UP_KERNEL, StageShape, stage_shapes

_NUM_VIEWS = 2


class Stage(nn.Module):
    """One step up: a transposed convolution, merged with the U link and the coarser prediction, and a finer prediction."""

    def __init__(self, shape: StageShape, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        # Without torch's own first weights, which would come from the global generator.
        self.up = skip_init(nn.ConvTranspose2d, shape.coarse, shape.width, UP_KERNEL, stride=2, padding=1, bias=False)
        self.up_norm = norm(shape.width)
        self.merge = skip_init(nn.Conv2d, shape.merged, shape.width, 3, padding=1, bias=False)
        self.merge_norm = norm(shape.width)
        self.predict = skip_init(nn.Conv2d, shape.width, 1, 3, padding=1)

    def forward(self, x_BCHW: Tensor, link_BCHW: Tensor, coarser_B1HW: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return features and prediction at the link's resolution, twice that of ``x_BCHW`` and of the coarser prediction."""
        merged = [F.relu(self.up_norm(self.up(x_BCHW))), link_BCHW]
        if coarser_B1HW is not None:
            coarser_B1HW = F.interpolate(coarser_B1HW, scale_factor=2.0, mode="bilinear", align_corners=False)
            merged.append(coarser_B1HW)
        y_BCHW = self.merge(torch.cat(merged, 1).contiguous(memory_format=torch.channels_last))
        y_BCHW = F.relu(self.merge_norm(y_BCHW))
        prediction_B1HW = self.predict(y_BCHW)
        return y_BCHW, prediction_B1HW if coarser_B1HW is None else coarser_B1HW + prediction_B1HW


class FixedPart(nn.Module):
    """What every architecture has: the correlation with its join, and the way back up."""

    def __init__(self, space: SearchSpace, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        features = space.widths[NUM_SHARED_UNITS - 1]
        self.num_disparities = space.num_disparities
        # What a prediction of 1 is inside, in pixels: 1/32 of what the correlation reaches. Larger units learnt more slowly.
        self.unit_px = space.num_disparities / 4
        self.join = skip_init(nn.Conv2d, features, features, 1, bias=False)
        self.join_norm = norm(features)
        self.correlation_norm = norm(space.num_disparities)
        self.stages = nn.ModuleList(Stage(shape, norm) for shape in stage_shapes(space))

    def forward(self, x_BCHW: Tensor, run_unit: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Return the predictions (B, 1, H, W), coarse to fine, in pixels; ``run_unit`` gives a unit's output, units count from 0."""
        batch = x_BCHW.shape[0]
        views_BCHW = torch.cat(x_BCHW.chunk(_NUM_VIEWS, 1)).contiguous(memory_format=torch.channels_last)
        features = self.features(views_BCHW, run_unit)
        return self.disparities([views_BCHW[:batch], *(each[:batch] for each in features)], features[-1][batch:], run_unit)

    def features(self, views_BCHW: Tensor, run_unit: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
        """Return what each of the shared units makes of the views, which are one batch."""
        features = []
        for unit in range(NUM_SHARED_UNITS):
            views_BCHW = run_unit(unit, views_BCHW)
            features.append(views_BCHW)
        return features

    def disparities(self, links: list[Tensor], right_BCHW: Tensor, run_unit: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Return what ``forward`` does.

        Args:
            links: the left view and its ``features``.
            right_BCHW: the last ones of the right view.
            run_unit: gives the output of the units that are not shared.
        """
        *links, left_BCHW = links
        correlation_BDHW = self.match(left_BCHW, right_BCHW)
        y_BCHW = torch.cat([correlation_BDHW, F.relu(self.join_norm(self.join(left_BCHW)))], 1)
        links.append(torch.cat([correlation_BDHW, left_BCHW], 1))
        for unit in range(NUM_SHARED_UNITS, len(self.stages)):
            y_BCHW = run_unit(unit, y_BCHW)
            links.append(y_BCHW)
        return self.refine(links)

    def match(self, left_BCHW: Tensor, right_BCHW: Tensor) -> Tensor:
        """Return how alike the features of the two views are at each disparity: the cosine of their angle, normalised over the batch."""
        scale = left_BCHW.shape[1] ** 0.5  # the correlation is a mean over the channels, a cosine a sum
        left_BCHW, right_BCHW = (scale * F.normalize(view_BCHW, dim=1) for view_BCHW in (left_BCHW, right_BCHW))
        correlation_BDHW: Tensor = self.correlation_norm(correlate(left_BCHW, right_BCHW, self.num_disparities))
        return correlation_BDHW

    def refine(self, links: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the predictions of the six steps up; ``links``: the left view and what the units make of it, fine to coarse."""
        y_BCHW, prediction_B1HW = links.pop(), None
        predictions = []
        for stage, link_BCHW in zip(self.stages, reversed(links), strict=True):
            y_BCHW, prediction_B1HW = stage(y_BCHW, link_BCHW, prediction_B1HW)
            predictions.append(self.unit_px * prediction_B1HW)
        return tuple(predictions)


class Stereo(Supernet):
    """The stereo supernet."""

    def __init__(self, space: SearchSpace, device: torch.device | str = "cpu") -> None:
        super().__init__(space)
        self.fixed = FixedPart(space, ElasticBatchNorm)
        self._flatten(device)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw first weights; see ``Supernet.initialise``.

        Kernels begin as bells and residual layers add nothing at first: so it learns faster.
        """
        super().initialise(generator)
        for module in self.modules():
            if isinstance(module, ElasticLayer):
                module.spatial.weight.mul_(_window(module.spatial.weight.shape[-1]))
                if is_residual(module.shape):
                    module.project_norm.weight.zero_()

    def _initialise_fixed(self, generator: torch.Generator) -> None:
        for module in self.fixed.modules():
            if isinstance(module, nn.ConvTranspose2d):
                draw(module.weight.transpose(0, 1), generator)  # it has its channels in first
            elif isinstance(module, nn.Conv2d):
                draw(module.weight, generator)
        for stage in self.fixed.stages:
            assert isinstance(stage, Stage)
            stage.predict.weight.mul_(0.1)  # training begins at about zero disparity everywhere, and still has a gradient
            assert stage.predict.bias is not None
            stage.predict.bias.zero_()

    def forward(self, x_BCHW: Tensor, architecture: Architecture) -> tuple[Tensor, ...]:
        """Return six disparities (B, H, W) of the batch (B, 6, H, W: left RGB, then right RGB), at 1/32 to 1/1 of its height and width.

        All are in pixels of the full resolution. Height and width are multiples of 64.
        """
        predictions = self.fixed(x_BCHW, lambda unit, x_BCHW: self.run_unit(unit, x_BCHW, architecture))
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


class PlainStereo(nn.Module):
    """One subnet of stereo, of torch's own modules."""

    def __init__(self, space: SearchSpace, architecture: Architecture) -> None:
        super().__init__()
        self.units = plain_units(space, architecture)
        self.fixed = FixedPart(space, lambda channels: nn.BatchNorm2d(channels, eps=BATCH_NORM_EPSILON))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the disparities (B, H, W) in pixels of a batch (B, 6, H, W)."""
        return self.scales(x_BCHW)[-1]

    def scales(self, x_BCHW: Tensor) -> tuple[Tensor, ...]:
        """Return the disparities of all scales, as ``Stereo`` does: what training needs."""
        predictions = self.fixed(x_BCHW, lambda unit, x_BCHW: self.units[unit](x_BCHW))
        return tuple(prediction.squeeze(1) for prediction in predictions)


def _window(size: int) -> Tensor:
    """Return a Gaussian (K, K) of one pixel's width, with the energy of a window of ones."""
    bell_K = torch.exp(-((torch.arange(size) - size // 2) ** 2) / 2)
    window_KK: Tensor = bell_K[:, None] * bell_K[None, :]
    return window_KK.mul_(size / window_KK.norm())
