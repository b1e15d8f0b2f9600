"""Measures architectures for others: ``python -m manta_swarm.peer.features.evaluation.process SUPERNET DATASET DIGEST [DATA_ROOT]``.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work; its memory is given back
with its end. Knows no network. Whoever started it says what to measure.
"""

import sys
import time
from pathlib import Path

import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.evaluation.samples import KeptBatches, evaluate_samples
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.search.evaluators import result_of
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.peer.features.evaluation.measurer import MESSAGES, Ask, Measured, Weights
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.line import Heartbeat, Parent, be_child

_KEPT_BYTES = 256 * 1024 * 1024  # of resized samples


class SubnetMeasurer:
    """Measures architectures of one supernet on one data set."""

    def __init__(self, supernet: str, dataset: str, digest: str, root: Path | None) -> None:
        """Open the data.

        Raises:
            UserError: they are not here, or not the run's.
        """
        self._space = space_named(supernet)
        data = load_dataset(dataset, root)
        if data.digest.hex() != digest:
            raise UserError(f"the data set {dataset} here is not the run's")
        self._dataset = KeptBatches(data, _KEPT_BYTES)
        self._supernet = build(self._space)

    def load(self, weights: Weights) -> None:
        """Measure with these weights from now on."""
        self._supernet.load(torch.frombuffer(bytearray(weights.parameters), dtype=torch.float32))

    def measure(self, ask: Ask) -> Measured:
        """Return how good an architecture is, and what it took.

        Raises:
            UserError: samples are missing here.
        """
        began_s = time.process_time()
        measured = evaluate_samples(self._supernet, self._dataset, Architecture.parse(ask.architecture, self._space), ask.part)
        result = result_of(measured, self._space.task)
        return Measured(result, round(1000 * (time.process_time() - began_s)))


def serve(parent: Parent, bench: SubnetMeasurer) -> None:
    """Do what is asked, until nobody asks any more."""
    parent.say(Heartbeat())
    while True:
        said = parent.hear()
        if isinstance(said, Weights):
            bench.load(said)
        else:
            assert isinstance(said, Ask)
            parent.say(bench.measure(said))


def work(parent: Parent) -> None:
    """Measure what the parent asks for."""
    torch.set_num_threads(1)
    supernet, dataset, digest, *root = sys.argv[1:]
    serve(parent, SubnetMeasurer(supernet, dataset, digest, Path(root[0]) if root else None))


if __name__ == "__main__":
    be_child(MESSAGES, work)
