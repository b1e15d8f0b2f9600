"""Which of the measured architectures a search takes: the cheapest within one standard error of the best.

The best of hundreds is partly the luckiest of them, and a difference of less than one standard error says little: then the cheaper one is
taken. Whether the rule holds is seen on random halves of the same samples: what it takes on the one half is measured on the other. Where
that is no better there than the smallest subnet, the rule finds luck alone, and the smallest is to be taken.

Shapes: A architectures, N samples, F architectures of a front.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manta_swarm.automl.evaluation.samples import LOSS_UNIT
from manta_swarm.automl.search.front import Point, expense, front
from manta_swarm.automl.search.resampling import Losses, halves

HALVES = 20


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The rule applied to random halves of the search part, in means over all of them."""

    halves: int
    chosen_on: float  # the loss of what was taken, on the half that it was taken by
    elsewhere: float  # on the other half
    smallest: float  # the loss of the smallest subnet, on that other half
    better: int  # the halves where what was taken had no higher loss there than the smallest

    @property
    def pays(self) -> bool:
        """Whether what was taken is better than the smallest on samples that did not choose it."""
        return self.elsewhere < self.smallest


def chosen(points: Sequence[Point], losses_AN: Losses) -> int:
    """Return the place of the cheapest point whose mean loss is within one standard error of the best one's.

    Meant is the standard error of the mean difference, sample by sample, to the best: what both find hard cancels out.
    """
    best = min(range(len(points)), key=lambda place: (int(losses_AN[place].sum()), expense(points[place])))
    behind_AN = losses_AN - losses_AN[best]
    wait_within = [place for place in range(len(points)) if _is_within(behind_AN[place])]
    return min(wait_within, key=lambda place: (expense(points[place]), int(losses_AN[place].sum())))


def _is_within(behind_N: npt.NDArray[np.int64]) -> bool:
    """Return whether the sum of N differences is at most sqrt(N) times their standard deviation (with N - 1).

    That is sum^2 (N - 1) <= N * (sum of squares) - sum^2, or what is left of it, in whole numbers.
    """
    total, squares = int(behind_N.sum()), int((behind_N * behind_N).sum())
    return total <= 0 or total * total <= squares


def rehearsed(points: Sequence[Point], losses_AN: Losses, smallest: int, seed: int) -> Rehearsal | None:
    """Return how the choice does on samples that did not make it; None of fewer than four samples.

    Args:
        points: of all that was measured.
        losses_AN: of these points.
        smallest: the place of the smallest subnet among them.
        seed: of the halves.
    """
    count = losses_AN.shape[1]
    if count < 4:
        return None
    on, elsewhere, small, better = 0.0, 0.0, 0.0, 0
    for first, second in halves(count, seed, HALVES):
        here_AN = losses_AN[:, first]
        place = _chosen_of_all(points, here_AN)
        there, of_smallest = (int(losses_AN[which, second].sum()) for which in (place, smallest))
        on += int(here_AN[place].sum()) / (len(first) * LOSS_UNIT)
        elsewhere += there / (len(second) * LOSS_UNIT)
        small += of_smallest / (len(second) * LOSS_UNIT)
        better += there <= of_smallest
    return Rehearsal(HALVES, on / HALVES, elsewhere / HALVES, small / HALVES, better)


def _chosen_of_all(points: Sequence[Point], losses_AN: Losses) -> int:
    """Return the choice among the front that these losses make."""
    sums_A = losses_AN.sum(axis=1).tolist()
    scored = [Point(point.architecture, point.costs, -total) for point, total in zip(points, sums_A, strict=True)]
    place_of = {point.architecture: place for place, point in enumerate(points)}
    places = [place_of[point.architecture] for point in front(scored)]
    return places[chosen([points[place] for place in places], losses_AN[places])]
