"""What a run suffers by strangers: each attack of ``tests/faults/strangers`` for some minutes, beside three honest peers.

For each attack an aggregator and three of the volunteers' programs are started on this computer (their microbatches are pauses of
``--microbatch-ms`` that end in noise), left alone for ``--quiet-minutes``, then attacked for ``--minutes`` by a program with free keys. A
line for each of the two times says

- the memory that the attacked program and its daemon share with nobody, and their open files: the most that was seen;
- how long its event loop stood still at most, and how often a minute it did for 50 ms or more;
- the rounds, how many of them were on time (``soak.py`` says what that is), and the latest;
- of the honest peers' samples: how many counted, how many of them in a later round, and how many were lost.

``silent_http`` attacks a peer with a gateway, beside which a light contributor works. Everything is on loopback.

Run it from the repository: ``.venv/bin/python benchmarks/strangers.py --help``.
"""

import argparse
import contextlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # before numpy: a process that has threads is not to be forked

import results
from beginning import ending_when_told, scratch
from scale_programs import Place
from scale_swarm import Swarm, run_config
from soak import lateness
from soak_swarm import Use, use_of

from manta_swarm.runtime.child import AT_ONCE, Child, Program, stop
from tests.faults import strangers

PEERS = ("peer-0", "peer-1", "peer-2")
GATEWAY_PEER, GATEWAY_ATTACK = "peer-0", "silent_http"
SETTLE_ROUNDS = 3
START_S, POLL_S, SAMPLE_S = 240.0, 0.05, 2.0
ENDLESS = 100_000  # rounds


@dataclass
class Span:
    """What was seen in one time, quiet or attacked."""

    begin_s: float
    end_s: float = 0.0
    commits_s: dict[int, float] = field(default_factory=dict)  # by round, when it was seen to be committed
    uses: list[Use] = field(default_factory=list)  # of the attacked program

    def watch(self, swarm: Swarm, attacked: str, seconds: float, check: Callable[[], None]) -> None:
        """Look on for so many seconds."""
        next_sample_s, until_s = self.begin_s, self.begin_s + seconds
        while (now_s := time.monotonic()) < until_s:
            self.commits_s.setdefault(swarm.round, now_s)
            if now_s >= next_sample_s:
                self.uses.append(use_of(swarm.process(attacked)))
                next_sample_s = now_s + SAMPLE_S
                for name in ("aggregator", *PEERS):
                    if (code := swarm.returncode(name)) is not None:
                        raise SystemExit(f"{name} ended with exit code {code}\n{swarm.last_lines(name)}")
                check()
            time.sleep(POLL_S)
        self.end_s = time.monotonic()


def attacks() -> list[str]:
    """Return the names of all attacks."""
    modules = [each.name for each in pkgutil.iter_modules(strangers.__path__) if each.name != "__main__"]
    return [name for name in modules if "async def attack(" in Path(strangers.__path__[0], f"{name}.py").read_text()]


def swarm_of(arguments: argparse.Namespace, directory: Path, attack: str) -> Swarm:
    """Return a swarm that has not started."""
    places = {
        name: Place(directory / name, gateway=("127.0.0.1:0",) if attack == GATEWAY_ATTACK and name == GATEWAY_PEER else ())
        for name in PEERS
    }
    microbatch_s = arguments.microbatch_ms / 1000
    config = run_config(
        "strangers",
        len(PEERS),
        ENDLESS,
        microbatches=arguments.microbatches,
        microbatch_s=microbatch_s,
        supernet="classifier-tiny",
        local_steps=1,
        codec=arguments.codec,
    )
    return Swarm(directory, config, places, dict.fromkeys(PEERS, microbatch_s), Place(directory / "aggregator"))


@contextlib.contextmanager
def programs() -> Iterator[list[Child]]:
    """Give a list for programs beside the swarm; end what is in it."""
    children: list[Child] = []
    try:
        yield children
    finally:
        stop(children, hurry=AT_ONCE)


def suffer(arguments: argparse.Namespace, directory: Path, attack: str, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Run one swarm, quiet and then attacked; return the figures of both times."""
    attacked = GATEWAY_PEER if attack == GATEWAY_ATTACK else "aggregator"
    with swarm_of(arguments, directory, attack) as swarm, programs() as beside:
        swarm.start(lambda line: None)
        swarm.gate.touch()
        status = swarm.aggregator()
        assert status is not None
        words = [attack, status.addresses[0], status.run]
        if attack == GATEWAY_ATTACK:
            url = _gateway_url(swarm)
            beside.append(
                _start(
                    "light",
                    ["-P", "-m", "manta_swarm.peer.cli", "join", "--light", "--gateway", url, "--dir", f"{directory}/light"],
                    directory,
                )
            )
            words.append(url.removeprefix("http://").partition("/")[0])
            swarm.until(lambda: bool(_light_status(directory).get("taken")), "the light contributor works", deadline_s=START_S)
        swarm.rounds(lambda line: None, 1, SETTLE_ROUNDS)
        say(f"{attack}: quiet")
        spans = {"quiet": Span(time.monotonic())}
        spans["quiet"].watch(swarm, attacked, 60 * arguments.quiet_minutes, lambda: _check(beside))
        stranger = _start("stranger", ["-m", "tests.faults.strangers", *words], directory)
        beside.append(stranger)
        said = directory / "stranger.log"
        swarm.until(lambda: "attacks" in said.read_text() or stranger.returncode is not None, "the attack", deadline_s=START_S)
        say(f"{attack}: attacks")
        spans["attacked"] = Span(time.monotonic())
        spans["attacked"].watch(swarm, attacked, 60 * arguments.minutes, lambda: _check(beside))
        peers = {name: swarm.peer(name) for name in PEERS}
        light = _light_status(directory)
        logged = swarm.logged()
    found = {}
    for what, span in spans.items():
        late = lateness(span.commits_s, logged.opens_ms)
        rounds = range(min(span.commits_s), max(span.commits_s))
        stalls_s = _stalls_s(directory / attacked / "stalls", span)
        found[what] = {
            "memory_mb": max(use.memory_bytes for use in span.uses) / 1e6,
            "files": max(use.files for use in span.uses),
            "longest_stall_s": max(stalls_s, default=0.0),
            "stalls_a_minute": 60 * len(stalls_s) / (span.end_s - span.begin_s),
            "rounds": late.rounds,
            "on_time_percent": late.percent,
            "latest_s": late.worst_s,
            "samples": sum(logged.counted[round_] for round_ in rounds),
            "samples_in_a_later_round": sum(logged.late[round_] for round_ in rounds),
            "uses": [asdict(use) for use in span.uses],
        }
    found["attacked"]["samples_lost"] = sum(peer.samples_lost for peer in peers.values())
    found["attacked"]["light"] = light
    return found


def _check(beside: Sequence[Child]) -> None:
    for child in beside:
        if child.returncode is not None:
            raise SystemExit(f"{child.name} ended with exit code {child.returncode}\n{child.last_lines()}")


def _start(name: str, words: Sequence[str], directory: Path) -> Child:
    environment = {"PYTHONPATH": sys.path[0], "MANTA_CPU_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return Child.start(Program(name, [sys.executable, *words], directory / f"{name}.log", environment))


def _gateway_url(swarm: Swarm) -> str:
    log_path = swarm.directory / f"{GATEWAY_PEER}.log"
    swarm.until(lambda: "--gateway http" in log_path.read_text(), "the gateway listens", deadline_s=START_S)
    return log_path.read_text().rpartition("--gateway ")[2].split()[0]


def _light_status(directory: Path) -> dict[str, Any]:
    path = directory / "light" / "status.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _stalls_s(path: Path, span: Span) -> list[float]:
    stalls = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
    return [stall_s for at_s, stall_s in stalls if span.begin_s <= at_s < span.end_s]


COLUMNS = ("memory MB", "files", "stall s", "stalls/min", "rounds", "on time %", "latest s", "samples", "late", "lost")


def report(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the table, two lines for each attack."""
    lines = [f"{'':30}" + "".join(f"{column:>11}" for column in COLUMNS)]
    for attack, spans in found.items():
        for what, figures in spans.items():
            values = (
                f"{figures['memory_mb']:.0f}",
                figures["files"],
                f"{figures['longest_stall_s']:.2f}",
                f"{figures['stalls_a_minute']:.1f}",
                figures["rounds"],
                f"{figures['on_time_percent']:.1f}",
                f"{figures['latest_s']:.1f}",
                figures["samples"],
                figures["samples_in_a_later_round"],
                figures.get("samples_lost", ""),
            )
            lines.append(f"{attack + ', ' + what:30}" + "".join(f"{value:>11}" for value in values))
        light = spans["attacked"]["light"]
        if light:
            lines.append(f"  its light contributor: {light.get('samples_counted')} samples counted, {light.get('lost')} leases lost")
    return "\n".join(lines)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments."""
    parser = results.parser(__doc__)
    parser.add_argument("--attacks", nargs="+", choices=attacks(), default=attacks(), help="(default: all)")
    parser.add_argument("--minutes", type=float, default=5, help="of each attack (default: %(default)s)")
    parser.add_argument("--quiet-minutes", type=float, default=1, help="before each (default: %(default)s)")
    parser.add_argument("--microbatches", type=int, default=4, help="of a peer and round that the run aims at (default: %(default)s)")
    parser.add_argument("--microbatch-ms", type=int, default=400, help="how long a microbatch takes (default: %(default)s)")
    parser.add_argument("--codec", default="int16", help="of contributions (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the programs' files and logs")
    return parser.parse_args(words)


def main() -> None:
    """Run from the command line."""
    arguments = parse(sys.argv[1:])
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with ending_when_told():
        for attack in arguments.attacks:
            with scratch("strangers-", arguments.keep) as directory:
                os.environ["MANTA_STATE_DIR"] = str(directory / "state")
                found[attack] = suffer(arguments, directory, attack, lambda line: print(line, file=sys.stderr, flush=True))
            print(report({attack: found[attack]}), file=sys.stderr)
    load = os.getloadavg()[0]
    print(
        f"{len(PEERS)} honest peers, microbatches of {arguments.microbatch_ms} ms, {arguments.codec}; "
        f"{os.cpu_count()} cores, load {load:.1f}"
    )
    print(report(found))
    for attack, spans in found.items():
        results.keep(attack=attack, spans=spans)
    results.write(arguments)


if __name__ == "__main__":
    main()
