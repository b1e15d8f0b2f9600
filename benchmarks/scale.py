"""Rounds of 4 to 32 peers on one computer: what of the samples counts, how long a round takes beside the work, and what it costs.

Every peer and the aggregator is a process of its own with its own libp2p daemon, on loopback: the real programs. Only the lots are not
trained, they would drown the processors: each is a pause of ``--lot-ms`` that ends in a cheap pseudo-random gradient of the right length.
All peers are there before the first lot begins; a few rounds warm up and are not counted. Peers are forked from this process once it has
imported what they need: they start in a moment, and share the half gigabyte that torch takes of each.

Bytes are counted where calls are handed to the node and answers come back, by method, and once more at the libp2p daemon: all that it
read (in from the network, and out from the program), the DHT included, as Linux counts it.

Run it from the repository: ``.venv/bin/python benchmarks/scale.py --help``.
"""

import argparse
import asyncio
import contextlib
import ctypes
import functools
import gc
import hashlib
import logging
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # before numpy: a process that has threads is not to be forked

import numpy as np
import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aggregator.children import Child, stop
from aggregator.config import DataSection, ExchangeSection, RoundSection, RunConfig, RunSection, load_run_file, template
from aggregator.local_report import AggregatorStatus, PeerStatus, read_status
from aggregator.operator import Operator
from aggregator.verify import verify_directory
from automl.data.dataset import Dataset
from automl.training import NUM_PROJECTIONS, Lot, LotResult, Worker
from peer.config import PeerConfig
from peer.session import join
from protocol.exchange import MAX_AGE
from protocol.ledger import Ledger
from swarm.node import Node
from swarm.rpc import Handler

LISTEN = "/ip4/127.0.0.1/tcp/0"
REST_S = 20.0  # before the first lot: what it costs to be there
WARM_UP_ROUNDS = 5  # D settles, and connections are made
TAIL_ROUNDS = MAX_AGE + 1  # after those that are counted: what is late may still come
STARTING_AT_ONCE = 4
PR_SET_PDEATHSIG = 1
START_S, STALL_S, END_S = 600.0, 180.0, 120.0
POLL_S = 0.05
GATE_POLL_S = 0.5  # not to be seen in what it costs to be there
METHODS = ("header", "body", "commit-after", "commit", "blob", "row", "table", "manifest", "latency")
SENT, RECEIVED = 0, 1


# In every process: what its node's calls and answers carry.


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


# The main process: what it looks at.


class Program:
    """A program that was started, and the libp2p daemon that it has started itself."""

    def __init__(self, child: Child, directory: Path) -> None:
        self.child = child
        self._traffic_path = directory / "traffic"
        self._own = psutil.Process(child.process.pid)
        self._others: list[psutil.Process] = []

    def find_daemon(self) -> None:
        """Look, once it runs, for what the program has started: the daemon and its keeper."""
        self._others = self._own.children(recursive=True)

    def usage(self) -> "Usage":
        """Return what both have used so far."""
        daemon_bytes = sum(each.io_counters().read_chars for each in self._others if each.name() == "p2pd")
        return Usage(_cpu_s([self._own]), _cpu_s(self._others), daemon_bytes, traffic(self._traffic_path))

    def memory_bytes(self) -> int:
        """Return their memory that nobody shares."""
        return sum(each.memory_full_info().uss for each in (self._own, *self._others))


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return float(sum(times.user + times.system for times in (each.cpu_times() for each in processes)))


@dataclass(frozen=True, slots=True)
class Usage:
    """What a program and its daemon had used at one moment."""

    program_s: float  # of CPU
    daemon_s: float
    daemon_bytes: int  # read by the daemon, from whomever
    traffic: Any  # as ``traffic``


@dataclass(frozen=True, slots=True)
class Moment:
    """All programs at one moment."""

    time_s: float
    machine_s: float  # of CPU that this computer's processes used, whosever
    usages: dict[str, Usage]


@dataclass
class Logged:
    """What the aggregator's log says of the rounds."""

    commits: dict[str, int] = field(default_factory=dict)  # by digest in hex, the round
    opens_ms: dict[int, int] = field(default_factory=dict)  # by round: how long it was open
    rows: dict[int, int] = field(default_factory=dict)
    counted: Counter[int] = field(default_factory=Counter)  # by the base's round: samples
    late: Counter[int] = field(default_factory=Counter)  # of them in a table after the one they were meant for

    def take(self, ledger: Ledger) -> None:
        """Take note of the newest round."""
        table = ledger.table_at(ledger.round)
        assert table is not None
        self.commits[ledger.last_commit.hex()] = ledger.round
        self.opens_ms[ledger.round + 1] = ledger.open_ms
        self.rows[ledger.round] = len(table)
        for listed in table:
            self.counted[listed.round - 1] += listed.counted
            if listed.row.age:
                self.late[listed.round - 1] += listed.counted


class Swarm:
    """One aggregator and its peers, from start to end."""

    def __init__(self, num_peers: int, arguments: argparse.Namespace, directory: Path) -> None:
        self.directory = directory
        self.peers = [f"peer-{index}" for index in range(num_peers)]
        self._arguments = arguments
        self._programs: dict[str, Program] = {}
        self.memory_bytes: dict[str, int] = {}  # after the rounds that count
        self.config = run_config(num_peers, arguments)

    def run(self, say: Callable[[str], None]) -> tuple[Moment, ...]:
        """Run it from the start to the end of its run; return the moments between which it rests, then those between which rounds count."""
        try:
            self._start(say)
            resting = self.moment()
            self._until(lambda: time.monotonic() > resting.time_s + REST_S, "some rest")
            rested = self.moment()
            (self.directory / "gate").touch()
            self._until(lambda: self.round >= WARM_UP_ROUNDS, "the first rounds")
            before = self.moment()
            last = WARM_UP_ROUNDS + self._arguments.rounds
            for round_ in range(WARM_UP_ROUNDS + 1, last + 1):
                self._until(functools.partial(self._is_committed, round_), f"round {round_}")
                say(f"{len(self.peers)} peers: round {round_ - WARM_UP_ROUNDS} of {self._arguments.rounds}")
            after = self.moment()
            self.memory_bytes = {name: program.memory_bytes() for name, program in self._programs.items()}
            self._until(lambda: all(self._ended(name) for name in self.peers), "the end of the run", deadline_s=END_S + STALL_S)
            return resting, rested, before, after
        finally:
            stop(self._children, hurry=lambda: True)

    @property
    def _children(self) -> list[Child]:
        return [program.child for program in self._programs.values()]

    @property
    def round(self) -> int:
        """The newest committed round."""
        status = self.aggregator()
        return 0 if status is None else status.round

    def aggregator(self) -> AggregatorStatus | None:
        """What the aggregator says of itself."""
        return read_status(AggregatorStatus, self.directory / "aggregator")

    def peer(self, name: str) -> PeerStatus:
        """What a peer says of itself."""
        return read_status(PeerStatus, self.directory / name) or PeerStatus()

    def moment(self) -> Moment:
        """Look at all programs."""
        machine = psutil.cpu_times()
        usages = {name: program.usage() for name, program in self._programs.items()}
        return Moment(time.monotonic(), sum(machine) - machine.idle - getattr(machine, "iowait", 0.0), usages)

    def logged(self) -> Logged:
        """Check the log from scratch and return what it says."""
        logged = Logged()
        found = verify_directory(self.directory / "aggregator", on_round=logged.take)
        logged.commits[found.run.hex()] = 0
        return logged

    def laps(self, name: str, first: int, last: int) -> dict[str, float]:
        """Return the mean seconds of what a peer logged of its rounds."""
        seconds: dict[str, list[float]] = {}
        text = self._programs[name].child.log_path.read_text(errors="replace")
        for round_, line in re.findall(r"round over round=(\d+) (.*)", text):
            if first <= int(round_) <= last:
                for what, value in re.findall(r"(\w+)_s=([\d.]+)", line):
                    seconds.setdefault(what, []).append(float(value))
        return {what: sum(values) / (last - first + 1) for what, values in seconds.items()}

    def _start(self, say: Callable[[str], None]) -> None:
        run_file = self.directory / "run.toml"
        run_file.write_text(template(self.config))
        self._start_one("aggregator", run_aggregator, run_file)
        self._until(lambda: bool((status := self.aggregator()) and status.addresses), "the aggregator listens", deadline_s=START_S)
        status = self.aggregator()
        assert status is not None
        for index, name in enumerate(self.peers):
            self._until(lambda: sum(not self._has_state(each) for each in self._started()) < STARTING_AT_ONCE, name, deadline_s=START_S)
            say(f"{len(self.peers)} peers: {name} starts")
            lot_s = self._arguments.lot_ms / 1000 * self._arguments.spread ** (index / max(1, len(self.peers) - 1))
            self._start_one(name, run_peer, status.addresses[0], status.run, lot_s, self.directory / "gate")
        self._until(lambda: all(self._has_state(name) for name in self.peers), "all peers have the first state", deadline_s=START_S)
        for program in self._programs.values():
            program.find_daemon()

    def _start_one(self, name: str, work: Callable[..., None], *given: Any) -> None:
        directory = self.directory / name
        directory.mkdir()
        log_path = self.directory / f"{name}.log"
        process: Any = Forked(functools.partial(work, directory, *given), log_path)
        self._programs[name] = Program(Child(name, process, log_path), directory)

    def _is_committed(self, round_: int) -> bool:
        return self.round >= round_

    def _started(self) -> list[str]:
        return [name for name in self._programs if name != "aggregator"]

    def _has_state(self, name: str) -> bool:
        return bool(self.peer(name).state)

    def _ended(self, name: str) -> bool:
        return self._programs[name].child.returncode is not None

    def _until(self, condition: Callable[[], bool], what: str, *, deadline_s: float = STALL_S) -> None:
        end_s = time.monotonic() + deadline_s
        while not condition():
            for child in self._children:
                if child.returncode not in (None, 0) or (child.name == "aggregator" and child.returncode is not None):
                    raise SystemExit(f"{child.name} ended with exit code {child.returncode} before: {what}\n{child.last_lines()}")
            if time.monotonic() > end_s:
                tails = "\n".join(f"--- {child.name}\n{child.last_lines(3)}" for child in self._children)
                raise SystemExit(f"not within {deadline_s:.0f} s: {what}\n{tails}")
            time.sleep(POLL_S)


def run_config(num_peers: int, arguments: argparse.Namespace) -> RunConfig:
    """Return the run file: rounds in which each peer has about ``--lots`` lots."""
    usual = RunConfig.usual("classification")
    lot_samples = usual.round.lot_samples
    target = num_peers * arguments.lots * lot_samples
    first_open_s = arguments.lots * arguments.lot_ms / 1000
    return usual.model_copy(
        update={
            "run": RunSection(name="scale", rounds=WARM_UP_ROUNDS + arguments.rounds + TAIL_ROUNDS),
            "data": DataSection(dataset="digits", supernet=arguments.supernet),
            "round": RoundSection(
                target_batch=target,
                lot_samples=lot_samples,
                weight_cap=target // 2,
                max_claim_samples=16 * target,
                first_open_s=first_open_s,
                min_open_s=min(0.2, first_open_s),
                max_open_s=120 + first_open_s,
            ),
            "exchange": ExchangeSection(max_rows=max(64, num_peers)),
        }
    )


# The figures.


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: what it says, and how a value is written."""

    name: str
    form: str


LINES = {
    "rounds": Line("rounds counted", "{:.0f}"),
    "share": Line("samples counted %", "{:.2f}"),
    "late": Line("  of them in a later round %", "{:.2f}"),
    "rows": Line("contributions a round", "{:.1f}"),
    "round_s": Line("seconds a round", "{:.2f}"),
    "lots_s": Line("  of them a peer's lots", "{:.2f}"),
    "beside_s": Line("  beside the work", "{:.2f}"),
    "least": Line("  the least of a peer's time in lots %", "{:.0f}"),
    "open_s": Line("D, median, s", "{:.2f}"),
    "fetch_s": Line("a peer: fetch, s", "{:.2f}"),
    "train_s": Line("  train", "{:.2f}"),
    "hand_in_s": Line("  code and hand in", "{:.2f}"),
    "wait_s": Line("  wait for the commit", "{:.2f}"),
    "peer_sent": Line("a peer and round: sent, kB", "{:.0f}"),
    "peer_received": Line("  received, kB", "{:.0f}"),
    "peer_daemon": Line("  through its daemon, kB", "{:.0f}"),
    "peer_cpu": Line("  CPU s", "{:.3f}"),
    "peer_daemon_cpu": Line("  its daemon, CPU s", "{:.3f}"),
    "peer_mb": Line("  memory beside what all share, MB", "{:.0f}"),
    "rest_cpu": Line("a peer at rest: CPU, both, %", "{:.2f}"),
    "rest_daemon": Line("  through its daemon, kB/s", "{:.1f}"),
    "log_sent": Line("aggregator, a round: sent, MB", "{:.2f}"),
    "log_received": Line("  received, MB", "{:.2f}"),
    "log_daemon": Line("  through its daemon, MB", "{:.2f}"),
    "log_cpu": Line("  CPU s", "{:.3f}"),
    "log_daemon_cpu": Line("  its daemon, CPU s", "{:.3f}"),
    "log_mb": Line("  memory beside what all share, MB", "{:.0f}"),
    "digests": Line("different states at the end", "{:.0f}"),
    "broken": Line("tickets not kept", "{:.0f}"),
    "dropped": Line("contributions dropped", "{:.0f}"),
    "refused": Line("refused by the log", "{:.0f}"),
    "busy": Line("CPU of this computer, used %", "{:.0f}"),
    "others": Line("  by others' programs %", "{:.0f}"),
}


def figures(swarm: Swarm, before: Moment, after: Moment, num_rounds: int) -> dict[str, float]:
    """Return what a swarm's rounds came to, by the names of ``LINES``."""
    first, last = WARM_UP_ROUNDS + 1, WARM_UP_ROUNDS + num_rounds
    logged = swarm.logged()
    bases = range(first - 1, last)
    trained, busy_s = 0, dict.fromkeys(swarm.peers, 0.0)
    for name in swarm.peers:
        for base, samples, seconds, end_s in (line.split() for line in (swarm.directory / name / "lots").read_text().splitlines()):
            trained += int(samples) if logged.commits.get(base) in bases else 0
            busy_s[name] += float(seconds) if before.time_s < float(end_s) <= after.time_s else 0.0
    counted = sum(logged.counted[base] for base in bases)
    peers = len(swarm.peers) * num_rounds
    round_s, lots_s = (after.time_s - before.time_s) / num_rounds, sum(busy_s.values()) / peers
    used = {name: _used(before.usages[name], after.usages[name]) for name in before.usages}
    of_peers = [used[name] for name in swarm.peers]
    of_log = used["aggregator"]
    laps = [swarm.laps(name, first, last) for name in swarm.peers]
    statuses = [swarm.peer(name) for name in swarm.peers]
    aggregator = swarm.aggregator()
    assert aggregator is not None
    own_s = sum(each["cpu"] + each["daemon_cpu"] for each in used.values())
    capacity_s = (after.time_s - before.time_s) * (psutil.cpu_count() or 1)
    machine_s = after.machine_s - before.machine_s
    return {
        "rounds": num_rounds,
        "share": 100 * counted / trained,
        "late": 100 * sum(logged.late[base] for base in bases) / counted,
        "rows": statistics.mean(logged.rows[round_] for round_ in range(first, last + 1)),
        "round_s": round_s,
        "lots_s": lots_s,
        "beside_s": round_s - lots_s,
        "least": 100 * min(busy_s.values()) / (after.time_s - before.time_s),
        "open_s": statistics.median(logged.opens_ms[round_] for round_ in range(first, last + 1)) / 1000,
        **{f"{what}_s": statistics.mean(lap.get(what, 0.0) for lap in laps) for what in ("fetch", "train", "hand_in", "wait")},
        "peer_sent": sum(each["sent"] for each in of_peers) / peers / 1e3,
        "peer_received": sum(each["received"] for each in of_peers) / peers / 1e3,
        "peer_daemon": sum(each["daemon"] for each in of_peers) / peers / 1e3,
        "peer_cpu": sum(each["cpu"] for each in of_peers) / peers,
        "peer_daemon_cpu": sum(each["daemon_cpu"] for each in of_peers) / peers,
        "peer_mb": statistics.mean(swarm.memory_bytes[name] for name in swarm.peers) / 1e6,
        "log_sent": of_log["sent"] / num_rounds / 1e6,
        "log_received": of_log["received"] / num_rounds / 1e6,
        "log_daemon": of_log["daemon"] / num_rounds / 1e6,
        "log_cpu": of_log["cpu"] / num_rounds,
        "log_daemon_cpu": of_log["daemon_cpu"] / num_rounds,
        "log_mb": swarm.memory_bytes["aggregator"] / 1e6,
        "digests": len({status.state for status in statuses} | {aggregator.state}),
        "broken": sum(status.promises_broken for status in statuses),
        "dropped": sum(sum(status.dropped.values()) for status in statuses),
        "refused": sum(aggregator.refused.values()),
        "busy": 100 * machine_s / capacity_s,
        "others": 100 * max(0.0, machine_s - own_s) / capacity_s,
    }


def at_rest(swarm: Swarm, before: Moment, after: Moment) -> dict[str, float]:
    """Return what it costs a peer on average to be there."""
    seconds = (after.time_s - before.time_s) * len(swarm.peers)
    used = [_used(before.usages[name], after.usages[name]) for name in swarm.peers]
    return {
        "rest_cpu": 100 * sum(each["cpu"] + each["daemon_cpu"] for each in used) / seconds,
        "rest_daemon": sum(each["daemon"] for each in used) / seconds / 1e3,
    }


def _used(before: Usage, after: Usage) -> dict[str, float]:
    moved = (after.traffic - before.traffic).sum(axis=0)
    return {
        "cpu": after.program_s - before.program_s,
        "daemon_cpu": after.daemon_s - before.daemon_s,
        "daemon": after.daemon_bytes - before.daemon_bytes,
        "sent": int(moved[SENT]),
        "received": int(moved[RECEIVED]),
    }


def by_method(swarm: Swarm, before: Moment, after: Moment, num_rounds: int) -> str:
    """Return what each method carried: a peer and round on average, and the aggregator a round."""
    moved = {name: after.usages[name].traffic - before.usages[name].traffic for name in before.usages}
    of_peer = sum(moved[name] for name in swarm.peers) / len(swarm.peers) / num_rounds
    of_log = moved["aggregator"] / num_rounds
    lines = [f"{'kB a round':16}{'peer sent':>12}{'received':>12}{'log sent':>12}{'received':>12}"]
    for place, method in enumerate(METHODS):
        values = (*of_peer[place], *of_log[place])
        if any(values):
            lines.append(f"{method:16}" + "".join(f"{value / 1e3:12.2f}" for value in values))
    return "\n".join(lines)


def report(found: Mapping[int, Mapping[str, float]]) -> str:
    """Return the table, a column for each number of peers."""
    lines = [f"{'peers':32}" + "".join(f"{count:>10}" for count in found)]
    for name, line in LINES.items():
        lines.append(f"{line.name:32}" + "".join(f"{line.form.format(values[name]):>10}" for values in found.values()))
    return "\n".join(lines)


@contextlib.contextmanager
def scratch(keep: bool) -> Iterator[Path]:
    """Make a directory for one swarm; remove it in the end, or say where it is."""
    directory = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        yield directory
    finally:
        if keep:
            print(f"files: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    found: dict[int, dict[str, float]] = {}
    for num_peers in arguments.peers:
        with scratch(arguments.keep) as directory:
            os.environ["MANTA_STATE_DIR"] = str(directory / "state")
            swarm = Swarm(num_peers, arguments, directory)
            resting, rested, before, after = swarm.run(say)
            found[num_peers] = figures(swarm, before, after, arguments.rounds) | at_rest(swarm, resting, rested)
            say(f"{num_peers} peers; load {os.getloadavg()[0]:.1f}\n{by_method(swarm, before, after, arguments.rounds)}")
            say(report({num_peers: found[num_peers]}))
    lots = f"lots of {arguments.lot_ms} ms (the slowest peer's {arguments.spread:g} times that), about {arguments.lots} a peer and round"
    print(f"{arguments.supernet}, {lots}; {psutil.cpu_count()} cores\n")
    print(report(found))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("a number from 1 on")
    return value


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", type=_positive, nargs="+", default=[4, 8, 16, 32], help="swarms, one after the other (default: 4 8 16 32)"
    )
    parser.add_argument("--rounds", type=_positive, default=20, help="rounds that count (default: %(default)s)")
    parser.add_argument("--lot-ms", type=_positive, default=500, help="how long a lot takes (default: %(default)s)")
    parser.add_argument("--lots", type=_positive, default=8, help="lots of a peer and round that the run aims at (default: %(default)s)")
    parser.add_argument(
        "--spread", type=float, default=1.0, help="how many times longer the slowest peer's lots take (default: %(default)s)"
    )
    parser.add_argument("--supernet", default=DataSection().supernet, help="whose weights are exchanged (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the programs' files and logs")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse(sys.argv[1:])
    gc.freeze()  # what is here by now is shared by all processes for as long as nobody writes to it
    try:
        measure(arguments, lambda line: print(line, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
