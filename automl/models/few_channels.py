"""BatchNorm of few channels in training, for CPUs: torch's own takes some channels of a pixel at a time, 8 where they are many, one by one
where they are fewer, and several times as long.

So the channels of 16 pixels are as many channels of one, of which torch makes sums; those of one channel are added up afterwards. They are
the same sums in another order.

Shapes: B batch, C channels, H and W height and width, P pixels in groups of 16, S channels of a group: 16 times C.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_PIXELS = 16  # of a group
_FEW = 8  # channels for which torch has fast code


def is_for(x_BCHW: Tensor) -> bool:
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
