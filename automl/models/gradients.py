"""Operations of torch's own with gradients that take less time on CPUs: what goes forward is torch's own, to the bit, and what comes back
is the same sum in another order, or in the memory layout that what follows has fast code for.

Elsewhere than on a CPU, and where nothing is to be learnt, they are torch's own altogether.

Shapes: B batch, C channels, H and W height and width.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_LEAST_LENGTH = 1e-12  # as torch has it
_LEAST_DOUBLED = 1 << 12  # values of a batch for which more, but faster, calls pay


def is_ours(x: Tensor) -> bool:
    """Return whether the gradient of ``x`` is wanted, and taken by a CPU: what autocast rounds it hands to torch's own operations alone.

    What is traced, to be exported, is of torch's own operations, too.
    """
    is_wanted = x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return is_wanted and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def split(x_BCHW: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return the first samples of a batch, as many as said, and the others."""
    if is_ours(x_BCHW):
        one, other = _Split.apply(x_BCHW, first)
        return one, other
    return x_BCHW[:first], x_BCHW[first:]


class _Split(torch.autograd.Function):
    """The gradient of a slice is in torch a new tensor in rows, whatever the slice was, and channels_last ones are what is added to it."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, first: int) -> tuple[Tensor, Tensor]:
        return x_BCHW[:first], x_BCHW[first:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients_BCHW: Tensor) -> tuple[Tensor, None]:
        return torch.cat([each.contiguous(memory_format=torch.channels_last) for each in gradients_BCHW]), None


def joined(parts_BCHW: list[Tensor]) -> Tensor:
    """Return the channels of all parts, in the memory layout channels_last."""
    if any(map(is_ours, parts_BCHW)):
        joined_BCHW: Tensor = _Joined.apply(*parts_BCHW)
        return joined_BCHW
    return torch.cat(parts_BCHW, 1).contiguous(memory_format=torch.channels_last)


class _Joined(torch.autograd.Function):
    """The gradient of a part is in torch a view of some channels of each pixel, for which no operation that follows has fast code."""

    @staticmethod
    def forward(ctx: Any, *parts_BCHW: Tensor) -> Tensor:
        ctx.widths = [part.shape[1] for part in parts_BCHW]
        joined_BHWC = torch.cat([part.permute(0, 2, 3, 1) for part in parts_BCHW], 3)
        return joined_BHWC.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BCHW: Tensor) -> tuple[Tensor | None, ...]:
        parts_BCHW = zip(gradient_BCHW.split(ctx.widths, 1), ctx.needs_input_grad, strict=True)
        return tuple(part.contiguous(memory_format=torch.channels_last) if needed else None for part, needed in parts_BCHW)


def doubled(x_BCHW: Tensor) -> Tensor:
    """Return a map at twice its height and width, linear between the middles of its pixels."""
    if is_ours(x_BCHW) and x_BCHW.shape[1] == 1 and x_BCHW.numel() >= _LEAST_DOUBLED:
        y_BCHW: Tensor = _Doubled.apply(x_BCHW)
        return y_BCHW
    return F.interpolate(x_BCHW, scale_factor=2.0, mode="bilinear", align_corners=False)


class _Doubled(torch.autograd.Function):
    """The gradient of a map of one channel goes back by two products with what doubles a line."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor) -> Tensor:
        ctx.sides = x_BCHW.shape[2:]
        return F.interpolate(x_BCHW, scale_factor=2.0, mode="bilinear", align_corners=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BCHW: Tensor) -> Tensor:
        down, across = (_doubling(side, gradient_BCHW.dtype) for side in ctx.sides)
        return torch.matmul(down.t(), torch.matmul(gradient_BCHW.contiguous(), across))


@cache
def _doubling(side: int, dtype: torch.dtype) -> Tensor:
    """Return the matrix (2 * side, side) that makes of a line one of twice its length."""
    lines: Tensor = F.interpolate(torch.eye(side, dtype=dtype)[None], scale_factor=2.0, mode="linear", align_corners=False)[0]
    return lines.t().contiguous()


def of_length_one(x: Tensor, dim: int) -> Tensor:
    """Return ``x`` divided by its length along a dimension."""
    if is_ours(x):
        y: Tensor = _OfLengthOne.apply(x, dim)
        return y
    return F.normalize(x, dim=dim)


class _OfLengthOne(torch.autograd.Function):
    """The gradient is what of it is at right angles to the result, divided by the length."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp_(min=_LEAST_LENGTH)
        y: Tensor = x / length
        ctx.save_for_backward(y, length)
        ctx.dim = dim
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        y, length = ctx.saved_tensors
        along = (gradient * y).sum(ctx.dim, keepdim=True)
        return torch.addcmul(gradient, y, along, value=-1).div_(length), None
