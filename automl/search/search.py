"""A search: which architectures are measured, on which half of the held-out data, and which of them is taken, within one standard error.

A search chooses by the half called "search" alone. On the other half, "test", it measures at the end: the front, the smallest subnet, and
random ones within the limits that say what a choice without a search would have been.

It takes the cheapest within one standard error of the best. The best of hundreds is partly the luckiest of them, and a difference of less
than one standard error says little. Whether the rule holds is seen on random halves of the same samples: what it takes on the one half is
measured on the other. Where that is no better there than the smallest subnet, the rule finds luck alone, and the smallest is to be taken.

Shapes: A architectures, N samples, F architectures of a front.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from manta_swarm.automl.data.dataset import SEARCH, TEST
from manta_swarm.automl.evaluation.samples import LOSS_UNIT, Measured
from manta_swarm.automl.search.constraints import Cost, Region
from manta_swarm.automl.search.evaluators import Evaluator
from manta_swarm.automl.search.evolution import MIN_SAMPLES, Effort, Point, by_merit, evolve, expense, front, spread
from manta_swarm.automl.search.journal import Journal
from manta_swarm.automl.search.predictor import Fit, Predictor
from manta_swarm.automl.search.resampling import Losses, Unseen, halves, unseen
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.protocol.errors import UserError

HALVES = 20

DIRECT_SIZE = 10**15  # up to so many architectures a generation shows enough of the space; above it a predictor is the default

_PREDICTED_EFFORT = Effort(population=256, generations=16)  # a second; four times as many found nothing better


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

    The standard error is that of the mean difference, sample by sample, to the best: what both find hard cancels out.
    """
    best = min(range(len(points)), key=lambda place: (int(losses_AN[place].sum()), expense(points[place])))
    behind_AN = losses_AN - losses_AN[best]
    close = [place for place in range(len(points)) if _is_within(behind_AN[place])]
    return min(close, key=lambda place: (expense(points[place]), int(losses_AN[place].sum())))


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


@dataclass(frozen=True, slots=True)
class Strategy:
    """How to search."""

    effort: Effort  # with a predictor its population is how many of the predicted best are measured
    seed: int
    has_predictor: bool
    num_samples: int = 256  # random architectures that a predictor is fitted to
    num_random: int = 20  # random architectures that the choice is compared with on the test half
    start: tuple[Architecture, ...] = ()  # of the region: measured first of all, after the smallest


class BrokenWeights(UserError):
    """A subnet's quality is no number."""


class Watch(Protocol):
    """Hears how far a search is."""

    def begin(self, what: str, total: int) -> None:
        """A part of the search begins, of ``total`` measurements at most."""

    def measured(self, measured: Measured) -> None:
        """One more is done, now or by an earlier run of the same search."""


class Unwatched:
    """A Watch of a search that nobody watches."""

    def begin(self, what: str, total: int) -> None:
        """Nothing is shown."""

    def measured(self, measured: Measured) -> None:
        """Nothing is shown."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An architecture that is reported, with what was selected on and what was not."""

    architecture: Architecture
    search: Measured
    test: Measured


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    points: list[Point]  # everything that was measured
    front: list[Candidate]  # by ascending cost on the first axis
    best: Candidate  # of the front: the cheapest within one standard error of the lowest loss; the smallest where that does not pay
    rehearsal: Rehearsal | None  # None: too few samples to halve
    unseen: Unseen
    fit: Fit | None  # of the predictor, where there was one
    is_whole: bool  # every architecture that keeps the constraints was measured


def default_predictor(space: SearchSpace) -> bool:
    """Return whether a search of this space uses a predictor if nobody says."""
    return space.size() > DIRECT_SIZE


def search(region: Region, axes: Sequence[Cost], evaluator: Evaluator, strategy: Strategy, journal: Journal, watch: Watch) -> Found:
    """Return the architecture of the region to take, and the Pareto front of the loss and the costs ``axes``.

    A region of a space that holds no more architectures than may be measured is measured whole. The smallest subnet, where it is of the
    region, is measured always: what is taken is it, or more than a standard error better, and better on halves of the samples that did
    not choose it. The same seed and the same measurements give the same result, so with the journal of a search that was broken off this
    goes on where that one ended.

    Raises:
        BrokenWeights: a quality is no number.
        MantaError: whatever the evaluator or the journal raises.
    """
    measurer = _Measurer(evaluator, journal, watch)
    rng = random.Random(f"{strategy.seed}:find")
    fit, is_whole = None, region.space.size() <= strategy.effort.budget
    if is_whole:
        points = _all(region, axes, measurer)
    elif strategy.has_predictor:
        points, fit = _predicted(region, axes, measurer, strategy, rng)
    else:
        points = _evolved(region, axes, measurer, strategy, rng)
    assert all(point.architecture in region for point in points)  # whatever was measured may be taken
    return _concluded(region, points, measurer, strategy, fit, is_whole)


def _concluded(region: Region, points: list[Point], measurer: "_Measurer", strategy: Strategy, fit: Fit | None, is_whole: bool) -> Found:
    """Return what was found: chosen by the search half, told with the test half."""
    best_points, smallest = front(points), region.space.smallest()
    architectures = [point.architecture for point in best_points]
    everyone_AN = measurer.losses([point.architecture for point in points])
    place_of = {point.architecture: place for place, point in enumerate(points)}
    choice = chosen(best_points, everyone_AN[[place_of[each] for each in architectures]])
    rehearsal = rehearsed(points, everyone_AN, place_of[smallest], strategy.seed) if smallest in place_of else None
    if rehearsal is not None and not rehearsal.pays and smallest in architectures:
        choice = architectures.index(smallest)
    random_ones = region.sample_new(strategy.num_random, random.Random(f"{strategy.seed}:compared"))
    asked = list(dict.fromkeys([*architectures, smallest, *random_ones]))
    measurer.watch.begin("testing", len(asked))
    test = dict(zip(asked, measurer.measure(asked, TEST), strict=True))
    candidates = [Candidate(each, measurer.known(each), test[each]) for each in architectures]
    word = unseen(candidates[choice].test, test[smallest], [test[each] for each in random_ones], strategy.seed)
    return Found(points, candidates, candidates[choice], rehearsal, word, fit, is_whole)


def _all(region: Region, axes: Sequence[Cost], measurer: "_Measurer") -> list[Point]:
    architectures = [architecture for architecture in region.space if architecture in region]
    measurer.watch.begin("measuring all", len(architectures))
    return _points(architectures, axes, measurer)


def _evolved(region: Region, axes: Sequence[Cost], measurer: "_Measurer", strategy: Strategy, rng: random.Random) -> list[Point]:
    measurer.watch.begin("searching", strategy.effort.budget)
    return evolve(region, axes, measurer, strategy.effort, rng, _start(region, strategy, strategy.effort.population))


def _predicted(
    region: Region, axes: Sequence[Cost], measurer: "_Measurer", strategy: Strategy, rng: random.Random
) -> tuple[list[Point], Fit | None]:
    """Measure random architectures, evolve on what a predictor makes of them, and measure what that calls the best."""
    start = _start(region, strategy, strategy.num_samples)
    samples = start + region.sample_new(strategy.num_samples - len(start), rng, start)
    if len(samples) < MIN_SAMPLES:  # a region so small that evolution measures most of it
        return _evolved(region, axes, measurer, strategy, rng), None
    measurer.watch.begin("sampling", len(samples))
    points = _points(samples, axes, measurer)
    predictor = Predictor(region.space, samples, [point.score for point in points])
    known = set(samples)
    guesses = [guess for guess in evolve(region, axes, predictor, _PREDICTED_EFFORT, rng) if guess.architecture not in known]
    count = strategy.effort.population
    ranked = [*spread(front(guesses), count // 2), *sorted(guesses, key=by_merit)]  # half for the front, the others for the best
    promising = list(dict.fromkeys(guess.architecture for guess in ranked))[:count]
    measurer.watch.begin("verifying", len(promising))
    return points + _points(promising, axes, measurer), predictor.fit


def _start(region: Region, strategy: Strategy, most: int) -> list[Architecture]:
    """Return what is measured first of all, at most so many."""
    smallest = region.space.smallest()
    return list(dict.fromkeys([*([smallest] if smallest in region else []), *strategy.start]))[:most]


def _points(architectures: Sequence[Architecture], axes: Sequence[Cost], measurer: "_Measurer") -> list[Point]:
    scores = measurer.scores(architectures)
    return [Point(each, tuple(axis.of(each) for axis in axes), value) for each, value in zip(architectures, scores, strict=True)]


class _Measurer:
    """The evaluator, asked only for what the journal does not have."""

    def __init__(self, evaluator: Evaluator, journal: Journal, watch: Watch) -> None:
        self._evaluator = evaluator
        self._journal = journal
        self.watch = watch

    def scores(self, architectures: Sequence[Architecture]) -> list[float]:
        """Return the scores on the half that is searched on."""
        return [-measured.loss for measured in self.measure(architectures, SEARCH)]

    def losses(self, architectures: Sequence[Architecture]) -> Losses:
        """Return each sample's loss of architectures that were measured on the half that is searched on."""
        return np.array([self.known(architecture).losses for architecture in architectures], dtype=np.int64)

    def known(self, architecture: Architecture) -> Measured:
        """Return what was measured on the half that is searched on."""
        measured = self._journal.measured(SEARCH, architecture)
        assert measured is not None
        return measured

    def measure(self, architectures: Sequence[Architecture], part: str) -> list[Measured]:
        """Return how good the architectures are on a part of the held-out data.

        Raises:
            BrokenWeights: a quality is no number.
        """
        unknown = [architecture for architecture in architectures if self._journal.measured(part, architecture) is None]
        answers = iter(self._evaluator.measure(unknown, part)) if unknown else iter(())
        everything = []
        for architecture in architectures:
            measured = self._journal.measured(part, architecture)
            if measured is None:
                measured = next(answers)
                if not all(map(math.isfinite, measured.quality.values())):
                    raise BrokenWeights(
                        "the snapshot's weights are broken: a subnet's quality is no number; take the snapshot of an earlier round"
                    )
                self._journal.add(part, architecture, measured)
            everything.append(measured)
            self.watch.measured(measured)
        return everything
