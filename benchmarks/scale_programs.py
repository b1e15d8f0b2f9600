"""The programs that benchmarks measure, each a fork of the benchmark's process: the volunteer's, whose microbatches may be pauses, and the
operator's.

Every one of them counts the bytes of its node's calls and answers in a file that the others can look at. What is done with them, and
when, is in ``scale_swarm.py`` and in the benchmarks. Not run by itself: a benchmark says where the project's packages are.
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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from manta_swarm.aggregator.program import Aggregator
from manta_swarm.aggregator.settings.config import load_run_file
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import Handler
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.joining import join
from manta_swarm.runtime.console import PrintingConsole
from manta_swarm.runtime.tether import ask_for_end_with_parent

LISTEN = "/ip4/127.0.0.1/tcp/0"
LOOP_STEP_S, LOOP_STALL_S = 0.02, 0.05  # how often an event loop is looked at, and from when on it counts as standing still
GATE_POLL_S = 0.5  # not to be seen in what it costs to be there
METHODS = ("header", "body", "commit-after", "commit", "blob", "listing", "weights", "manifest", "latency", "others")
SENT, RECEIVED = 0, 1
OTHERS = METHODS.index("others")
CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
MS_REC, MS_PRIVATE, MS_BIND = 0x4000, 0x40000, 0x1000  # of mount(2)


def count_traffic(path: Path) -> None:
    """Count the bytes of all calls of this process's node from now on, in a file that other processes can look at."""
    bytes_MD: Any = np.memmap(path, np.int64, "w+", shape=(len(METHODS), 2))
    places = {method: place for place, method in enumerate(METHODS)}
    call, serve = Node.call, Node.serve

    @functools.wraps(call)
    async def counted_call(self: Node, key: Any, method: str, request: bytes, **options: Any) -> bytes:
        bytes_MD[places.get(method, OTHERS), SENT] += len(request)
        response = await call(self, key, method, request, **options)
        bytes_MD[places.get(method, OTHERS), RECEIVED] += len(response)
        return response

    @functools.wraps(serve)
    async def counted_serve(self: Node, method: str, handler: Handler) -> None:
        async def answer(caller: Any, request: bytes) -> bytes:
            bytes_MD[places.get(method, OTHERS), RECEIVED] += len(request)
            response = await handler(caller, request)
            bytes_MD[places.get(method, OTHERS), SENT] += len(response)
            return response

        await serve(self, method, answer)

    Node.call, Node.serve = counted_call, counted_serve  # type: ignore[method-assign]


def traffic(path: Path) -> Any:
    """Return a copy of what ``count_traffic`` has counted so far: (methods, sent and received)."""
    return np.array(np.memmap(path, np.int64, "r", shape=(len(METHODS), 2)))


async def watch_loop(path: Path) -> NoReturn:
    """Write a line to ``path`` whenever this event loop stood still: the monotonic clock, and for how long, in seconds."""
    with path.open("a", buffering=1) as file:
        while True:
            slept_s = time.monotonic()
            await asyncio.sleep(LOOP_STEP_S)
            stood_still_s = time.monotonic() - slept_s - LOOP_STEP_S
            if stood_still_s > LOOP_STALL_S:
                file.write(f"{slept_s:.3f} {stood_still_s:.3f}\n")


async def watched(work: Coroutine[Any, Any, None], path: Path) -> None:
    """Do ``work`` in an event loop whose stalls are written to ``path``."""
    watching = asyncio.create_task(watch_loop(path))
    try:
        await work
    finally:
        watching.cancel()


class TimedWorker(Worker):
    """A worker that notes of each microbatch how long it took."""

    def __init__(self, supernet: str, dataset: Dataset, device: str, *, microbatches_path: Path, gate: Path) -> None:
        """Write a line for each microbatch: base, samples, seconds, and when it ended; take no state before ``gate`` exists."""
        super().__init__(supernet, dataset, device)
        self._microbatches = microbatches_path.open("a", buffering=1)
        self._gate = gate

    def load(self, parameters: torch.Tensor, *, in_place: bool = False) -> None:
        """Wait until the gate is there, the first time; then as always."""
        while not self._gate.exists():
            time.sleep(GATE_POLL_S)
        super().load(parameters, in_place=in_place)

    def train(self, microbatch: Microbatch) -> MicrobatchResult:
        """Return what the microbatch gave."""
        started_s = time.monotonic()
        result = self._result(microbatch)
        ended_s = time.monotonic()
        self._microbatches.write(f"{microbatch.base.hex()} {microbatch.samples} {ended_s - started_s:.4f} {ended_s:.4f}\n")
        return result

    def _result(self, microbatch: Microbatch) -> MicrobatchResult:
        return super().train(microbatch)


class PausingWorker(TimedWorker):
    """A worker that takes its time for a microbatch and learns nothing."""

    def __init__(self, *given: Any, microbatch_s: float, **options: Any) -> None:
        """Pause ``microbatch_s`` a microbatch; the rest is as in ``TimedWorker``."""
        super().__init__(*given, **options)
        self._microbatch_s = microbatch_s
        self._noise_N = np.random.default_rng(os.getpid()).normal(0.0, 1e-2, self.num_weights).astype(np.float32)

    def _result(self, microbatch: Microbatch) -> MicrobatchResult:
        """Return noise, another one for each microbatch, after the pause."""
        started_s = time.monotonic()
        shift = int.from_bytes(hashlib.sha256(microbatch.base + microbatch.key + microbatch.index.to_bytes(4, "big")).digest()[:4], "big")
        gradient_N = torch.from_numpy(np.roll(self._noise_N, shift % len(self._noise_N)))
        time.sleep(max(0.0, self._microbatch_s - (time.monotonic() - started_s)))
        return MicrobatchResult(gradient_N, 1.0, microbatch.samples)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs, and with whom."""

    directory: Path
    listen: str = LISTEN
    namespace: str | None = None  # of the network, as ``ip netns`` names it; None: this process's
    cohort: str | None = None  # None: alone, or as ``finds_cohort_peers`` says
    finds_cohort_peers: bool = False  # without a cohort's name it is not alone, but in the cohort that the run's manifest leads it to
    machine: str | None = None  # the id of the computer that it is on; None: this one's
    token: str | None = None  # what the members of the cohort share, 64 hex digits
    gateway: tuple[str, ...] = ()  # where a peer gives light contributors work, HOST:PORT

    def enter(self) -> None:
        """Be there from now on."""
        if self.namespace is not None:
            with open(f"/run/netns/{self.namespace}") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
        if self.machine is not None:
            _be_machine(self.machine, self.directory / "machine-id")
        if self.token is not None:
            os.environ["MANTA_COHORT_TOKEN"] = self.token
        count_traffic(self.directory / "traffic")


def _be_machine(machine: str, path: Path) -> None:
    """Have this id as a computer has it in /etc/machine-id, in this process alone."""
    path.write_text(f"{machine}\n")
    libc = ctypes.CDLL(None, use_errno=True)
    private, bind = (None, b"/", None, MS_REC | MS_PRIVATE, None), (bytes(path), b"/etc/machine-id", None, MS_BIND, None)
    if libc.unshare(CLONE_NEWNS) or libc.mount(*private) or libc.mount(*bind):
        raise OSError(ctypes.get_errno(), "cannot be another machine")


def run_peer(place: Place, address: str, run: str, microbatch_s: float, gate: Path) -> None:
    """The program of a peer: the volunteer's, with another worker; with microbatches of 0 seconds, one that trains."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    place.enter()
    asyncio.run(watched(_taking_part(place, address, run, microbatch_s, gate), place.directory / "stalls"))


def run_sessions(places: Sequence[Place], address: str, run: str, microbatch_s: float, gate: Path) -> None:
    """The program of several peers: a session each, in one event loop."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")

    async def take_part() -> None:
        await asyncio.gather(*(_taking_part(place, address, run, microbatch_s, gate) for place in places))

    asyncio.run(take_part())


def _taking_part(place: Place, address: str, run: str, microbatch_s: float, gate: Path) -> Coroutine[Any, Any, None]:
    microbatches_path = place.directory / "microbatches"
    make_worker = (
        functools.partial(PausingWorker, microbatch_s=microbatch_s, microbatches_path=microbatches_path, gate=gate)
        if microbatch_s
        else functools.partial(TimedWorker, microbatches_path=microbatches_path, gate=gate)
    )
    config = PeerConfig(
        dir=place.directory,
        initial_peers=(address,),
        run=run,
        cohort=place.cohort,
        alone=place.cohort is None and not place.finds_cohort_peers,
        listen=(place.listen,),
        gpus="none",
        cpu_threads=1,
        gateway=place.gateway,
    )
    return join(config, make_worker)


def run_aggregator(place: Place, run_file: Path) -> None:
    """The program of the aggregator: the operator's."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    place.enter()
    torch.set_num_threads(1)

    async def serve() -> None:
        asked = Start(load_run_file(run_file), place.directory, place.listen, page="")
        with PrintingConsole() as console:
            await Aggregator(asked, console).run()

    asyncio.run(watched(serve(), place.directory / "stalls"))


class Forked:
    """A process that runs a function; has what ``runtime.child`` needs of a ``Popen``."""

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
    ask_for_end_with_parent(signal.SIGKILL)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the benchmark's own handlers are not the program's
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
