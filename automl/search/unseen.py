"""What samples that no search saw say of its choice, beside the smallest subnet and random ones within the same limits, with intervals.

Intervals are over the samples: what other ones of the same kind would say of the same subnets. The differences are of the same samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manta_swarm.automl.evaluation.samples import LOSS_UNIT, Measured
from manta_swarm.automl.search.resampling import Interval, interval, resampled

Rows = npt.NDArray[np.int64]  # choice, smallest, random...; of each sample


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of the choice and of what it is compared with; in each the lower one is better."""

    choice: Interval
    smallest: float
    random_median: float | None  # None: no random ones
    behind: Interval  # by how much the smallest is worse than the choice; below zero: it is better
    random_behind: Interval | None  # by how much the median of the random ones is worse


@dataclass(frozen=True, slots=True)
class Unseen:
    """The test part's word on the choice."""

    samples: int
    num_random: int
    loss: Comparison
    errors: Comparison | None  # shares of wrong classes; None in stereo


def unseen(choice: Measured, smallest: Measured, random_ones: Sequence[Measured], seed: int) -> Unseen:
    """Return the comparison; all were measured on the same samples, at least one."""
    everyone = [choice, smallest, *random_ones]
    count = len(choice.losses)
    losses = np.array([each.losses for each in everyone], dtype=np.int64)
    errors = None
    if "accuracy" in choice.quality:
        is_wrong = np.zeros((len(everyone), count), np.int64)
        for row, each in zip(is_wrong, everyone, strict=True):
            row[each.wrong] = 1
        errors = _compared(is_wrong, seed, 1)
    return Unseen(count, len(random_ones), _compared(losses, seed, LOSS_UNIT), errors)


def _compared(rows: Rows, seed: int, unit: int) -> Comparison:
    divisor = unit * rows.shape[1]
    totals, sums = rows.sum(axis=1).astype(np.float64), resampled(rows, seed)
    choice, smallest = interval(totals[0], sums[0], divisor), float(totals[1] / divisor)
    behind = interval(totals[1] - totals[0], sums[1] - sums[0], divisor)
    if len(rows) < 3:
        return Comparison(choice, smallest, None, behind, None)
    median, medians = float(np.median(totals[2:])), np.median(sums[2:], axis=0)
    return Comparison(choice, smallest, median / divisor, behind, interval(median - totals[0], medians - sums[0], divisor))
