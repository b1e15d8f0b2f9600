"""Measures architectures for others: ``python -m peer.evaluation.process SOCKET SUPERNET DATASET DIGEST [DATA_ROOT]``.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work; its memory is given back
with its end. Knows no network. Whoever started it says what to measure over the socket, an inherited descriptor.
"""

import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch

from automl.data.catalog import load_dataset
from automl.data.kept_batches import KeptBatches
from automl.evaluation.samples import evaluate_samples
from automl.models.networks import build
from automl.search.members import result_of
from automl.spaces.space import Architecture, space_named
from peer.evaluation.messages import HEAD_BYTES, MAX_REASON, Ask, Kind, Measured, framed, head
from protocol.encoding import pack, unpack
from protocol.errors import MantaError, UserError

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


def serve(line: socket.socket, bench: Bench) -> None:
    """Do what is asked, until nobody asks any more."""
    line.sendall(framed(Kind.READY, b""))
    while True:
        length, kind = head(bytes(_exactly(line, HEAD_BYTES)), max_bytes=max(_MAX_ASK_BYTES, bench.weights_bytes))
        data = _exactly(line, length)
        if kind == Kind.WEIGHTS:
            bench.load(data)
        else:
            line.sendall(framed(Kind.MEASURED, pack(bench.measure(unpack(Ask, bytes(data), max_bytes=_MAX_ASK_BYTES)))))


def _exactly(line: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        received = line.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return data


def main() -> None:
    """Be the program."""
    descriptor, supernet, dataset, digest, *root = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    line = socket.socket(fileno=int(descriptor))
    try:
        serve(line, Bench(supernet, dataset, digest, Path(root[0]) if root else None))
    except (EOFError, ConnectionError):
        os._exit(0)  # whoever asked is gone
    except MantaError as error:
        line.sendall(framed(Kind.CANNOT, " ".join(str(error).split())[:MAX_REASON].encode()))
    except Exception:  # noqa: BLE001 - the outermost loop of this process
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
