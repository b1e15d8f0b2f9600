"""The usual settings of a training: one table, for runs of the swarm and for one process alike."""

from dataclasses import dataclass

from protocol.records import Optimizer


@dataclass(frozen=True, slots=True)
class Settings:
    """What trains a task's tiny supernet on its usual data in minutes."""

    supernet: str
    dataset: str
    num_rounds: int
    lot_samples: int
    target_batch: int  # samples of one round
    optimizer: Optimizer


_SETTINGS = {
    "classification": Settings(
        "classifier-tiny", "digits", 200, 32, 512, Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20)
    ),
    "stereo": Settings("stereo-tiny", "layers", 300, 8, 32, Optimizer("adamw", "0.01", "0.9", "0.99", "0.00000001", "0.01", 20)),
}
TASKS = tuple(_SETTINGS)


def usual(task: str) -> Settings:
    """Return the usual settings of ``task``."""
    return _SETTINGS[task]
