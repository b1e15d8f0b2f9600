"""BatchNorm in training that takes less time on CPUs: between the convolutions that expand and project, and of few channels.

Between them, expanding, normalising, ReLU and projecting are one operation (``projected``). By torch's own operations each step reads and
writes all expanded channels, two to four times as many as come in, and where they are more than a cache holds it waits for memory. But a
1 x 1 convolution is a product with a matrix, so normalisation needs no look at what it makes: mean and variance follow from the means and
covariances of the few channels that go in, and scale and shift are another matrix. So a part of the pixels at a time goes all the way,
while it is in the cache; on the way back it is expanded once more. All are the same sums in another order.

Of few channels (``normalised``) torch's own BatchNorm takes some channels of a pixel at a time, 8 where they are many, one by one where
they are fewer, and several times as long. So the channels of 16 pixels are taken as channels of one pixel, of which torch makes sums; those
of one channel are added up afterwards: the same sums in another order.

Shapes: B batch, C channels in, E expanded channels, O channels out, H and W height and width, P pixels of all samples, or groups of 16 of
them, S channels of a group: 16 times C.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from manta_swarm.automl.models.gradients import is_ours

_CACHED = 1 << 17  # expanded values of the pixels that are taken at a time, for each thread: half a megabyte
_LEAST = 1 << 22  # expanded values of a batch for which more calls pay: 16 MiB, which few caches hold beside all else
_LEAST_PIXELS = 16  # for each channel in: where they are fewer, the covariances are most of the work
_ALIGNED = 16  # pixels: so each part begins where the fastest products want it

_PIXELS = 16  # of a group
_FEW = 8  # channels for which torch has fast code


def can_project(x_BCHW: Tensor, expanded: int) -> bool:
    """Return whether ``projected`` is for such a batch: on a CPU, in the memory layout channels_last, and large."""
    pixels, channels = x_BCHW[:, 0].numel(), x_BCHW.shape[1]
    is_large = pixels * expanded >= _LEAST and pixels >= _LEAST_PIXELS * channels
    return is_large and is_ours(x_BCHW) and x_BCHW.is_contiguous(memory_format=torch.channels_last)


def projected(x_BCHW: Tensor, expand: Tensor, weight_E: Tensor, bias_E: Tensor, project: Tensor, epsilon: float) -> Tensor:
    """Return what ``project`` (O, E, 1, 1) makes of the positive part of what ``expand`` (E, C, 1, 1) makes of a batch, normalised by its
    own statistics (arXiv:1502.03167) to weight and bias.
    """
    batch, _, height, width = x_BCHW.shape
    x_PC = x_BCHW.permute(0, 2, 3, 1).reshape(-1, x_BCHW.shape[1])
    y_PO: Tensor = _Projected.apply(x_PC, expand.flatten(1), weight_E, bias_E, project.flatten(1), epsilon)
    return y_PO.view(batch, height, width, -1).permute(0, 3, 1, 2)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PC: Tensor, expand_EC: Tensor, weight_E: Tensor, bias_E: Tensor, project_OE: Tensor, epsilon: float) -> Tensor:
        pixels, expanded = len(x_PC), len(expand_EC)
        x_PC = x_PC - x_PC.mean(0)  # what is small beside its mean has its variance all the same, and no product needs the mean
        covariance_CC = x_PC.new_zeros(x_PC.shape[1], x_PC.shape[1], dtype=torch.float64)
        for part in _parts(pixels, expanded):
            covariance_CC += torch.mm(x_PC[part].t(), x_PC[part])
        covariance_CC /= pixels
        moved_EC = torch.mm(expand_EC.double(), covariance_CC)
        variance_E = (moved_EC * expand_EC).sum(1).clamp_(min=0)
        inverse_E = (variance_E + epsilon).rsqrt().to(x_PC.dtype)
        scaled_EC = (weight_E * inverse_E)[:, None] * expand_EC
        y_PO = x_PC.new_empty(pixels, len(project_OE))
        hidden_NE = x_PC.new_empty(_pixels_of_part(pixels, expanded), expanded)
        for part in _parts(pixels, expanded):
            torch.mm(_hidden(x_PC[part], scaled_EC, bias_E, hidden_NE), project_OE.t(), out=y_PO[part])
        ctx.save_for_backward(x_PC, expand_EC, scaled_EC, moved_EC.to(x_PC.dtype), weight_E, bias_E, inverse_E, project_OE)
        return y_PO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_PO: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None]:
        x_PC, expand_EC, scaled_EC, moved_EC, weight_E, bias_E, inverse_E, project_OE = ctx.saved_tensors
        pixels, expanded = len(x_PC), len(expand_EC)
        of_project_OE, of_bias_E = torch.zeros_like(project_OE, memory_format=torch.contiguous_format), torch.zeros_like(bias_E)
        along_EC = torch.zeros_like(scaled_EC)  # the gradient of what was expanded and scaled, times what came in
        of_x_PC = torch.empty_like(x_PC)
        hidden_NE, gradient_NE = (x_PC.new_empty(_pixels_of_part(pixels, expanded), expanded) for _ in range(2))
        for part in _parts(pixels, expanded):
            hidden = _hidden(x_PC[part], scaled_EC, bias_E, hidden_NE)
            gradient = torch.mm(gradient_PO[part], project_OE, out=gradient_NE[: len(hidden)])
            of_project_OE.addmm_(gradient_PO[part].t(), hidden)
            torch.ops.aten.threshold_backward.grad_input(gradient, hidden, 0, grad_input=gradient)
            of_bias_E += gradient.sum(0)
            along_EC.addmm_(gradient.t(), x_PC[part])
            torch.mm(gradient, scaled_EC, out=of_x_PC[part])
        # The gradient less its mean, and less what of it goes along with the normalised values.
        of_weight_E = inverse_E * (along_EC * expand_EC).sum(1)
        slope_E = inverse_E * of_weight_E
        of_expand_EC = (along_EC - slope_E[:, None] * moved_EC).mul_((weight_E * inverse_E)[:, None])
        of_x_PC.addmm_(x_PC, torch.mm(scaled_EC.t(), (slope_E / pixels)[:, None] * expand_EC), alpha=-1)
        of_x_PC -= torch.mv(scaled_EC.t(), of_bias_E / pixels)
        return of_x_PC, of_expand_EC, of_weight_E, of_bias_E, of_project_OE, None


def _hidden(x_NC: Tensor, scaled_EC: Tensor, bias_E: Tensor, into_NE: Tensor) -> Tensor:
    """Return the positive part of what some pixels are expanded to."""
    return torch.addmm(bias_E, x_NC, scaled_EC.t(), out=into_NE[: len(x_NC)]).clamp_(min=0)


def _pixels_of_part(pixels: int, expanded: int) -> int:
    of_part = torch.get_num_threads() * _CACHED // expanded // _ALIGNED * _ALIGNED
    return min(pixels, max(_ALIGNED, of_part))


def _parts(pixels: int, expanded: int) -> Iterator[slice]:
    """Yield the pixels that are taken at a time."""
    step = _pixels_of_part(pixels, expanded)
    return (slice(start, min(start + step, pixels)) for start in range(0, pixels, step))


def can_normalise(x_BCHW: Tensor) -> bool:
    """Return whether ``normalised`` is for such a batch: on a CPU, in the memory layout channels_last, of few channels."""
    is_on_cpu = x_BCHW.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    is_in_groups = x_BCHW.shape[1] < _FEW and x_BCHW[:, 0].numel() % _PIXELS == 0
    return is_on_cpu and is_in_groups and x_BCHW.is_contiguous(memory_format=torch.channels_last)


def normalised(x_BCHW: Tensor, weight_C: Tensor, bias_C: Tensor, epsilon: float) -> Tensor:
    """Return a batch normalised by its own statistics (arXiv:1502.03167)."""
    y_BCHW: Tensor = _FewChannels.apply(x_BCHW, weight_C, bias_C, epsilon)
    return y_BCHW


class _FewChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, weight_C: Tensor, bias_C: Tensor, epsilon: float) -> Tensor:
        x_PS11 = _grouped(x_BCHW)
        of_group = torch.ops.aten.batch_norm_update_stats(x_PS11, None, None, 0.0)
        means, variances = (each.view(_PIXELS, -1) for each in of_group)
        mean_C = means.mean(0)
        variance_C = (variances + (means - mean_C) ** 2).mean(0)
        ctx.save_for_backward(x_BCHW, weight_C, mean_C, (variance_C + epsilon).rsqrt())
        mean_S, variance_S, weight_S, bias_S = (each.repeat(_PIXELS) for each in (mean_C, variance_C, weight_C, bias_C))
        return _as_before(F.batch_norm(x_PS11, mean_S, variance_S, weight_S, bias_S, training=False, eps=epsilon), x_BCHW)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BCHW: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x_BCHW, weight_C, mean_C, inverse_C = ctx.saved_tensors
        x_PS11, gradient_PS11 = _grouped(x_BCHW), _grouped(gradient_BCHW)
        weight_S, mean_S, inverse_S = (each.repeat(_PIXELS) for each in (weight_C, mean_C, inverse_C))
        _, *of_group = torch.ops.aten.native_batch_norm_backward(
            gradient_PS11, x_PS11, weight_S, None, None, mean_S, inverse_S, True, 0.0, (False, True, True)
        )
        of_weight_C, of_bias_C = (each.view(_PIXELS, -1).sum(0) for each in of_group)
        # The gradient less its mean, and less what of it goes along with the normalised values.
        scale_C = weight_C * inverse_C
        slope_C = -scale_C * inverse_C * of_weight_C / x_BCHW[:, 0].numel()
        shift_C = -scale_C * of_bias_C / x_BCHW[:, 0].numel() - slope_C * mean_C
        scale, slope, shift = (each.repeat(_PIXELS)[:, None, None] for each in (scale_C, slope_C, shift_C))
        x_gradient_PS11 = torch.addcmul(shift, x_PS11, slope).addcmul_(gradient_PS11, scale)
        return _as_before(x_gradient_PS11, x_BCHW), of_weight_C, of_bias_C, None


def _grouped(x_BCHW: Tensor) -> Tensor:
    """Return the channels of 16 pixels as those of one."""
    return x_BCHW.permute(0, 2, 3, 1).reshape(-1, _PIXELS * x_BCHW.shape[1], 1, 1)


def _as_before(x_PS11: Tensor, like_BCHW: Tensor) -> Tensor:
    batch, channels, height, width = like_BCHW.shape
    return x_PS11.reshape(batch, height, width, channels).permute(0, 3, 1, 2)
