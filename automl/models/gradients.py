"""Convolutions and other operations of torch whose gradients take less time on CPUs; what goes forward is torch's own, to the bit.

What comes back is the same sum in another order, or in the memory layout that what follows has fast code for.

Elsewhere than on a CPU, and where nothing is to be learnt, they are torch's own altogether.

Convolutions of 3 x 3 to one channel or two are products of matrices. oneDNN, by which torch convolves on CPUs, makes 16 channels at a time:
of one that is wanted most are thrown away. So each pixel is multiplied once by the weights of all places of the kernel, and what comes out
is added up, each place's moved by as much: the same sums in another order.

Of depthwise convolutions oneDNN has fast code for the gradient of kernels of up to three columns only; that of 5 x 5 and 7 x 7 ones takes
many times as long as the convolution itself, most of a training step (``benchmarks/depthwise.py``). So the gradient is taken three columns
at a time.

Of a kernel larger than the map the outer rows and columns only ever meet zeros, and oneDNN multiplies them all the same: on a map of one
pixel a kernel of 7 x 7 takes twenty times as long as its middle, which gives the same bits.

Shapes: B batch, C channels (in), O channels out, H and W height and width, K side of a kernel, or places of the kernel, P pixels of some
samples.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_LEAST_LENGTH = 1e-12  # as torch has it
_LEAST_DOUBLED = 1 << 12  # values of a batch for which more, but faster, calls pay

_SIDE = 3  # of the kernel
_LEAST_PIXELS = 1 << 14  # of a batch for which more, but faster, calls pay
_AT_A_TIME = 1 << 20  # products of the samples that are taken at a time: 4 MiB

_COLUMNS = 3  # of a kernel that has fast code
_LEAST = 2**23  # multiplications of a convolution for which more, but faster, calls pay


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
    """Two slices of a batch. In torch the gradient of a slice is in rows, though what is added to it is in channels_last."""

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
    """Parts joined by their channels. In torch the gradient of a part is a view of some channels of each pixel, which is slow to use."""

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


def convolved(x_BCHW: Tensor, convolution: nn.Conv2d) -> Tensor:
    """Return what a convolution of 3 x 3 to one channel or two, with a bias and padded to keep the size, makes of a batch."""
    weight, bias = convolution.weight, convolution.bias
    if not is_ours(x_BCHW) or x_BCHW[:, 0].numel() < _LEAST_PIXELS:
        return convolution(x_BCHW)  # type: ignore[no-any-return]
    y_BOHW: Tensor = _Narrow.apply(x_BCHW, weight, bias)
    return y_BOHW


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, weight_OCKK: Tensor, bias_O: Tensor) -> Tensor:
        ctx.save_for_backward(x_BCHW, weight_OCKK)
        batch, _, height, width = x_BCHW.shape
        weight_KC = _places_first(weight_OCKK)
        y_OBHW = x_BCHW.new_empty(len(bias_O), batch, height, width)
        for part in _parts(x_BCHW, len(weight_KC)):
            products_KOBHW = torch.mm(weight_KC, _pixels(x_BCHW[part]).t()).view(-1, len(bias_O), part.stop - part.start, height, width)
            y = y_OBHW[:, part]
            torch.add(products_KOBHW[_SIDE**2 // 2], bias_O[:, None, None, None], out=y)
            for products, (here, there) in zip(products_KOBHW, _moves(height, width), strict=True):
                if here != there:
                    y[here] += products[there]
        return y_OBHW.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BOHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_BCHW, weight_OCKK = ctx.saved_tensors
        (_, channels, height, width), out = x_BCHW.shape, len(weight_OCKK)
        # That of what came in has full vectors: its channels are more.
        of_x_BCHW = torch.ops.aten.convolution_backward(
            gradient_BOHW.contiguous(memory_format=torch.channels_last),
            *(x_BCHW, weight_OCKK, None, (1, 1), (_SIDE // 2, _SIDE // 2), (1, 1), False, (0, 0), 1, (True, False, False)),
        )[0]
        gradient_OBHW = gradient_BOHW.transpose(0, 1)
        of_weight_KC = x_BCHW.new_zeros(_SIDE**2 * out, channels)
        for part in _parts(x_BCHW, len(of_weight_KC)):
            gradient = gradient_OBHW[:, part]
            moved_KOBHW = x_BCHW.new_zeros(_SIDE**2, *gradient.shape)
            for moved, (here, there) in zip(moved_KOBHW, _moves(height, width), strict=True):
                moved[there] = gradient[here]
            of_weight_KC.addmm_(moved_KOBHW.view(len(of_weight_KC), -1), _pixels(x_BCHW[part]))
        of_weight = of_weight_KC.view(_SIDE, _SIDE, out, channels).permute(2, 3, 0, 1)
        return of_x_BCHW, of_weight, gradient_OBHW.sum((1, 2, 3))


def _places_first(weight_OCKK: Tensor) -> Tensor:
    """Return the weights as a matrix: of each place of the kernel, and of each channel out, those of the channels in."""
    return weight_OCKK.permute(2, 3, 0, 1).reshape(-1, weight_OCKK.shape[1])


def _moves(height: int, width: int) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield for each place of the kernel the part of a map that it adds to, and the part that is added there."""
    for down, right in product((-1, 0, 1), repeat=2):
        rows, columns = _overlap(down, height), _overlap(right, width)
        yield (..., rows[0], columns[0]), (..., rows[1], columns[1])


def _overlap(move: int, side: int) -> tuple[slice, slice]:
    return slice(max(0, -move), side - max(0, move)), slice(max(0, move), side - max(0, -move))


def _parts(x_BCHW: Tensor, products: int) -> Iterator[slice]:
    """Yield the samples that are taken at a time."""
    step = max(1, _AT_A_TIME // (products * x_BCHW[0, 0].numel()))
    return (slice(start, min(start + step, len(x_BCHW))) for start in range(0, len(x_BCHW), step))


def _pixels(x_BCHW: Tensor) -> Tensor:
    """Return a map as a matrix (P, C)."""
    return x_BCHW.permute(0, 2, 3, 1).reshape(-1, x_BCHW.shape[1])


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
