"""How a device computes: work that a GPU records once and then repeats (CUDA graphs), faster and less exact numbers, and copies to it.

Without recorded graphs small networks wait for launches of kernels. What is recorded reads and writes memory where it was then. So whoever
replays it puts other inputs where the first ones lay, and fetches what it made before anything is replayed that the same ``Recorder``
recorded. Here, too, the twin of a GPU's recorder for machines without one: it calls what it was given again.

Tensors go to a GPU and back without anybody waiting, by pinned memory, which a GPU reads and writes by itself. Torch keeps such memory
until the GPU is done with it. From and to other memory the program would have to wait, or could change too early what has not been read
yet.

``automl.precisions`` names what networks compute in, without torch; weights and gradients always stay fp32.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from manta_swarm.automl.precisions import BF16, TF32


class DeviceWork(Protocol):
    """Work that a device does, as often as it is told to."""

    def run(self) -> Tensor:
        """Do it, and return what it makes."""


class Recorded(Protocol):
    """Work that was recorded."""

    @property
    def made(self) -> Tensor:
        """What the work makes, always in the same place; holds nothing before the first replay."""

    def replay(self) -> None:
        """Do the work again."""


class Recorder(Protocol):
    """Records work of one device."""

    def record(self, work: DeviceWork) -> Recorded:
        """Return what does ``work`` again, which was done before, so that all libraries are loaded. The CPU may have no part in it.

        Raises:
            RuntimeError: of torch; this cannot be recorded.
        """


class CudaGraphs:
    """Records in CUDA graphs, whose memory they have in common: one is replayed at a time. Implements ``Recorder``."""

    def __init__(self) -> None:
        """Begin with none."""
        self._first: torch.cuda.CUDAGraph | None = None  # which holds the memory that all others take as well

    def record(self, work: DeviceWork) -> Recorded:
        """See ``Recorder``. Nothing is computed here."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=None if self._first is None else self._first.pool()):
            made = work.run()
        self._first = self._first or graph
        return _Graph(made, graph)


@dataclass(frozen=True, slots=True)
class _Graph:
    made: Tensor
    graph: torch.cuda.CUDAGraph

    def replay(self) -> None:
        self.graph.replay()


class CallRecorder:
    """Calls again what it was to record, and leaves what that makes where it lay. Implements ``Recorder``, on any device."""

    def record(self, work: DeviceWork) -> Recorded:
        """See ``Recorder``."""
        return _Call(torch.empty_like(work.run()), work)


@dataclass(frozen=True, slots=True)
class _Call:
    made: Tensor
    work: DeviceWork

    def replay(self) -> None:
        self.made.copy_(self.work.run())


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
