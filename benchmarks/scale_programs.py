"""The programs that ``scale.py`` measures, each a fork of its process: the volunteer's, whose lots are pauses, and the operator's.

Every one of them counts the bytes of its node's calls and answers in a file that the others can look at. What is done with them, and
when, is in ``scale_swarm.py``. Not run by itself: ``scale.py`` says where the project's packages are.
"""

import asyncio
import ctypes
import functools
import hashlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from aggregator.config import load_run_file
from aggregator.operator import Operator
from automl.data.dataset import Dataset
from automl.training import NUM_PROJECTIONS, Lot, LotResult, Worker
from peer.config import PeerConfig
from peer.session import join
from swarm.node import Node
from swarm.rpc import Handler

LISTEN = "/ip4/127.0.0.1/tcp/0"
PR_SET_PDEATHSIG = 1
GATE_POLL_S = 0.5  # not to be seen in what it costs to be there
METHODS = ("header", "body", "commit-after", "commit", "blob", "row", "table", "manifest", "latency")
SENT, RECEIVED = 0, 1


def count_traffic(path: Path) -> None:
    """Count the bytes of all calls of this process's node from now on, in a file that other processes can look at."""
    bytes_MD: Any = np.memmap(path, np.int64, "w+", shape=(len(METHODS), 2))
    places = {method: place for place, method in enumerate(METHODS)}
    call, serve = Node.call, Node.serve

    @functools.wraps(call)
    async def counted_call(self: Node, key: Any, method: str, request: bytes, **options: Any) -> bytes:
        bytes_MD[places[method], SENT] += len(request)
        response = await call(self, key, method, request, **options)
        bytes_MD[places[method], RECEIVED] += len(response)
        return response

    @functools.wraps(serve)
    async def counted_serve(self: Node, method: str, handler: Handler) -> None:
        async def answer(caller: Any, request: bytes) -> bytes:
            bytes_MD[places[method], RECEIVED] += len(request)
            response = await handler(caller, request)
            bytes_MD[places[method], SENT] += len(response)
            return response

        await serve(self, method, answer)

    Node.call, Node.serve = counted_call, counted_serve  # type: ignore[method-assign]


def traffic(path: Path) -> Any:
    """Return a copy of what ``count_traffic`` has counted so far: (methods, sent and received)."""
    return np.array(np.memmap(path, np.int64, "r", shape=(len(METHODS), 2)))


class PausingWorker(Worker):
    """A worker that takes its time for a lot and learns nothing."""

    def __init__(self, supernet: str, dataset: Dataset, device: str, *, lot_s: float, lots_path: Path, gate: Path) -> None:
        """Pause ``lot_s`` a lot and write a line for each to ``lots_path``; take no state before ``gate`` exists."""
        super().__init__(supernet, dataset, device)
        self._lot_s = lot_s
        self._lots = lots_path.open("w", buffering=1)
        self._gate = gate
        self._noise_N = np.random.default_rng(os.getpid()).normal(0.0, 1e-2, self.num_weights).astype(np.float32)

    def load(self, parameters: torch.Tensor) -> None:
        """Wait until all are there, the first time; then as always."""
        while not self._gate.exists():
            time.sleep(GATE_POLL_S)
        super().load(parameters)

    def train(self, lot: Lot) -> LotResult:
        """Return noise, another one for each lot, after the pause."""
        started_s = time.monotonic()
        shift = int.from_bytes(hashlib.sha256(lot.base + lot.key + lot.index.to_bytes(4, "big")).digest()[:4], "big")
        gradient_N = torch.from_numpy(np.roll(self._noise_N, shift % len(self._noise_N)))
        time.sleep(max(0.0, self._lot_s - (time.monotonic() - started_s)))
        ended_s = time.monotonic()
        self._lots.write(f"{lot.base.hex()} {lot.samples} {ended_s - started_s:.4f} {ended_s:.4f}\n")
        return LotResult(gradient_N, 1.0, lot.samples, bytes(4 * NUM_PROJECTIONS))


def run_peer(directory: Path, address: str, run: str, lot_s: float, gate: Path) -> None:
    """The program of a peer: the volunteer's, with another worker."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    count_traffic(directory / "traffic")
    make_worker = functools.partial(PausingWorker, lot_s=lot_s, lots_path=directory / "lots", gate=gate)
    config = PeerConfig(dir=directory, initial_peers=(address,), run=run, cohort=directory.name, listen=(LISTEN,), gpus="none", threads=1)
    asyncio.run(join(config, make_worker))


def run_aggregator(directory: Path, run_file: Path) -> None:
    """The program of the aggregator: the operator's."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    count_traffic(directory / "traffic")
    torch.set_num_threads(1)

    async def serve() -> None:
        await Operator(load_run_file(run_file), directory, lambda line: print(line, flush=True)).run(LISTEN)

    asyncio.run(serve())


class Forked:
    """A process that runs a function; has what ``aggregator.children`` needs of a ``Popen``."""

    def __init__(self, work: Callable[[], None], log_path: Path) -> None:
        """Fork; call it while this process has one thread."""
        self._returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, log_path)

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number if one ended it; None while it runs."""
        if self._returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self._returncode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


def _live(work: Callable[[], None], log_path: Path) -> NoReturn:
    """Be a program of its own: run ``work``, what is printed in a file, and end; the kernel ends it when the benchmark is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    with log_path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it ends this process alone
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
