"""Measures architectures for others: ``python -m peer.evaluation.process SOCKET SUPERNET DATASET DIGEST [DATA_ROOT]``.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work; its memory is given back
with its end. Knows no network. Whoever started it says what to measure over the socket, an inherited descriptor.
"""

import time
from pathlib import Path

import torch

from automl.data.catalog import load_dataset
from automl.data.kept_batches import KeptBatches
from automl.evaluation.samples import evaluate_samples
from automl.models.networks import build
from automl.search.members import result_of
from automl.spaces.space import Architecture, space_named
from peer.aside.line import Line, be
from peer.aside.messages import Kind
from peer.evaluation.messages import Ask, Measured
from protocol.encoding import pack, unpack
from protocol.errors import UserError

_KEPT_BYTES = 256 * 1024 * 1024  # of resized samples
_MAX_ASK_BYTES = 4096


class Bench:
    """The supernet, and what it is measured on."""

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

    @property
    def weights_bytes(self) -> int:
        """How many bytes a state's parameters have."""
        return 4 * self._supernet.num_weights

    def load(self, weights: bytearray) -> None:
        """Measure with these weights from now on."""
        self._supernet.load(torch.frombuffer(weights, dtype=torch.float32))

    def measure(self, ask: Ask) -> Measured:
        """Return how good an architecture is, and what it took.

        Raises:
            UserError: samples are missing here.
        """
        began_s = time.process_time()
        measured = evaluate_samples(self._supernet, self._dataset, Architecture.parse(ask.architecture, self._space), ask.part)
        result = result_of(measured, self._space.task)
        return Measured(result, round(1000 * (time.process_time() - began_s)))


def serve(line: Line, bench: Bench) -> None:
    """Do what is asked, until nobody asks any more."""
    line.say(Kind.READY, b"")
    while True:
        kind, data = line.heard(max(_MAX_ASK_BYTES, bench.weights_bytes))
        if kind == Kind.WEIGHTS:
            bench.load(data)
        else:
            line.say(Kind.ANSWER, pack(bench.measure(unpack(Ask, bytes(data), max_bytes=_MAX_ASK_BYTES))))


def work(line: Line, arguments: list[str]) -> None:
    """Measure what the line asks for."""
    supernet, dataset, digest, *root = arguments
    serve(line, Bench(supernet, dataset, digest, Path(root[0]) if root else None))


if __name__ == "__main__":
    be(work)
