"""Architectures measured by a run's members. Knows no network: whoever composes a search gives what asks them."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from manta_swarm.automl.data.dataset import CLASSIFICATION, STEREO
from manta_swarm.automl.evaluation.held_out import Quality
from manta_swarm.automl.evaluation.samples import LOSS_UNIT, Measured
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.evaluations import FIGURE_UNITS, LOSS_UNITS, Result

assert LOSS_UNIT == LOSS_UNITS

_FIGURES = ("epe", "d1", "bad3")  # of stereo
_AT_ONCE = 64  # architectures that are asked about before the first of them is known


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
