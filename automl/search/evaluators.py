"""Who measures architectures: the ``Evaluator`` that a search is given.

Here: this process, or a run's members, asked by whoever composes the search. Several processes: ``automl.search.processes``.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from manta_swarm.automl.data.dataset import CLASSIFICATION, STEREO, EvaluationSet
from manta_swarm.automl.evaluation.held_out import Quality
from manta_swarm.automl.evaluation.samples import LOSS_UNIT, KeptBatches, Measured, evaluate_samples
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.evaluations import FIGURE_UNITS, LOSS_UNITS, Result

_FIGURES = ("epe", "d1", "bad3")  # of stereo
_AT_ONCE = 64  # architectures that are asked about before the first of them is known


class Evaluator(Protocol):
    """Measures subnets of one supernet with one state's weights on one data set."""

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterable[Measured]:
        """Return how good each architecture is on a part of the held-out data ("search" or "test"), in the order asked for.

        May give them one by one, as they are ready: a search keeps each one at once. All have the same samples in the same order.
        """


class LocalEvaluator:
    """Measures in this process, with torch's threads."""

    def __init__(self, supernet: Supernet, dataset: EvaluationSet, precision: str = FP32) -> None:
        """Take a supernet with its weights loaded, and data that fits it; the samples are resized once for all architectures.

        ``precision``: what is computed in (``automl.precisions``).
        """
        self._precision = precision
        self._supernet = supernet
        self._dataset = KeptBatches(dataset)

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterator[Measured]:
        """Yield how good each architecture is, its BatchNorm recalibrated first; see Evaluator."""
        for architecture in architectures:
            yield evaluate_samples(self._supernet, self._dataset, architecture, part, self._precision)


assert LOSS_UNIT == LOSS_UNITS


class Members(Protocol):
    """Members of a run who measure architectures of one of its states."""

    def ask(self, architectures: Sequence[str], part: str) -> Sequence[Result]:
        """Return what they say of architectures, named by their texts, on a part of the held-out data.

        Raises:
            MantaError: they cannot be asked, or what they answer cannot be believed.
        """


def result_of(measured: Measured, task: str) -> Result:
    """Return what was measured here as it travels."""
    if task == CLASSIFICATION:
        return Result.of(measured.losses, measured.wrong, ())
    return Result.of(measured.losses, None, tuple(round(measured.quality[name] * FIGURE_UNITS) for name in _FIGURES))


def measured_of(result: Result, task: str) -> Measured:
    """Return what a member measured.

    Raises:
        EncodingError: it is of another task.
    """
    losses, count = result.loss_units(), result.num_samples
    if bool(result.wrong) != (task != STEREO) or len(result.figures) != (len(_FIGURES) if task == STEREO else 0):
        raise EncodingError("a result of another task")
    wrong = result.wrong_places()
    quality: Quality = {"accuracy": (count - len(wrong)) / count, "loss": sum(losses) / (count * LOSS_UNIT)}
    if task == STEREO:
        quality = {name: figure / FIGURE_UNITS for name, figure in zip(_FIGURES, result.figures, strict=True)}
    return Measured(quality, losses, wrong)


class MembersEvaluator:
    """An Evaluator that measures nothing itself."""

    def __init__(self, members: Members, task: str) -> None:
        """Ask the members of a run of this task."""
        self._members = members
        self._task = task

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterator[Measured]:
        """Yield how good each architecture is; see Evaluator.

        Raises:
            MantaError: the members cannot be asked, or what they answer cannot be believed.
        """
        for first in range(0, len(architectures), _AT_ONCE):
            some = architectures[first : first + _AT_ONCE]
            for result in self._members.ask([each.text for each in some], part):
                yield measured_of(result, self._task)
