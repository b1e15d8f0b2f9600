"""The crew of a peer that trains nothing: no worker, of the run's N all the same. Implements ``peer.workers.crew.Crew``."""

from collections.abc import Callable, Sequence

from torch import Tensor

from manta_swarm.automl.training.lots import Lot
from manta_swarm.peer.workers.crew import Done, WorkerLost


class IdleCrew:
    """No workers."""

    def __init__(self, num_weights: int) -> None:
        """Of a run with so many weights."""
        self.num_weights = num_weights
        self.is_paused = False

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

    def watch(self, on_change: Callable[[], None], say: Callable[[str], None]) -> None:
        """See ``Crew``: nothing changes."""

    async def start(self) -> None:
        """Begin nothing."""

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Take over nothing."""

    async def train(self, worker: int, lot: Lot) -> Done:
        """See ``Crew``: there is no worker."""
        raise WorkerLost(f"there is no worker {worker}")

    async def pause(self) -> None:
        """Be paused."""
        self.is_paused = True

    async def resume(self) -> None:
        """Go on."""
        self.is_paused = False

    async def close(self) -> None:
        """End nothing."""
