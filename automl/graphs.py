"""Work for a GPU that is recorded once, and then told it as a whole: a CUDA graph. Otherwise small networks wait for launches of kernels.

What is recorded reads and writes memory where it was then. So whoever replays it puts other inputs where the first ones lay, and fetches
what it made before anything is replayed that the same ``Recorder`` recorded. Here, too, the twin of a GPU's recorder for machines without
one: it calls what it was given again. No GPU has run ``CudaGraphs`` yet.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Work(Protocol):
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

    def record(self, work: Work) -> Recorded:
        """Return what does ``work`` again, which was done before, so that all libraries are loaded. The CPU may have no part in it.

        Raises:
            RuntimeError: of torch; this cannot be recorded.
        """


class CudaGraphs:
    """Records in CUDA graphs, whose memory they have in common: one is replayed at a time. Implements ``Recorder``."""

    def __init__(self) -> None:
        """Begin with none."""
        self._first: torch.cuda.CUDAGraph | None = None  # which holds the memory that all others take as well

    def record(self, work: Work) -> Recorded:
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


class Calls:
    """Calls again what it was to record, and leaves what that makes where it lay. Implements ``Recorder``, on any device."""

    def record(self, work: Work) -> Recorded:
        """See ``Recorder``."""
        return _Call(torch.empty_like(work.run()), work)


@dataclass(frozen=True, slots=True)
class _Call:
    made: Tensor
    work: Work

    def replay(self) -> None:
        self.made.copy_(self.work.run())
