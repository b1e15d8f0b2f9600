"""Recorders for tests."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from manta_swarm.automl.devices import Recorded, Recorder, Work


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

    def record(self, work: Work) -> Recorded:
        made = self._recorder.record(work)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            made.replay()

        return Replay(made.made, replay)
