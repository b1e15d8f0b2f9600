"""What a run's log and its tables' means need to know of its training: ``automl.training.asked``, and which weights a row is about."""

import numpy as np
from numpy.typing import NDArray

from manta_swarm.automl.training.asked import AskedTrainingSpec
from manta_swarm.automl.training.coverage import coverage_of


class RunTrainingSpec(AskedTrainingSpec):
    """Implements ``protocol.rewards.TrainingSpec``."""

    def coverage(self, round: int, cohort: str) -> NDArray[np.bool_] | None:
        """Return (N,) which weights a cohort's contribution to a round is about; None: all (``automl.training.coverage.coverage_of``)."""
        return coverage_of(self.plan, round, cohort)
