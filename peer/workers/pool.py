"""What trains a peer's microbatches, as its rounds see it: a worker pool of workers, each of which takes a microbatch at a time.

Here: worker pools of one, and of none.

Workers are numbered from 0; a number stands for a device, and stays when what computes on it was started again. A worker pool of processes
is in ``peer.workers.processes``.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from manta_swarm.automl.environment import give_back_memory
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.peer.train.work import ComputeThread, now_ms
from manta_swarm.protocol.errors import Weather


class WorkerLost(Weather):
    """The worker died, hung or was stopped in the middle of a microbatch: whoever is free may do it again, and gets the same."""


@dataclass(frozen=True, slots=True)
class Done:
    """A microbatch that was trained."""

    result: MicrobatchResult  # its gradient is good until it is released
    took_ms: float
    slot: int = 0  # of the gradient, where the worker pool keeps several
    partner: bytes = b""  # the key of the site that trained it too, with the other view of its samples


class Changes:
    """What happened at a worker pool: a worker that was not free may be, or one is gone; and what a person should read of that."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()
        self._lines: list[str] = []

    def note(self, line: str = "") -> None:
        """Something happened; ``line`` is for the person."""
        if line:
            self._lines.append(line)
        self._happened.set()

    async def next(self) -> list[str]:
        """Return the lines for the person, once anything happened since this returned last."""
        await self._happened.wait()
        self._happened.clear()
        lines, self._lines = self._lines, []
        return lines


class WorkerPool(Protocol):
    """All workers of a peer, on one state."""

    @property
    def changes(self) -> Changes:
        """What happened, for whoever gives out microbatches."""

    @property
    def num_weights(self) -> int:
        """N: the length of the gradients."""

    @property
    def size(self) -> int:
        """How many workers there are when all goes well."""

    @property
    def is_paused(self) -> bool:
        """Whether no microbatch is to be started."""

    def present(self) -> Sequence[int]:
        """Return the workers that are there, busy or not; none while paused."""

    def free(self) -> Sequence[int]:
        """Return those of them that could take a microbatch now."""

    async def start(self) -> None:
        """Begin; workers may come later. For who may be interrupted: ``close`` is called in any case."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Take over a state's parameters (N,), and those of its teacher, for the microbatches to come. No microbatch is under way."""

    async def train(self, worker: int, microbatch: Microbatch) -> Done:
        """Return what ``worker``, which is free, made of a microbatch.

        Raises:
            WorkerLost: nothing; the microbatch may be started again.
            SamplesMissing: nothing; this computer has not got the microbatch's samples as they should be, the worker can take another
                microbatch.
        """

    def release(self, done: Done) -> None:
        """Take the memory of a microbatch's gradient back: nobody reads it any more."""

    async def pause(self) -> None:
        """Start no microbatch until ``resume``, and give back what the workers hold, as far as they are processes of their own."""

    async def resume(self) -> None:
        """Go on."""

    async def close(self) -> None:
        """End all workers."""


class MicrobatchWorker(Protocol):
    """What computes microbatches (``automl.training.microbatches.Worker``)."""

    @property
    def num_weights(self) -> int:
        """N."""

    def load(self, parameters: Tensor) -> None:
        """Take over a state's parameters (N,)."""

    def teach(self, parameters: Tensor | None) -> None:
        """Take over the parameters (N,) of a teacher, or do without."""

    def train(self, microbatch: Microbatch) -> MicrobatchResult:
        """Return what a microbatch gave."""


class SingleWorker:
    """What worker pools of one worker have in common: it is busy or not, and paused or not."""

    def __init__(self) -> None:
        """Begin with one that is free."""
        self._is_busy = self._is_paused = False
        self.changes = Changes()

    @property
    def size(self) -> int:
        """One."""
        return 1

    @property
    def is_paused(self) -> bool:
        """Whether no microbatch is to be started."""
        return self._is_paused

    def present(self) -> Sequence[int]:
        """Return the one worker, unless paused."""
        return () if self._is_paused else (0,)

    def free(self) -> Sequence[int]:
        """Return the one worker if it is there, unless busy."""
        return () if self._is_busy else self.present()

    def release(self, done: Done) -> None:
        """See ``WorkerPool``: the gradient has memory of its own."""

    async def pause(self) -> None:
        """Start no microbatch; the one under way is finished."""
        self._is_paused = True
        self.changes.note()

    async def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self.changes.note()


class InProcess(SingleWorker):
    """A worker pool of one, in this process: its microbatches are computed in the thread in which all else that is heavy is.

    Implements ``WorkerPool``.
    """

    def __init__(self, worker: MicrobatchWorker, compute: ComputeThread) -> None:
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
        """See ``WorkerPool``."""
        await self._compute.run(self._worker.teach, teacher)
        await self._compute.run(self._worker.load, parameters)

    async def train(self, worker: int, microbatch: Microbatch) -> Done:
        """Return what a microbatch gave; it is never lost."""
        self._is_busy = True
        started_ms = now_ms()
        try:
            result = await self._compute.run(self._worker.train, microbatch)
        finally:
            self._is_busy = False
        took_ms = now_ms() - started_ms
        if self.is_paused:
            await asyncio.to_thread(give_back_memory)
        return Done(result, took_ms)

    async def pause(self) -> None:
        """Start no microbatch; memory goes back to the system as far as none is under way, else with its end."""
        await super().pause()
        if not self._is_busy:
            await asyncio.to_thread(give_back_memory)

    async def close(self) -> None:
        """Nothing is to be ended: the thread is its maker's."""


class IdlePool:
    """The worker pool of a peer that trains nothing: no workers, of the run's N all the same. Implements ``WorkerPool``."""

    def __init__(self, num_weights: int) -> None:
        """Of a run with so many weights."""
        self.num_weights = num_weights
        self.is_paused = False
        self.changes = Changes()

    @property
    def size(self) -> int:
        """None."""
        return 0

    def present(self) -> Sequence[int]:
        """Return none."""
        return ()

    def free(self) -> Sequence[int]:
        """Return none."""
        return ()

    async def start(self) -> None:
        """Begin nothing."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Take over nothing."""

    async def train(self, worker: int, microbatch: Microbatch) -> Done:
        """See ``WorkerPool``: there is no worker."""
        raise WorkerLost(f"there is no worker {worker}")

    def release(self, done: Done) -> None:
        """Take nothing back."""

    async def pause(self) -> None:
        """Be paused."""
        self.is_paused = True

    async def resume(self) -> None:
        """Go on."""
        self.is_paused = False

    async def close(self) -> None:
        """End nothing."""
