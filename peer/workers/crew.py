"""What trains a peer's lots, as its rounds see it: a crew of workers, each of which takes a lot at a time. Here too: the crew of one.

Workers are numbered from 0; a number stands for a device, and stays when what computes on it was started again. A crew of processes is in
``peer.workers.processes``.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from manta_swarm.automl.memory import give_back_memory
from manta_swarm.automl.training.lots import Lot, LotResult
from manta_swarm.peer.train.work import ComputeThread, now_ms
from manta_swarm.protocol.errors import Weather


class WorkerLost(Weather):
    """The worker died, hung or was stopped in the middle of a lot: whoever is free may do the lot again, and gets the same."""


@dataclass(frozen=True, slots=True)
class Done:
    """A lot that was trained."""

    result: LotResult  # its gradient is good until ``release``
    took_ms: float
    release: Callable[[], None]
    partner: bytes = b""  # the key of the site that trained it too, with the other view of its samples


class Crew(Protocol):
    """All workers of a peer, on one state."""

    @property
    def num_weights(self) -> int:
        """N: the length of the gradients."""

    @property
    def size(self) -> int:
        """How many workers there are when all goes well."""

    @property
    def is_paused(self) -> bool:
        """Whether no lot is to be started."""

    def present(self) -> Sequence[int]:
        """Return the workers that are there, busy or not; none while paused."""

    def free(self) -> Sequence[int]:
        """Return those of them that could take a lot now."""

    def watch(self, on_change: Callable[[], None], say: Callable[[str], None]) -> None:
        """Have ``on_change`` called whenever a worker that was not free may be, or is gone; and ``say`` with what a person should read."""

    async def start(self) -> None:
        """Begin; workers may come later. For who may be interrupted: ``close`` is called in any case."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Take over a state's parameters (N,), and those of its teacher, for the lots to come. No lot is under way."""

    async def train(self, worker: int, lot: Lot) -> Done:
        """Return what ``worker``, which is free, made of a lot.

        Raises:
            WorkerLost: nothing; the lot may be started again.
            SamplesMissing: nothing; this computer has not got the lot's samples as they should be, the worker can take another lot.
        """

    async def pause(self) -> None:
        """Start no lot until ``resume``, and give back what the workers hold, as far as they are processes of their own."""

    async def resume(self) -> None:
        """Go on."""

    async def close(self) -> None:
        """End all workers."""


class LotWorker(Protocol):
    """What computes lots (``automl.training.lots.Worker``)."""

    @property
    def num_weights(self) -> int:
        """N."""

    def load(self, parameters: Tensor) -> None:
        """Take over a state's parameters (N,)."""

    def teach(self, parameters: Tensor | None) -> None:
        """Take over the parameters (N,) of a teacher, or do without."""

    def train(self, lot: Lot) -> LotResult:
        """Return what a lot gave."""


class CrewOfOne:
    """What crews of one worker have in common: it is busy or not, and paused or not."""

    def __init__(self) -> None:
        """Begin with one that is free."""
        self._is_busy = self._is_paused = False
        self._on_change: Callable[[], None] = lambda: None

    @property
    def size(self) -> int:
        """One."""
        return 1

    @property
    def is_paused(self) -> bool:
        """Whether no lot is to be started."""
        return self._is_paused

    def present(self) -> Sequence[int]:
        """Return the one worker, unless paused."""
        return () if self._is_paused else (0,)

    def free(self) -> Sequence[int]:
        """Return the one worker if it is there, unless busy."""
        return () if self._is_busy else self.present()

    def watch(self, on_change: Callable[[], None], say: Callable[[str], None]) -> None:
        """See ``Crew``."""
        del say
        self._on_change = on_change

    def _changed(self) -> None:
        self._on_change()

    async def pause(self) -> None:
        """Start no lot; the one under way is finished."""
        self._is_paused = True
        self._on_change()

    async def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._on_change()


class InProcess(CrewOfOne):
    """A crew of one, in this process: its lots are computed in the thread in which all else that is heavy is. Implements ``Crew``."""

    def __init__(self, worker: LotWorker, compute: ComputeThread) -> None:
        """Let ``worker`` compute in the thread of ``compute``, which somebody else closes."""
        super().__init__()
        self._worker = worker
        self._compute = compute

    @property
    def num_weights(self) -> int:
        """N."""
        return self._worker.num_weights

    async def start(self) -> None:
        """Nothing is to be started."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """See ``Crew``."""
        await self._compute.run(self._worker.teach, teacher)
        await self._compute.run(self._worker.load, parameters)

    async def train(self, worker: int, lot: Lot) -> Done:
        """Return what a lot gave; it is never lost."""
        self._is_busy = True
        started_ms = now_ms()
        try:
            result = await self._compute.run(self._worker.train, lot)
        finally:
            self._is_busy = False
        took_ms = now_ms() - started_ms
        if self.is_paused:
            await asyncio.to_thread(give_back_memory)
        return Done(result, took_ms, lambda: None)

    async def pause(self) -> None:
        """Start no lot; memory goes back to the system as far as none is under way, else with its end."""
        await super().pause()
        if not self._is_busy:
            await asyncio.to_thread(give_back_memory)

    async def close(self) -> None:
        """Nothing is to be ended: the thread is its maker's."""
