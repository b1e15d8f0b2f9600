"""What a run's log and the means of its tables need to know of its training: ``automl.asked``, and which weights a row is about."""

import numpy as np
from numpy.typing import NDArray

from automl.asked import AskedCourse
from automl.coverage import coverage_of


class RunCourse(AskedCourse):
    """Implements ``protocol.course.Course``."""

    def coverage(self, round: int, cohort: str) -> NDArray[np.bool_] | None:
        """Return (N,) which weights the contribution of a cohort to a round is about; None: all. See ``automl.coverage.coverage_of``."""
        return coverage_of(self.plan, round, cohort)
