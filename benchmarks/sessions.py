"""Many peers in a few processes: what of their samples counts, and what each costs, at rest and at work.

Starts an aggregator, and --processes processes with --sessions peers each: sessions of one event loop, each with a key, a folder and a
libp2p daemon of its own. Microbatches are pauses of --microbatch-ms that end in a cheap pseudo-random gradient, as in ``scale.py``, for
they would drown the processors. After a rest, in which peers announce themselves, look for others and see how far these are, the run goes
on to its end.

Prints the share of the samples that counted, and for each peer its part of memory that nobody shares, threads, open files, and CPU.

Run it from the repository: ``.venv/bin/python benchmarks/sessions.py --help``.
"""

import argparse
import functools
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # before numpy: a process that has threads is not to be forked

import psutil
import results
from beginning import ending_when_told, scratch
from scale_programs import Forked, Place, run_sessions
from scale_swarm import Swarm, run_config

from manta_swarm.aggregator.settings.sections import DataSection
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.runtime.child import AT_ONCE, Child, Program, stop

REST_S = 30.0
STEADY_S = 60.0  # before that: peers meet often at first
START_S, END_S = 900.0, 600.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Cost:
    """What some processes, and the daemons that they started, had used at one moment."""

    time_s: float
    program_s: float  # of CPU
    daemon_s: float


class Sessions:
    """Peers in a few processes."""

    def __init__(self, swarm: Swarm, directory: Path, microbatch_s: float) -> None:
        self._swarm = swarm
        self._directory = directory
        self._microbatch_s = microbatch_s
        self._children: list[Child] = []
        self.places: list[Place] = []

    def start(self, count: int) -> None:
        """Start a process with so many peers; return once each has the first state."""
        token, number = os.environ["MANTA_COHORT_TOKEN"], len(self._children)
        places = [Place(self._directory / f"peer-{number}-{each}", token=token) for each in range(count)]
        for place in places:
            place.directory.mkdir()
        status = self._swarm.aggregator()
        assert status is not None
        log = self._directory / f"sessions-{number}.log"
        work = functools.partial(run_sessions, places, status.addresses[0], status.run, self._microbatch_s, self._swarm.gate)
        process: Any = Forked(work, log)
        self._children.append(Child(Program(f"sessions-{number}", (), log), process))
        self.places += places
        self.until(lambda: all(self.status(place).state for place in places), f"process {number} has the first state", START_S)

    def until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Return once ``condition`` holds; end the benchmark if a process fails before, or the deadline passes."""
        end_s = time.monotonic() + deadline_s
        while not condition():
            for child in self._children:
                if child.returncode not in (None, 0):
                    raise SystemExit(f"{child.name} ended with exit code {child.returncode} before: {what}\n{child.last_lines()}")
            if time.monotonic() > end_s:
                raise SystemExit(f"not within {deadline_s:.0f} s: {what}")
            time.sleep(POLL_S)

    def status(self, place: Place) -> PeerStatus:
        """Return where a peer stands."""
        return PeerStatus.read(place.directory) or PeerStatus("", "")

    def ended(self) -> bool:
        """Return whether all processes have ended."""
        return all(child.returncode is not None for child in self._children)

    def cost(self) -> Cost:
        """Return what they have used so far."""
        own = [psutil.Process(child.pid) for child in self._children]
        daemons = [each for one in own for each in one.children(recursive=True)]
        return Cost(time.monotonic(), _cpu_s(own), _cpu_s(daemons))

    def sizes(self) -> dict[str, float]:
        """Return the memory that nobody shares, threads and open files of a peer, its part of its process and of its daemon."""
        own = [psutil.Process(child.pid) for child in self._children]
        daemons = [each for one in own for each in one.children(recursive=True)]
        peers = len(self.places)
        return {
            "memory of its process, MB": sum(each.memory_full_info().uss for each in own) / peers / 1e6,
            "memory of its daemon, MB": sum(each.memory_full_info().uss for each in daemons) / peers / 1e6,
            "threads in its process": sum(each.num_threads() for each in own) / peers,
            "open files in its process": sum(each.num_fds() for each in own) / peers,
        }

    def stop(self) -> None:
        """End what still runs."""
        stop(self._children, hurry=AT_ONCE)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return float(sum(times.user + times.system for times in (each.cpu_times() for each in processes)))


def _shown(name: str, before: Cost, after: Cost, peers: int) -> str:
    spent_s = (after.time_s - before.time_s) * peers
    program, daemon = (after.program_s - before.program_s) / spent_s, (after.daemon_s - before.daemon_s) / spent_s
    return f"a peer {name}: {100 * program:.2f} % of a core in its process, {100 * daemon:.2f} % in its daemon"


def measure(arguments: argparse.Namespace, directory: Path) -> None:
    peers = arguments.processes * arguments.sessions
    os.environ |= {"MANTA_STATE_DIR": str(directory / "state"), "MANTA_COHORT_TOKEN": secrets.token_hex(32)}
    microbatch_s = arguments.microbatch_ms / 1000
    config = run_config(
        "sessions",
        peers,
        arguments.rounds,
        microbatches=arguments.microbatches,
        microbatch_s=microbatch_s,
        supernet=DataSection().supernet,
        local_steps=1,
        codec=arguments.codec,
    )
    with Swarm(directory, config, {}, {}, Place(directory / "aggregator")) as swarm:
        swarm.start_aggregator()
        sessions = Sessions(swarm, directory, microbatch_s)
        try:
            for number in range(arguments.processes):
                print(f"process {number} of {arguments.processes}", file=sys.stderr)
                sessions.start(arguments.sessions)
            time.sleep(STEADY_S)
            resting = sessions.cost()
            time.sleep(REST_S)
            rested = sessions.cost()
            swarm.gate.touch()
            sessions.until(lambda: swarm.round >= arguments.rounds - 1, "the last rounds", END_S)
            worked, sizes = sessions.cost(), sessions.sizes()
            sessions.until(sessions.ended, "the end of the run", END_S)
            statuses = [sessions.status(place) for place in sessions.places]
        finally:
            sessions.stop()
    counted, lost = (sum(getattr(status, f"samples_{name}") for status in statuses) for name in ("counted", "lost"))
    print(f"{peers} peers in {arguments.processes} processes, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    results.say(f"samples counted: {counted} ({100 * counted / max(1, counted + lost):.1f} %)", samples_counted=counted, samples_lost=lost)
    states = len({status.state for status in statuses})
    results.say(f"different states at the end: {states}", states=states)
    results.say(_shown("at rest", resting, rested, peers), peers=peers, at="rest", before=resting, after=rested)
    results.say(_shown("at work", rested, worked, peers), peers=peers, at="work", before=rested, after=worked)
    for name, value in sizes.items():
        results.say(f"a peer's {name}: {value:.1f}", **{name: value})


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = results.parser(__doc__)
    parser.add_argument("--processes", type=int, default=4, help="processes with peers (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=12, help="peers in each of them (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="of the run (default: %(default)s)")
    parser.add_argument("--microbatch-ms", type=int, default=1000, help="how long a microbatch takes (default: %(default)s)")
    parser.add_argument(
        "--microbatches", type=int, default=12, help="microbatches of a peer and round that the run aims at (default: %(default)s)"
    )
    parser.add_argument("--codec", default="topk-256-4", help="of contributions (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the programs' files and logs")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse(sys.argv[1:])
    with ending_when_told(), scratch("sessions-", arguments.keep) as directory:
        measure(arguments, directory)
    results.write(arguments)


if __name__ == "__main__":
    main()
