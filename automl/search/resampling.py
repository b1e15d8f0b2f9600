"""What other samples of the same kind might have said: means of resampled losses (the bootstrap), and random halves of the samples.

Which samples are drawn follows from a seed in integers, and losses are integers: the same figures on every machine.

A search's choice is compared with the smallest subnet and random ones on samples that no search saw. The differences are of the
same samples.

Shapes: A architectures, N samples, R replicates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manta_swarm.automl.data.preparing import words
from manta_swarm.automl.evaluation.samples import LOSS_UNIT, Measured

REPLICATES = 1000
_TAIL = REPLICATES // 40  # 2.5 % of the replicates are left out on either side

Losses = npt.NDArray[np.int64]  # (A, N)
Sums = npt.NDArray[np.float64]  # (A, R); whole numbers

_CHUNK = 1 << 22  # draws held at once

Rows = npt.NDArray[np.int64]  # choice, smallest, random...; of each sample


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over samples, and between what it would lie in 95 of 100 sets of other samples of the same kind."""

    value: float
    low: float
    high: float


def resampled(losses_AN: Losses, seed: int) -> Sums:
    """Return each architecture's sum over every replicate, N samples drawn with replacement; all have the same samples (paired).

    Sums of whole numbers below 2^53 are exact in any order, so a product of matrices gives the same bits everywhere.
    """
    count = losses_AN.shape[1]
    assert count * int(np.abs(losses_AN).max(initial=1)) < 1 << 53
    values_NA = losses_AN.T.astype(np.float64)
    step = max(1, _CHUNK // count)
    sums = [_counts(count, min(step, REPLICATES - start), seed, start) @ values_NA for start in range(0, REPLICATES, step)]
    return np.concatenate(sums).T


def _counts(num_samples: int, replicates: int, seed: int, start: int) -> npt.NDArray[np.float64]:
    """Return how often each replicate from ``start`` on has each sample (replicates, N)."""
    counts = np.empty((replicates, num_samples), np.float64)
    for place in range(replicates):
        halves_N2 = words(f"bootstrap {start + place}", seed, num_samples, 2)
        drawn_N = (halves_N2[:, 0] << 16 | halves_N2[:, 1]) * num_samples >> 32
        counts[place] = np.bincount(drawn_N, minlength=num_samples)
    return counts


def interval(total: float, sums_R: npt.NDArray[np.float64], divisor: float) -> Interval:
    """Return the interval of a sum and its replicates, all divided by ``divisor``: from the 2.5th to the 97.5th percentile."""
    ordered = np.sort(sums_R)
    return Interval(float(total / divisor), float(ordered[_TAIL] / divisor), float(ordered[-1 - _TAIL] / divisor))


def halves(num_samples: int, seed: int, count: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield ``count`` random splits of the samples into two halves, each sorted; of an odd number the second has one more."""
    for place in range(count):
        halves_N2 = words(f"halves {place}", seed, num_samples, 2)
        order = np.argsort(halves_N2[:, 0] << 16 | halves_N2[:, 1], kind="stable")
        yield np.sort(order[: num_samples // 2]), np.sort(order[num_samples // 2 :])


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
    """How a search's choice compares with other subnets on the half called "test", by which nothing was chosen."""

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
