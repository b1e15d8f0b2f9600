"""Who measures architectures: the ``Evaluator`` that a search is given. Here: this process. Several processes: automl.search.processes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from manta_swarm.automl.data.dataset import EvaluationSet
from manta_swarm.automl.data.kept_batches import KeptBatches
from manta_swarm.automl.evaluation.samples import Measured, evaluate_samples
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.spaces.space import Architecture


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
