"""A swarm that ``scale.py`` measures: its programs from start to end, and what can be seen of them at a moment and in the log.

It starts the programs of ``scale_programs.py``, waits for their rounds, each wait with a deadline, and ends them whatever happens. What
the moments come to is figured in ``scale.py``.
"""

import argparse
import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from scale_programs import Forked, run_aggregator, run_peer, traffic

from aggregator.children import Child, stop
from aggregator.config import DataSection, ExchangeSection, RoundSection, RunConfig, RunSection, template
from aggregator.local_report import AggregatorStatus, PeerStatus, read_status
from aggregator.verify import verify_directory
from protocol.exchange import MAX_AGE
from protocol.ledger import Ledger

REST_S = 20.0  # before the first lot: what it costs to be there
WARM_UP_ROUNDS = 5  # D settles, and connections are made
TAIL_ROUNDS = MAX_AGE + 1  # after those that are counted: what is late may still come
STARTING_AT_ONCE = 4
START_S, STALL_S, END_S = 600.0, 180.0, 120.0
POLL_S = 0.05


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
