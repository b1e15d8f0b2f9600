"""Light contributors through one gateway: how soon each has credit, what a lease costs in bytes, and what memory one needs.

Real programs on loopback: an aggregator, a peer with a gateway, and light contributors, each in a control group of its own that bounds
its memory, where this computer lets us make one (root; version 1 or 2). ``--python`` names the interpreter of an environment that has
nothing but the extra "light". At the end the log is verified: each contributor's key has to have credit there.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import results

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig, write_run_file
from manta_swarm.aggregator.settings.sections import RoundSection
from manta_swarm.automl.training.settings import TASKS, thin, usual
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.child import Child, Program, python, stop

_LISTEN = "/ip4/127.0.0.1/tcp/0"
_START_S, _RUN_S = 240.0, 600.0
_JOIN = 'echo $$ > "$0" && exec "$@"'  # a shell that moves into a control group and becomes the program


@dataclass
class _Light:
    """One contributor, and what was seen of it."""

    child: Child
    directory: Path
    group: Path | None
    started_s: float
    first_inclusion_promise_s: float | None = None
    first_credit_s: float | None = None
    credit_round: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0  # resident


def _read_json(path: Path) -> dict[str, Any]:
    """Return a status file's content; nothing while there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def _group(name: str, memory_bytes: int) -> Path | None:
    """Return a new control group that bounds the memory of what is in it; None where none can be made."""
    for root, limit in ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max")):
        group = root / f"manta-{os.getpid()}-{name}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text(str(memory_bytes))
            return group
        group.rmdir()
    return None


def _group_peak(group: Path) -> int:
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if (group / name).exists():
            return int((group / name).read_text())
    return 0


def _resident_peak(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


class _Programs:
    def __init__(self, directory: Path, arguments: argparse.Namespace) -> None:
        self.directory = directory
        self.arguments = arguments
        self.children: list[Child] = []
        self.lights: list[_Light] = []
        self.environment = {
            "MANTA_CPU_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "MANTA_STATE_DIR": str(directory / "state"),
        }

    def start(self, name: str, *arguments: str) -> Child:
        child = Child.start(Program(name, python("-m", *arguments), self.directory / f"{name}.log", self.environment))
        self.children.append(child)
        return child

    def aggregator(self) -> dict[str, Any]:
        return _read_json(self.directory / "aggregator" / "status.json")

    def start_run(self) -> str:
        """Start the aggregator and the gateway; return the gateway's URL."""
        settings = thin(self.arguments.task) if self.arguments.thin else usual(self.arguments.task)
        config = RunConfig.of(settings)
        seconds = self.arguments.round_s
        opened = {"first_open_s": seconds, "min_open_s": seconds, "max_open_s": seconds}
        config = config.model_copy(update={"round": RoundSection(**{**config.round.model_dump(), **opened})})
        write_run_file(self.directory / "run.toml", config)
        where = ("--dir", str(self.directory / "aggregator"), "--listen", _LISTEN, "--no-monitor")
        self.start("aggregator", "manta_swarm.aggregator.cli", "start", str(self.directory / "run.toml"), *where)
        self._until(lambda: bool(self.aggregator().get("addresses")))
        address = self.aggregator()["addresses"][0]
        offered = ("--dir", str(self.directory / "gateway"), "--listen", _LISTEN, "--gateway", "127.0.0.1:0")
        self.start("gateway", "manta_swarm.peer.cli", "join", "--gpus", "none", "--initial-peers", address, *offered)
        log_path = self.directory / "gateway.log"
        self._until(lambda: "--gateway http" in log_path.read_text())
        return log_path.read_text().rpartition("--gateway ")[2].split()[0]

    def start_light(self, number: int, url: str) -> None:
        directory = self.directory / f"light-{number}"
        group = _group(str(number), self.arguments.memory_mb * 2**20)
        command = [self.arguments.python, "-P", "-m", "manta_swarm.peer.cli", "join", "--light", "--gateway", url, "--dir", str(directory)]
        if group is not None:
            command = ["sh", "-c", _JOIN, str(group / "cgroup.procs"), *command]
        path = "" if self.arguments.python != sys.executable else os.environ.get("PYTHONPATH", "")
        environment = {**self.environment, "PYTHONPATH": path}
        child = Child.start(Program(f"light-{number}", command, self.directory / f"light-{number}.log", environment))
        self.children.append(child)
        self.lights.append(_Light(child, directory, group, time.monotonic()))

    def watch(self) -> None:
        """Look on until every contributor has earned, and so many rounds are over."""
        self._until(lambda: self._look() and int(self.aggregator().get("round", 0)) >= self.arguments.rounds, _RUN_S)

    def _look(self) -> bool:
        now_s, round_ = time.monotonic(), int(self.aggregator().get("round", 0))
        for light in self.lights:
            light.status = _read_json(light.directory / "status.json") or light.status
            light.peak_bytes = max(light.peak_bytes, _resident_peak(light.child.process.pid))
            if light.first_inclusion_promise_s is None and light.status.get("taken"):
                light.first_inclusion_promise_s, light.credit_round = now_s - light.started_s, int(light.status["round"])
            if light.first_credit_s is None and light.first_inclusion_promise_s is not None and round_ >= light.credit_round:
                light.first_credit_s = now_s - light.started_s
        return all(light.first_credit_s is not None for light in self.lights)

    def _until(self, condition: Any, deadline_s: float = _START_S) -> None:
        end_s = time.monotonic() + deadline_s
        while not condition():
            ended = [child for child in self.children if child.returncode is not None]
            if ended or time.monotonic() > end_s:
                names = ", ".join(child.name for child in ended) or "nobody"
                raise SystemExit(f"{names} ended\n" + "\n".join(f"--- {child.name}\n{child.last_lines(8)}" for child in self.children))
            time.sleep(0.1)


@contextmanager
def _running(arguments: argparse.Namespace) -> Iterator[_Programs]:
    directory = Path(tempfile.mkdtemp(prefix="manta-light-"))
    programs = _Programs(directory, arguments)
    try:
        yield programs
    finally:
        stop([child for child in programs.children if child.name != "aggregator"])
        stop(programs.children)
        for light in programs.lights:
            if light.group is not None:
                light.group.rmdir()
        shutil.rmtree(directory)


def _show(programs: _Programs) -> None:
    print("contributor  first promise  first credit  leases  taken  lost  down/lease  up/lease  resident  group's peak  killed for memory")
    for number, light in enumerate(programs.lights):
        status = light.status
        leases = max(1, int(status["leases"]))
        group = "-" if light.group is None else f"{_group_peak(light.group) / 2**20:.0f} MiB"
        results.say(
            f"{number:11d}  {light.first_inclusion_promise_s:10.1f} s  {light.first_credit_s:10.1f} s  {leases:6d}"
            f"  {status['taken']:5d}  {status['lost']:4d}"
            f"  {status['received_bytes'] / leases / 1e6:7.3f} MB  {status['sent_bytes'] / leases / 1e6:5.3f} MB"
            f"  {light.peak_bytes / 2**20:4.0f} MiB  {group:>12}  {'no' if light.child.returncode is None else 'yes'}",
            first_promise_s=light.first_inclusion_promise_s,
            first_credit_s=light.first_credit_s,
            leases=leases,
            received_bytes=status["received_bytes"],
            sent_bytes=status["sent_bytes"],
            resident_bytes=light.peak_bytes,
        )


def main() -> None:
    """Run it, and fail if a contributor has no credit in the log."""
    parser = results.parser(__doc__)
    parser.add_argument("--lights", type=int, default=1, metavar="N", help="contributors")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds to look on")
    parser.add_argument("--round-s", type=float, default=15.0, metavar="S", help="that a round is open")
    parser.add_argument("--memory-mb", type=int, default=1024, metavar="MIB", help="of each contributor")
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--thin", action="store_true", help="several local steps and sparse contributions, as init writes them")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter of the contributors' environment")
    arguments = parser.parse_args()
    with _running(arguments) as programs:
        url = programs.start_run()
        for number in range(arguments.lights):
            programs.start_light(number, url)
        programs.watch()
        _show(programs)
        keys = [str(light.status["peer"]) for light in programs.lights]
        stop(programs.children)
        try:
            found = verify_directory(programs.directory / "aggregator")
        except MantaError as error:
            raise SystemExit(f"the log does not verify: {error}") from error
        credits = {peer_name(key): credit for key, credit in found.reputation.earned.items() if credit}
        print(f"the log verifies: {found.rounds} rounds; credit of the contributors: {', '.join(str(credits.get(key, 0)) for key in keys)}")
        if not all(credits.get(key, 0) for key in keys):
            raise SystemExit("a contributor has no credit")
    results.write(arguments)


if __name__ == "__main__":
    main()
