"""Measures architectures of a snapshot: ``python -m manta_swarm.automl.search.process SNAPSHOT DATA DEVICE PRECISION [DATA_ROOT]``."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.search.evaluators import Evaluator, LocalEvaluator
from manta_swarm.automl.search.processes import MESSAGES, MeasureAnswer, MeasureRequest
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.training.snapshot import open_snapshot
from manta_swarm.runtime.child import python
from manta_swarm.runtime.line import Parent, be_child


def command(snapshot: Path, data: str, device: str, precision: str, data_root: Path | None) -> list[str]:
    """Return how this program is started."""
    return python("-m", __name__, str(snapshot), data, device, precision, *([] if data_root is None else [str(data_root)]))


def serve(parent: Parent, make: Callable[[], tuple[SearchSpace, Evaluator]]) -> None:
    """Measure what the parent asks for, with an evaluator that is made at the first question."""
    torch.set_num_threads(1)
    ask = parent.hear()
    space, evaluator = make()
    while True:
        assert isinstance(ask, MeasureRequest)
        (measured,) = evaluator.measure([Architecture.parse(ask.architecture, space)], ask.part)
        parent.say(MeasureAnswer.of(measured))
        ask = parent.hear()


def work(parent: Parent) -> None:
    """Open what the command line names, and measure."""
    snapshot, data, device, precision, *root = sys.argv[1:]

    def make() -> tuple[SearchSpace, Evaluator]:
        supernet = open_snapshot(snapshot, device).supernet
        return supernet.space, LocalEvaluator(supernet, load_dataset(data, Path(root[0]) if root else None), precision)

    serve(parent, make)


if __name__ == "__main__":
    be_child(MESSAGES, work)
