"""A swarm that is measured: its programs from start to end, and what can be seen of them at a moment and in the log.

It starts the programs of ``scale_programs.py``, waits for their rounds, each wait with a deadline, and ends them whatever happens. What
the moments come to is figured by the benchmark that asks: ``scale.py``, ``wan.py``, ``soak.py``.
"""

import functools
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psutil
from scale_programs import Forked, Place, run_aggregator, run_peer, traffic

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig, template
from manta_swarm.aggregator.settings.sections import DataSection, ExchangeSection, RoundSection, RunSection
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.runtime.child import AT_ONCE, Child, Program, stop

STARTING_AT_ONCE = 4
START_S, STALL_S, END_S = 600.0, 180.0, 120.0
POLL_S = 0.05


class Started:
    """A program that was started, and the libp2p daemon that it has started itself."""

    def __init__(self, child: Child, directory: Path) -> None:
        self.child = child
        self._traffic_path = directory / "traffic"
        self.own = psutil.Process(child.process.pid)
        self._others: list[psutil.Process] = []

    def find_daemon(self) -> None:
        """Look, once it runs, for what the program has started: the daemon and its keeper."""
        self._others = self.own.children(recursive=True)

    def usage(self) -> "Usage":
        """Return what both have used so far."""
        daemon_bytes = sum(each.io_counters().read_chars for each in self._others if each.name() == "p2pd")
        return Usage(_cpu_s([self.own]), _cpu_s(self._others), daemon_bytes, traffic(self._traffic_path))

    def memory_bytes(self) -> int:
        """Return their memory that nobody shares."""
        return sum(each.memory_full_info().uss for each in (self.own, *self._others))


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


@dataclass(frozen=True, slots=True)
class DoneMicrobatch:
    """A microbatch that a peer has done."""

    base: str  # the commit, in hex
    samples: int
    start_s: float  # by the monotonic clock
    end_s: float

    def within_s(self, start_s: float, end_s: float) -> float:
        """Return how many of its seconds lie between two moments."""
        return max(0.0, min(self.end_s, end_s) - max(self.start_s, start_s))


@dataclass
class Logged:
    """What the aggregator's log says of the rounds."""

    commits: dict[str, int] = field(default_factory=dict)  # by digest in hex, the round
    opens_ms: dict[int, int] = field(default_factory=dict)  # by round: how long it was open
    rows: dict[int, int] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)  # digests in hex
    counted: Counter[int] = field(default_factory=Counter)  # by the base's round: samples
    late: Counter[int] = field(default_factory=Counter)  # of them in a table after the one they were meant for

    def take(self, ledger: Ledger) -> None:
        """Take note of the newest round."""
        table = ledger.table_at(ledger.round)
        assert table is not None
        self.commits[ledger.last_commit.hex()] = ledger.round
        self.opens_ms[ledger.round + 1] = ledger.open_ms
        self.rows[ledger.round] = len(table)
        self.claims[ledger.round] = sum(len(listed.keys) for listed in table)
        self.states[ledger.round] = ledger.state.hex()
        for listed in table:
            self.counted[listed.round - 1] += listed.counted
            if listed.weighing.age:
                self.late[listed.round - 1] += listed.counted


class Swarm:
    """One aggregator and its peers, from start to end. Use with ``with``."""

    def __init__(
        self, directory: Path, config: RunConfig, peers: Mapping[str, Place], microbatches_s: Mapping[str, float], aggregator: Place
    ) -> None:
        """Prepare.

        Args:
            directory: for the programs' directories and logs.
            config: of the run.
            peers: where each peer is, by its name.
            microbatches_s: how long a microbatch of each takes; 0: as long as it needs, it is trained.
            aggregator: where the aggregator is.
        """
        self.directory = directory
        self.config = config
        self.peers = list(peers)
        self.gate = directory / "gate"  # no microbatch begins before it is there
        self._places = {**peers, "aggregator": aggregator}
        self._microbatches_s = dict(microbatches_s)
        self.pids: set[int] = set()  # of all programs that were started
        self._programs: dict[str, Started] = {}
        self._status: AggregatorStatus | None = None

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stop(self._children, hurry=AT_ONCE)

    def start(self, say: Callable[[str], None]) -> None:
        """Return when the aggregator runs, and all peers have the first state."""
        self.start_aggregator()
        for name in self.peers:
            self.until(lambda: sum(not self._has_state(each) for each in self._started()) < STARTING_AT_ONCE, name, deadline_s=START_S)
            say(f"{name} starts")
            self.start_peer(name)
        self.until(lambda: all(self._has_state(name) for name in self.peers), "all peers have the first state", deadline_s=START_S)
        for program in self._programs.values():
            program.find_daemon()

    def start_aggregator(self) -> None:
        """Return when the aggregator listens."""
        run_file = self.directory / "run.toml"
        run_file.write_text(template(self.config))
        place = self._places["aggregator"]
        self._start_one("aggregator", place, functools.partial(run_aggregator, place, run_file))
        self.until(lambda: bool((status := self.aggregator()) and status.addresses), "the aggregator listens", deadline_s=START_S)
        self._status = self.aggregator()

    def start_peer(self, name: str, place: Place | None = None, microbatch_s: float | None = None) -> None:
        """Start a peer; a new one needs its place and how long its microbatches take."""
        assert self._status is not None
        if place is not None and microbatch_s is not None:
            self._places[name], self._microbatches_s[name] = place, microbatch_s
        place = self._places[name]
        work = functools.partial(run_peer, place, self._status.addresses[0], self._status.run, self._microbatches_s[name], self.gate)
        self._start_one(name, place, work)

    def rounds(self, say: Callable[[str], None], first: int, last: int) -> None:
        """Return when the rounds from ``first`` to ``last`` are committed."""
        for round_ in range(first, last + 1):
            self.until(functools.partial(self._is_committed, round_), f"round {round_}")
            say(f"round {round_} of {last}")

    def end(self) -> None:
        """Return when the run is over and all peers have ended."""
        self.until(lambda: all(self._ended(name) for name in self.peers), "the end of the run", deadline_s=END_S + STALL_S)

    def process(self, name: str) -> psutil.Process:
        """Return a program's process."""
        return self._programs[name].own

    def returncode(self, name: str) -> int | None:
        """Return a program's exit code, minus the signal's number if one ended it; None while it runs."""
        return self._programs[name].child.returncode

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a program a signal."""
        self._programs[name].child.process.send_signal(number)

    def wait(self, name: str) -> None:
        """Return when a program has ended."""
        end_s = time.monotonic() + END_S
        while self.returncode(name) is None:
            if time.monotonic() > end_s:
                raise SystemExit(f"{name} does not end")
            time.sleep(POLL_S)

    def last_lines(self, name: str, count: int = 20) -> str:
        """Return the end of what a program printed."""
        return self._programs[name].child.last_lines(count)

    def memory_bytes(self) -> dict[str, int]:
        """Return each program's memory that nobody shares, its daemon's with it."""
        return {name: program.memory_bytes() for name, program in self._programs.items()}

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
        return AggregatorStatus.read(self._places["aggregator"].directory)

    def peer(self, name: str) -> PeerStatus:
        """What a peer says of itself."""
        return PeerStatus.read(self._places[name].directory) or PeerStatus("", "")

    def moment(self) -> Moment:
        """Look at all programs."""
        machine = psutil.cpu_times()
        usages = {name: program.usage() for name, program in self._programs.items()}
        return Moment(time.monotonic(), sum(machine) - machine.idle - getattr(machine, "iowait", 0.0), usages)

    def logged(self) -> Logged:
        """Check the log from scratch and return what it says."""
        logged = Logged()
        found = verify_directory(self._places["aggregator"].directory, on_round=logged.take)
        logged.commits[found.run.hex()] = 0
        return logged

    def divergent(self, logged: Logged) -> int:
        """Return how many peers hold another state than the log's of their round; ``logged`` may be a moment old."""
        statuses = [self.peer(name) for name in self.peers]
        return sum(status.state != logged.states.get(status.round, status.state) for status in statuses)

    def microbatches(self, name: str) -> list[DoneMicrobatch]:
        """Return the microbatches that a peer has done so far."""
        lines = (self._places[name].directory / "microbatches").read_text().splitlines()
        return [
            DoneMicrobatch(base, int(samples), float(end_s) - float(took_s), float(end_s))
            for base, samples, took_s, end_s in map(str.split, lines)
        ]

    def laps(self, name: str, first: int, last: int) -> dict[str, float]:
        """Return the mean seconds of what a peer logged of its rounds."""
        seconds: dict[str, list[float]] = {}
        text = (self.directory / f"{name}.log").read_text(errors="replace")
        for round_, line in re.findall(r"round over round=(\d+) (.*)", text):
            if first <= int(round_) <= last:
                for what, value in re.findall(r"(\w+)_s=([\d.]+)", line):
                    seconds.setdefault(what, []).append(float(value))
        return {what: sum(values) / (last - first + 1) for what, values in seconds.items()}

    def _start_one(self, name: str, place: Place, work: Callable[[], None]) -> None:
        place.directory.mkdir(exist_ok=True)
        log_path = self.directory / f"{name}.log"
        process: Any = Forked(work, log_path)
        self.pids.add(process.pid)
        self._programs[name] = Started(Child(Program(name, (), log_path), process), place.directory)

    def _is_committed(self, round_: int) -> bool:
        return self.round >= round_

    def _started(self) -> list[str]:
        return [name for name in self._programs if name != "aggregator"]

    def _has_state(self, name: str) -> bool:
        return bool(self.peer(name).state)

    def _ended(self, name: str) -> bool:
        return self._programs[name].child.returncode is not None

    def until(self, condition: Callable[[], bool], what: str, *, deadline_s: float = STALL_S) -> None:
        """Return once ``condition`` holds; end the benchmark if a program fails before, or the deadline passes."""
        end_s = time.monotonic() + deadline_s
        while not condition():
            for child in self._children:
                if child.returncode not in (None, 0) or (child.name == "aggregator" and child.returncode is not None):
                    raise SystemExit(f"{child.name} ended with exit code {child.returncode} before: {what}\n{child.last_lines()}")
            if time.monotonic() > end_s:
                tails = "\n".join(f"--- {child.name}\n{child.last_lines(3)}" for child in self._children)
                raise SystemExit(f"not within {deadline_s:.0f} s: {what}\n{tails}")
            time.sleep(POLL_S)


def run_config(
    name: str,
    num_peers: int,
    rounds: int,
    *,
    microbatches: int,
    microbatch_s: float,
    supernet: str,
    local_steps: int,
    codec: str,
    dataset: str = "digits",
    cohorts: Literal["token", "affinity"] = "token",
) -> RunConfig:
    """Return the run file of a run in which each peer has about so many microbatches, of so many seconds, in each round."""
    usual = RunConfig.usual("classification")
    microbatch_samples = usual.round.microbatch_samples
    target = num_peers * microbatches * microbatch_samples
    first_open_s = microbatches * microbatch_s
    return usual.model_copy(
        update={
            "run": RunSection(name=name, rounds=rounds, cohorts=cohorts),
            "data": DataSection(dataset=dataset, supernet=supernet),
            "round": RoundSection(
                target_batch=target,
                microbatch_samples=microbatch_samples,
                weight_cap=target // 2,
                max_claim_samples=16 * target,
                first_open_s=first_open_s,
                min_open_s=min(0.2, first_open_s),
                max_open_s=120 + first_open_s,
            ),
            "exchange": ExchangeSection(max_rows=max(64, num_peers), local_steps=local_steps, codec=codec),
        }
    )
