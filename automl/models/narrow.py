"""Convolutions of 3 x 3 to one channel or two as products of matrices, for the training of CPUs.

oneDNN, by which torch convolves on CPUs, makes 16 channels at a time: of one that is wanted most are thrown away. So each pixel is
multiplied once by the weights of all places of the kernel, and what comes out is added up, each place's moved by as much. They are the same
sums in another order. Where nothing is learnt, all is torch's own.

Shapes: B batch, C channels in, O channels out, K places of the kernel, H and W height and width, P pixels of some samples.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from manta_swarm.automl.models.gradients import is_ours

_SIDE = 3  # of the kernel
_LEAST_PIXELS = 1 << 14  # of a batch for which more, but faster, calls pay
_AT_A_TIME = 1 << 20  # products of the samples that are taken at a time: 4 MiB


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
