"""The course of a search: which architectures are measured, on which half of the held-out data, and which of them is taken.

Chosen is by the half called "search" alone; the other half, "test", is measured at the end, of what is reported.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from automl.data.dataset import SEARCH, TEST
from automl.evaluation.held_out import Quality, score
from automl.search.constraints import Cost, Region
from automl.search.evaluators import Evaluator
from automl.search.evolution import MIN_SAMPLES, Effort, evolve
from automl.search.front import Point, by_merit, front, spread
from automl.search.journal import Journal
from automl.search.predictor import Fit, Predictor
from automl.spaces.space import Architecture, SearchSpace
from protocol.errors import UserError

DIRECT_SIZE = 10**15  # up to so many architectures a generation shows enough of the space; above it a predictor is the default

_PREDICTED_EFFORT = Effort(population=256, generations=16)  # a second; four times as many found nothing better


@dataclass(frozen=True, slots=True)
class Strategy:
    """How to search."""

    effort: Effort  # with a predictor its population is how many of the predicted best are measured
    seed: int
    has_predictor: bool
    num_samples: int  # random architectures that a predictor is fitted to


class Watch(Protocol):
    """Hears how far a search is."""

    def begin(self, what: str, total: int) -> None:
        """A part of the search begins, of ``total`` measurements at most."""

    def measured(self, quality: Quality) -> None:
        """One more is done, now or by an earlier run of the same search."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An architecture that is reported, with what was selected on and what was not."""

    architecture: Architecture
    search_quality: Quality
    test_quality: Quality


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    points: list[Point]  # everything that was measured
    front: list[Candidate]  # by ascending cost
    fit: Fit | None  # of the predictor, where there was one
    is_whole: bool  # every architecture that keeps the constraints was measured

    @property
    def best(self) -> Candidate:
        """The highest score; of equal ones the cheapest."""
        return self.front[-1]


def default_predictor(space: SearchSpace) -> bool:
    """Return whether a search of this space uses a predictor if nobody says."""
    return space.size() > DIRECT_SIZE


def search(region: Region, axis: Cost, evaluator: Evaluator, strategy: Strategy, journal: Journal, watch: Watch) -> Found:
    """Return the best architecture of the region that was found, and the Pareto front of score and ``axis``.

    A region of a space that holds no more architectures than may be measured is measured whole. The same seed and the same qualities
    give the same result, so with the journal of a search that was broken off this goes on where that one ended.

    Raises:
        UserError: the weights are so broken that a quality is no number.
        MantaError: whatever the evaluator or the journal raises.
    """
    measurer = _Measurer(evaluator, journal, watch)
    rng = random.Random(f"{strategy.seed}:find")
    fit, is_whole = None, region.space.size() <= strategy.effort.budget
    if is_whole:
        points = _all(region, axis, measurer)
    elif strategy.has_predictor:
        points, fit = _predicted(region, axis, measurer, strategy, rng)
    else:
        points = _evolved(region, axis, measurer, strategy, rng)
    assert all(point.architecture in region for point in points)  # whatever was measured may be taken
    chosen = [point.architecture for point in front(points)]
    watch.begin("testing", len(chosen))
    qualities = zip(chosen, measurer.qualities(chosen, SEARCH, silent=True), measurer.qualities(chosen, TEST), strict=True)
    return Found(points, [Candidate(*candidate) for candidate in qualities], fit, is_whole)


def _all(region: Region, axis: Cost, measurer: "_Measurer") -> list[Point]:
    architectures = [architecture for architecture in region.space if architecture in region]
    measurer.watch.begin("measuring all", len(architectures))
    return _points(architectures, axis, measurer)


def _evolved(region: Region, axis: Cost, measurer: "_Measurer", strategy: Strategy, rng: random.Random) -> list[Point]:
    measurer.watch.begin("searching", strategy.effort.budget)
    return evolve(region, axis, measurer.scores, strategy.effort, rng)


def _predicted(region: Region, axis: Cost, measurer: "_Measurer", strategy: Strategy, rng: random.Random) -> tuple[list[Point], Fit | None]:
    """Measure random architectures, evolve on what a predictor makes of them, and measure what that calls the best."""
    samples = region.sample_new(strategy.num_samples, rng)
    if len(samples) < MIN_SAMPLES:  # a region so small that evolution measures most of it
        return _evolved(region, axis, measurer, strategy, rng), None
    measurer.watch.begin("sampling", len(samples))
    points = _points(samples, axis, measurer)
    predictor = Predictor(region.space, samples, [point.score for point in points])
    known = set(samples)
    guesses = [guess for guess in evolve(region, axis, predictor.scores, _PREDICTED_EFFORT, rng) if guess.architecture not in known]
    count = strategy.effort.population
    ranked = [*spread(front(guesses), count // 2), *sorted(guesses, key=by_merit)]  # half for the front, the others for the best
    chosen = list(dict.fromkeys(guess.architecture for guess in ranked))[:count]
    measurer.watch.begin("verifying", len(chosen))
    return points + _points(chosen, axis, measurer), predictor.fit


def _points(architectures: Sequence[Architecture], axis: Cost, measurer: "_Measurer") -> list[Point]:
    scores = measurer.scores(architectures)
    return [Point(each, axis.of(each), value) for each, value in zip(architectures, scores, strict=True)]


class _Measurer:
    """The evaluator, asked only for what the journal does not have."""

    def __init__(self, evaluator: Evaluator, journal: Journal, watch: Watch) -> None:
        self._evaluator = evaluator
        self._journal = journal
        self.watch = watch

    def scores(self, architectures: Sequence[Architecture]) -> list[float]:
        """Return the scores on the half that is searched on."""
        return [score(quality) for quality in self.qualities(architectures, SEARCH)]

    def qualities(self, architectures: Sequence[Architecture], part: str, *, silent: bool = False) -> list[Quality]:
        """Return the qualities on a part of the held-out data."""
        unknown = [architecture for architecture in architectures if self._journal.quality(part, architecture) is None]
        answers = iter(self._evaluator.qualities(unknown, part)) if unknown else iter(())
        qualities = []
        for architecture in architectures:
            quality = self._journal.quality(part, architecture)
            if quality is None:
                quality = next(answers)
                if not all(map(math.isfinite, quality.values())):
                    raise UserError(
                        "the snapshot's weights are broken: a subnet's quality is no number; take the snapshot of an earlier round"
                    )
                self._journal.add(part, architecture, quality)
            qualities.append(quality)
            if not silent:
                self.watch.measured(quality)
        return qualities
