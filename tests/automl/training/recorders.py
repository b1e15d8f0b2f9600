"""Recorders for tests."""

from collections.abc import Callable

from torch import Tensor

from manta_swarm.automl.graphs import Recorded, Recorder


class Counted:
    """A recorder that counts."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.recorded = self.replayed = 0

    def record(self, work: Callable[[], Tensor]) -> Recorded:
        made = self._recorder.record(work)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            made.replay()

        return Recorded(made.made, replay)
