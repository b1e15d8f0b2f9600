"""Recorders for tests, and what was trained."""

from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

from torch import Tensor

from manta_swarm.automl.devices import DeviceWork, Recorded, Recorder
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker
from manta_swarm.automl.training.trainer import Trainer


@dataclass
class Replay:
    """A recording that does anything."""

    made: Tensor
    does: Callable[[], None]

    def replay(self) -> None:
        self.does()


class Counted:
    """A recorder that counts."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.recorded = self.replayed = 0

    def record(self, work: DeviceWork) -> Recorded:
        made = self._recorder.record(work)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            made.replay()

        return Replay(made.made, replay)


def microbatches_of(training: Trainer, rounds: int) -> list[Microbatch]:
    """Train for some rounds, and return the microbatches that were computed."""
    microbatches, train = [], Worker.train

    def seen(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
        microbatches.append(microbatch)
        return train(worker, microbatch)

    with patch.object(Worker, "train", seen):
        for _ in range(rounds):
            training.step()
    return microbatches
