"""The depthwise convolutions of a layer, with a faster gradient of their weights on CPUs, and without what a small map does not see.

oneDNN, by which torch convolves on CPUs, has fast code for the gradient of depthwise kernels of up to three columns only; that of 5 x 5
and 7 x 7 ones takes many times as long as the convolution itself, most of a training step (``benchmarks/depthwise.py``). So the gradient is
taken three columns at a time. It is the same sum in another order; the forward pass is torch's own, to the bit.

Of a kernel larger than the map the outer rows and columns only ever meet zeros, and oneDNN multiplies them all the same: on a map of one
pixel a kernel of 7 x 7 takes twenty times as long as its middle, which gives the same bits.

Shapes: B batch, C channels, H and W height and width, K side of a kernel.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_COLUMNS = 3  # of a kernel that has fast code
_LEAST = 2**23  # multiplications of a convolution for which more, but faster, calls pay


def convolve(x_BCHW: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    """Return the convolution with a kernel of odd side, padded to keep the size (before the stride)."""
    kernel = weight.shape[-1]
    is_depthwise = groups == len(weight) == x_BCHW.shape[1]
    is_on_cpu = x_BCHW.device.type == "cpu" and not torch.is_autocast_enabled("cpu")  # what autocast rounds it hands to torch's own alone
    if is_depthwise and kernel // 2 >= min(x_BCHW.shape[2:]) and is_on_cpu:
        seen = _seen(weight, x_BCHW)
        return F.conv2d(x_BCHW, seen, stride=stride, padding=(seen.shape[2] // 2, seen.shape[3] // 2), groups=groups)
    if is_depthwise and stride == 1 and kernel > _COLUMNS and x_BCHW.numel() * kernel**2 >= _LEAST and is_on_cpu:
        y_BCHW: Tensor = _Depthwise.apply(x_BCHW, weight)
        return y_BCHW
    return F.conv2d(x_BCHW, weight, stride=stride, padding=kernel // 2, groups=groups)


def _seen(weight_C1KK: Tensor, x_BCHW: Tensor) -> Tensor:
    """Return the rows and columns of kernels that lie on the map when they are centred on any of its pixels."""
    middle = weight_C1KK.shape[-1] // 2
    down, across = (min(middle, side - 1) for side in x_BCHW.shape[2:])
    return weight_C1KK[:, :, middle - down : middle + down + 1, middle - across : middle + across + 1]


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution of stride 1, padded to keep the size."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, weight_C1KK: Tensor) -> Tensor:
        ctx.save_for_backward(x_BCHW, weight_C1KK)
        return F.conv2d(x_BCHW, weight_C1KK, padding=weight_C1KK.shape[-1] // 2, groups=len(weight_C1KK))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BCHW: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_BCHW, weight_C1KK = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        gradient_BCHW = gradient_BCHW.contiguous(memory_format=torch.channels_last)
        margin = weight_C1KK.shape[-1] // 2
        x_gradient = _gradients(gradient_BCHW, x_BCHW, weight_C1KK, (margin, margin), of_x=True)[0] if of_x else None
        return x_gradient, _weight_gradient(gradient_BCHW, x_BCHW, weight_C1KK) if of_weight else None


def _weight_gradient(gradient_BCHW: Tensor, x_BCHW: Tensor, weight_C1KK: Tensor) -> Tensor:
    """Return the gradient (C, 1, K, K) of the weights."""
    kernel, (height, width) = weight_C1KK.shape[-1], x_BCHW.shape[2:]
    padding = kernel // 2
    # The fast code takes rows of zeros as said, but only of an image at least as high as the kernel.
    rows = max(0, -(-(kernel - height) // 2))
    padded = F.pad(x_BCHW, (padding, padding, rows, rows))
    parts = []
    for first in range(0, kernel, _COLUMNS):
        columns = min(_COLUMNS, kernel - first)
        seen = padded[..., first : first + width - 1 + columns].contiguous(memory_format=torch.channels_last)
        part = weight_C1KK[..., first : first + columns]
        parts.append(_gradients(gradient_BCHW, seen, part, (padding - rows, 0), of_x=False)[1])
    return torch.cat(parts, dim=3)


def _gradients(gradient: Tensor, x: Tensor, weight: Tensor, padding: tuple[int, int], *, of_x: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient of the input, or that of the weights; the other one is undefined."""
    found: tuple[Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, (1, 1), padding, (1, 1), False, (0, 0), len(weight), (of_x, not of_x, False)
    )[:2]
    return found
