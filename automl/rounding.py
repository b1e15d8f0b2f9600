"""Has a device compute in fp32, or in something faster and less exact (``automl.precisions``). Weights and gradients stay fp32."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from manta_swarm.automl.precisions import BF16, TF32


def convolutions(precision: str) -> AbstractContextManager[None]:
    """Return in what cuDNN takes convolutions in a precision, and adds in the same order each time. Torch by itself takes them in tf32."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=precision == TF32
    )
    return flags


def networks_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return in what networks on a device round as a precision says: forward, for a backward pass does as its forward pass did."""
    if precision != BF16:
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


@contextlib.contextmanager
def forward_in(precision: str, device: torch.device) -> Iterator[None]:
    """Have networks on a device compute in a precision, without a backward pass."""
    with convolutions(precision), networks_in(precision, device):
        yield
