"""Two sites that compute one batch together, each a half of it: the link between them, and a BatchNorm that is one over both halves.

What carries the bytes is somebody else's affair; ``linked_in_memory`` is for two threads of one process.

Shapes: B samples of a half, C channels, H and W height and width.
"""

import math
import queue
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from manta_swarm.protocol.errors import EncodingError, Unreachable

_CHANNEL_DIMENSIONS = (0, 2, 3)
_MEMORY_S = 60.0


class SiteLink(Protocol):
    """One end of the way to the other site, which asks for the same exchanges in the same order."""

    @property
    def is_first(self) -> bool:
        """Whether this end's half comes first where the order decides the last bits; of two ends one's does."""

    def exchange(self, data: bytes, size: int) -> bytes:
        """Give the other end ``data``, and return the ``size`` bytes that it gives.

        Raises:
            RemoteFault: it gave something else.
            Weather: it did not answer, or not in time.
        """


def give_values(link: SiteLink, values: Tensor) -> None:
    """Give the other site values, and take none.

    Raises:
        RemoteFault, Weather: as ``SiteLink.exchange``.
    """
    link.exchange(_bytes_of(values), 0)


def take_values(link: SiteLink, shape: Sequence[int], like: Tensor, what: str, *, given: Tensor | None = None) -> Tensor:
    """Return the other site's values of ``shape``, of the type and at the place of ``like``, in exchange for ``given``, if anything.

    Raises:
        RemoteFault: they are too many, too few or not finite; ``what`` says what they are.
        Weather: as ``SiteLink.exchange``.
    """
    size = like.element_size() * math.prod(shape)
    data = link.exchange(b"" if given is None else _bytes_of(given), size)
    if len(data) != size:
        raise EncodingError(f"the other site's {what} have {len(data)} bytes, not {size}")
    values = np.frombuffer(data, f"<f{like.element_size()}")
    if not np.isfinite(values).all():
        raise EncodingError(f"the other site's {what} are not finite")
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(*shape)


def _bytes_of(values: Tensor) -> bytes:
    data: bytes = values.detach().cpu().contiguous().numpy().astype(f"<f{values.element_size()}", copy=False).tobytes()
    return data


class _LinkedBatchNorm(torch.autograd.Function):
    """BatchNorm of one half by the statistics of both (arXiv:1502.03167), and its gradient by the sums over both.

    Mean and squared deviations of two halves of equal size make those of the whole without a difference of large numbers (Chan, Golub
    and LeVeque 1979, equation 2.1).
    """

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, weight_C: Tensor, bias_C: Tensor, link: SiteLink, epsilon: float) -> Tensor:
        variance_C, mean_C = torch.var_mean(x_BCHW, _CHANNEL_DIMENSIONS, correction=0)
        own = torch.stack([mean_C, variance_C])
        other = take_values(link, own.shape, own, "statistics of a batch", given=own)
        one, two = (own, other) if link.is_first else (other, own)
        mean_C = (one[0] + two[0]) / 2
        variance_C = (one[1] + two[1]) / 2 + ((two[0] - one[0]) / 2) ** 2
        inverse_C = (variance_C + epsilon).rsqrt()
        ctx.save_for_backward(x_BCHW, weight_C, mean_C, inverse_C)
        ctx.link = link
        scale_C = weight_C * inverse_C
        return (x_BCHW - _wide(mean_C)) * _wide(scale_C) + _wide(bias_C)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BCHW: Tensor) -> tuple[Tensor | None, ...]:
        x_BCHW, weight_C, mean_C, inverse_C = ctx.saved_tensors
        normal_BCHW = (x_BCHW - _wide(mean_C)) * _wide(inverse_C)
        own = torch.stack([gradient_BCHW.sum(_CHANNEL_DIMENSIONS), (gradient_BCHW * normal_BCHW).sum(_CHANNEL_DIMENSIONS)])
        other = take_values(ctx.link, own.shape, own, "sums of a gradient", given=own)
        mean_gradient_C, mean_product_C = (own + other) / (2 * x_BCHW[:, 0].numel())
        centred_BCHW = gradient_BCHW - _wide(mean_gradient_C) - normal_BCHW * _wide(mean_product_C)
        return centred_BCHW * _wide(weight_C * inverse_C), own[1], own[0], None, None


def linked_batch_norm(x_BCHW: Tensor, weight_C: Tensor, bias_C: Tensor, link: SiteLink, epsilon: float) -> Tensor:
    """Return the half ``x_BCHW`` normalised by the batch that it and the other site's half, of the same shape, are.

    Its backward pass talks to the other site as well. The gradients of weight and bias are this half's share.

    Raises:
        RemoteFault, Weather: as ``SiteLink.exchange``.
    """
    y_BCHW: Tensor = _LinkedBatchNorm.apply(x_BCHW, weight_C, bias_C, link, epsilon)
    return y_BCHW


def _wide(x_C: Tensor) -> Tensor:
    return x_C[:, None, None]


class MemoryLink:
    """A link of ``linked_in_memory``."""

    def __init__(self, is_first: bool, out: "queue.Queue[bytes]", into: "queue.Queue[bytes]", wait_s: float) -> None:
        self._is_first = is_first
        self._out = out
        self._in = into
        self._wait_s = wait_s
        self.sent: list[int] = []  # bytes of each exchange

    @property
    def is_first(self) -> bool:
        """See ``SiteLink``."""
        return self._is_first

    def exchange(self, data: bytes, size: int) -> bytes:
        """See ``SiteLink``."""
        del size
        self.sent.append(len(data))
        self._out.put(data)
        try:
            return self._in.get(timeout=self._wait_s)
        except queue.Empty:
            raise Unreachable(f"the other site said nothing for {self._wait_s:g} s") from None


def linked_in_memory(wait_s: float = _MEMORY_S) -> tuple[MemoryLink, MemoryLink]:
    """Return the two ends of a link between two threads, the first one's first."""
    there: queue.Queue[bytes] = queue.Queue()
    back: queue.Queue[bytes] = queue.Queue()
    return MemoryLink(True, there, back, wait_s), MemoryLink(False, back, there, wait_s)
