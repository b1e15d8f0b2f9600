"""Work for a GPU that is recorded once, and then told it as a whole: a CUDA graph. Otherwise small networks wait for launches of kernels.

What is recorded reads and writes memory where it was then. So whoever replays it puts other inputs where the first ones lay, and fetches
what it made before anything is replayed that the same ``Recorder`` recorded. Here, too, the twin of a GPU's recorder for machines without
one: it calls what it was given again. No GPU has run ``CudaGraphs`` yet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Recorded:
    """Work that can be done again."""

    made: Tensor  # what it returns, always in the same place; holds nothing before the first replay
    replay: Callable[[], None]


class Recorder(Protocol):
    """Records work of one device."""

    def record(self, work: Callable[[], Tensor]) -> Recorded:
        """Return what does ``work`` again, which was done before, so that all libraries are loaded. The CPU may have no part in it.

        Raises:
            RuntimeError: of torch; this cannot be recorded.
        """


class CudaGraphs:
    """Records in CUDA graphs, whose memory they have in common: one is replayed at a time. Implements ``Recorder``."""

    def __init__(self) -> None:
        """Begin with none."""
        self._first: torch.cuda.CUDAGraph | None = None  # which holds the memory that all others take as well

    def record(self, work: Callable[[], Tensor]) -> Recorded:
        """See ``Recorder``. Nothing is computed here."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=None if self._first is None else self._first.pool()):
            made = work()
        self._first = self._first or graph
        return Recorded(made, graph.replay)


class Calls:
    """Calls again what it was to record, and leaves what that makes where it lay. Implements ``Recorder``, on any device."""

    def record(self, work: Callable[[], Tensor]) -> Recorded:
        """See ``Recorder``."""
        made = torch.empty_like(work())

        def again() -> None:
            made.copy_(work())

        return Recorded(made, again)
