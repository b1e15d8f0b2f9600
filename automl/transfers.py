"""Tensors on their way to a GPU and back, without anybody waiting: by pinned memory, which a GPU reads and writes by itself.

Torch keeps such memory until the GPU is done with it. From and to other memory the program would have to wait, or could change too early
what has not been read yet.
"""

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device | str) -> Tensor:
    """Return values of the CPU's on a device, for what it is told from now on; what is there already stays as it is."""
    device = torch.device(device)
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return torch.empty_like(values, pin_memory=True).copy_(values).to(device, non_blocking=True)


def coming(values: Tensor) -> Tensor:
    """Return a copy on the CPU that, from a GPU, is complete only when ``wait`` has returned."""
    copied = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda)
    return copied.copy_(values, non_blocking=True)


def wait(device: torch.device) -> None:
    """Return when a device has done all that it was told so far by this thread."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
