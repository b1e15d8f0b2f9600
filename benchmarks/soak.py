"""A soak: a swarm in cohorts, and every few seconds a death or a join; what was promised has to hold all the time, and nothing may leak.

An aggregator and ``--peers`` of the volunteers' programs on this computer. A death is SIGKILL, SIGTERM (it hands in what it has, and
leaves), or SIGSTOP for 2 to 20 seconds; a join is a new peer, or one that was there before, with its key. Microbatches are pauses of
``--microbatch-ms`` that end in noise. One line a minute; at the end a table, and exit code 1 if a promise was broken:

- no divergence: whatever state a program said that it holds, it is the log's of that round;
- the log holds when it is verified from scratch, and the whole run replays to the same states;
- of the rounds, ``--on-time`` percent are on time: committed within the time that they were open, the grace for bodies, and a second,
  from one commit to the next as they are seen in the aggregator's status, ten times a second;
- no peer that was not struck ends, none has a promise of the log broken to it, and who is told to leave leaves;
- no leak: memory, processes, threads, sockets and open files of the aggregator, and of two peers that are never struck, from the second
  quarter of the time to the last; no process and no temporary file is left when all have ended.

Run it from the repository: ``.venv/bin/python benchmarks/soak.py --help``.
"""

import argparse
import contextlib
import os
import re
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # before numpy: a process that has threads is not to be forked

import beginning
import psutil
import results
from beginning import codec, ending_when_told
from scale_programs import Place
from scale_swarm import Logged, Swarm, run_config
from soak_swarm import Sample, Seen, StruckSwarm, Use

from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.automl.training.settings import thin
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.exchange import grace_ms

POLL_S, SAMPLE_S, LINE_S = 0.1, 10.0, 60.0
SETTLE_ROUNDS = 3  # before the first strike
END_S = 120.0  # for those who are in at the end to hold a newest state
SLACK_S = 1.0  # of a round that is on time
ENDLESS = 100_000  # rounds
MICROBATCHES = 4  # a step: a cohort takes whose microbatch fits a third of one
SHM = Path("/dev/shm")
_THIN = thin("classification")

# What a program may use more in the last quarter of the time than in the second: a part of it, and so much beside.
GROWTH = {"memory_bytes": (0.15, 30e6), "processes": (0.0, 0), "threads": (0.1, 4), "files": (0.15, 10), "sockets": (0.15, 10)}


@dataclass(frozen=True, slots=True)
class Lateness:
    """The rounds by the clock."""

    rounds: int
    on_time: int
    worst_s: float  # after what it should have been

    @property
    def percent(self) -> float:
        """Of the rounds that were on time."""
        return 100 * self.on_time / max(1, self.rounds)


def lateness(commits_s: Mapping[int, float], opens_ms: Mapping[int, int]) -> Lateness:
    """Return how many rounds were on time. A commit that was not seen before the next one is counted with that one.

    Args:
        commits_s: by round, when it was seen to be committed.
        opens_ms: by round, how long it was open.
    """
    late_s, waiting, allowed_s, before_s = [], 0, 0.0, None
    for round_ in range(min(commits_s), max(commits_s) + 1):
        open_ms = opens_ms.get(round_)
        if before_s is not None and open_ms is not None:
            allowed_s += (open_ms + grace_ms(open_ms)) / 1000
            waiting += 1
        if (seen_s := commits_s.get(round_)) is None:
            continue
        if waiting and before_s is not None:
            late_s += [seen_s - before_s - allowed_s] * waiting
        waiting, allowed_s, before_s = 0, 0.0, seen_s
    return Lateness(len(late_s), sum(late <= SLACK_S for late in late_s), max(late_s, default=0.0))


def grown(samples: Sequence[Sample]) -> tuple[dict[str, dict[str, tuple[float, float]]], list[str]]:
    """Return what each program used in the second and in the last quarter, medians, by its name and by what; and what leaked."""
    quarter = len(samples) // 4
    found: dict[str, dict[str, tuple[float, float]]] = {}
    leaks = []
    for name in samples[0].uses:
        for each in fields(Use):
            second, last = (
                float(statistics.median(getattr(sample.uses[name], each.name) for sample in part))
                for part in (samples[quarter : 2 * quarter] or samples, samples[-quarter:] or samples)
            )
            found.setdefault(name, {})[each.name] = second, last
            part_more, more = GROWTH[each.name]
            if last > second * (1 + part_more) + more:
                leaks.append(f"{name}: {each.name} from {second:.0f} to {last:.0f}")
    return found, leaks


def soak(arguments: argparse.Namespace, directory: Path, say: Callable[[str], None]) -> tuple[str, dict[str, Any], list[str]]:
    """Run it; return the report, what goes to a JSON file, and which promises were broken."""
    swarm, cohorts, tokens = swarm_of(arguments, directory)
    with swarm:
        swarm.start(lambda line: None)
        swarm.gate.touch()
        swarm.rounds(lambda line: None, 1, SETTLE_ROUNDS)
        struck = StruckSwarm(swarm, arguments.peers, cohorts, tokens, arguments.microbatch_ms / 1000, arguments.seed)
        started_s = time.monotonic()
        keep_on(struck, arguments, say)
        broken = settle(struck, swarm)
        own = psutil.Process().children(recursive=True)
        lost = {name: swarm.peer(name) for name in struck.spared}
        promises = {name: status.promises_broken for name, status in struck.statuses().items() if status.promises_broken}
    logged, more = checked(swarm, struck.seen)
    broken += [*more, *struck.seen.failures, *(f"{name}: {count} inclusion promises not kept" for name, count in promises.items())]
    late = lateness(struck.seen.commits_s, logged.opens_ms)
    if late.percent < arguments.on_time:
        broken.append(f"{late.percent:.1f} % of the rounds are on time")
    uses, leaks = grown(struck.seen.samples)
    left = [str(each.pid) for each in own if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    files = sorted(str(path) for path in (directory / "tmp").rglob("*"))
    files += shared_files(swarm.pids)
    broken += leaks + [f"left: process {pid}" for pid in left] + [f"left: {file}" for file in files]
    figures = {
        "minutes": (time.monotonic() - started_s) / 60,
        "events": dict(struck.seen.events),
        "rounds": asdict(late) | {"percent": late.percent},
        "contributions": statistics.mean(logged.rows.values()),
        "claims": statistics.mean(logged.claims.values()),
        "spared": {name: {"counted": status.samples_counted, "lost": status.samples_lost} for name, status in lost.items()},
        "uses": uses,
        "samples": [asdict(sample) for sample in struck.seen.samples],
        "broken": broken,
    }
    return report(figures, arguments), figures, broken


def shared_files(pids: Container[int]) -> list[str]:
    """Return the files in shared memory that these processes left; torch names them by the process."""
    paths = sorted(SHM.iterdir()) if SHM.is_dir() else []
    found = ((path, re.match(r"torch_(\d+)_", path.name)) for path in paths)
    return [str(path) for path, name in found if (name is not None and int(name[1]) in pids) or path.name.startswith("manta")]


def swarm_of(arguments: argparse.Namespace, directory: Path) -> tuple[Swarm, dict[str, str], dict[str, str]]:
    """Return a swarm that has not started, the cohort of each of its peers, and the token of each cohort."""
    num_cohorts = -(-arguments.peers // arguments.cohort_size)
    cohorts = {f"peer-{index}": f"cohort-{index * num_cohorts // arguments.peers}" for index in range(arguments.peers)}
    tokens = {cohort: secrets.token_hex(32) for cohort in sorted(set(cohorts.values()))}
    places = {name: Place(directory / name, cohort=cohort, token=tokens[cohort]) for name, cohort in cohorts.items()}
    config = run_config(
        "soak",
        arguments.peers,
        ENDLESS,
        microbatches=arguments.microbatches * arguments.local_steps,
        microbatch_s=arguments.microbatch_ms / 1000,
        supernet="classifier-tiny",
        local_steps=arguments.local_steps,
        codec=arguments.codec,
    )
    own = config.aggregator.model_copy(update={"keep_bodies": ENDLESS})  # all of it is to be replayed
    config = config.model_copy(update={"aggregator": own})
    microbatches_s = dict.fromkeys(places, arguments.microbatch_ms / 1000)
    return Swarm(directory, config, places, microbatches_s, Place(directory / "aggregator")), cohorts, tokens


def keep_on(struck: StruckSwarm, arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Strike and look until the time is over."""
    start_s = time.monotonic()
    end_s, strike_s, sample_s, line_s = start_s + 60 * arguments.minutes, start_s, start_s, start_s + LINE_S
    while (now_s := time.monotonic()) < end_s:
        struck.look()
        if now_s >= strike_s:
            what = struck.strike()
            strike_s += arguments.every_s
            if arguments.verbose:
                say(f"{now_s - start_s:6.1f} s  {what}")
        if now_s >= sample_s:
            struck.sample()
            sample_s += SAMPLE_S
        if now_s >= line_s:
            say(line_of(struck, now_s - start_s))
            line_s += LINE_S
        time.sleep(POLL_S)


def line_of(struck: StruckSwarm, since_s: float) -> str:
    """Return where it stands, in one line."""
    sample = struck.seen.samples[-1]
    events = " ".join(f"{what} {count}" for what, count in sorted(struck.seen.events.items()))
    uses = "; ".join(f"{name} {use.memory_bytes / 1e6:.0f} MB {use.files} files" for name, use in sample.uses.items())
    failures = f"; {len(struck.seen.failures)} FAILED" if struck.seen.failures else ""
    return f"{since_s / 60:4.0f} min  round {sample.round}, {sample.alive} peers; {events}; {uses}{failures}"


def settle(struck: StruckSwarm, swarm: Swarm) -> list[str]:
    """Let all go on; return who does not hold a state of now within a while."""
    struck.calm()
    target, end_s = swarm.round + SETTLE_ROUNDS, time.monotonic() + END_S
    behind: list[str] = []
    while time.monotonic() < end_s:
        struck.look()
        behind = [name for name, status in struck.statuses().items() if status.round < target]
        if not behind:
            break
        time.sleep(POLL_S)
    return [f"{name} does not hold a state of round {target} or later" for name in behind]


def checked(swarm: Swarm, seen: Seen) -> tuple[Logged, list[str]]:
    """Check the log from scratch, replay the run, and compare whatever states were seen; return the log's and what is wrong."""
    wrong = []
    logged = swarm.logged()
    try:
        replayed = replay_directory(swarm.directory / "aggregator")
        if (replayed.first, replayed.rounds) != (0, len(logged.rows)):
            wrong.append(f"replayed are {replayed.rounds} rounds from {replayed.first} on, not {len(logged.rows)}")
    except MantaError as error:
        wrong.append(f"the run does not replay: {error}")
    states = {name: (round_, state) for name, round_, state in sorted(seen.states) if round_ and logged.states.get(round_, state) != state}
    wrong += [f"{name} held another state of round {round_}: {state[:12]}" for name, (round_, state) in states.items()]
    return logged, wrong


def report(figures: Mapping[str, Any], arguments: argparse.Namespace) -> str:
    """Return the table."""
    rounds = figures["rounds"]
    exchange = f"{arguments.local_steps} local steps, {arguments.codec}, microbatches of {arguments.microbatch_ms} ms"
    lines = [
        f"{arguments.peers} peers in cohorts of up to {arguments.cohort_size}, {figures['minutes']:.1f} minutes, "
        f"something every {arguments.every_s:g} s; {exchange}; {psutil.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "",
        f"{'rounds':24}{rounds['rounds']:10}",
        f"{'  on time %':24}{rounds['percent']:10.1f}",
        f"{'  latest, s after':24}{rounds['worst_s']:10.1f}",
        f"{'contributions a round':24}{figures['contributions']:10.1f}",
        f"{'  claims in them':24}{figures['claims']:10.1f}",
        *(f"{what:24}{count:10}" for what, count in sorted(figures["events"].items())),
        "",
        f"{'from the second quarter to the last':36}{'MB':>16}{'processes':>12}{'threads':>12}{'files':>14}{'sockets':>14}",
    ]
    for name, use in figures["uses"].items():
        memory = f"{use['memory_bytes'][0] / 1e6:.0f} -> {use['memory_bytes'][1] / 1e6:.0f}"
        others = (f"{use[what][0]:.0f} -> {use[what][1]:.0f}" for what in ("processes", "threads", "files", "sockets"))
        widths = (12, 12, 14, 14)
        lines.append(f"{name:36}{memory:>16}" + "".join(f"{text:>{width}}" for text, width in zip(others, widths, strict=True)))
    lines.append("")
    for name, each in figures["spared"].items():
        lines.append(f"{name}, never struck: {each['counted']} samples counted, {each['lost']} lost")
    lines += ["", *(f"BROKEN: {what}" for what in figures["broken"])] if figures["broken"] else ["", "every promise was kept"]
    return "\n".join(lines)


@contextlib.contextmanager
def scratch(keep: bool) -> Iterator[Path]:
    """Make a directory for the swarm, with its temporary files in it."""
    with beginning.scratch("soak-", keep) as directory:
        (directory / "tmp").mkdir()
        os.environ |= {"TMPDIR": str(directory / "tmp"), "MANTA_STATE_DIR": str(directory / "state")}
        tempfile.tempdir = None  # it is looked up again
        yield directory


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments."""
    parser = results.parser(__doc__)
    parser.add_argument("--peers", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--cohort-size", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15, help="(default: %(default)s)")
    parser.add_argument("--every-s", type=float, default=5, help="seconds from one strike to the next (default: %(default)s)")
    parser.add_argument("--on-time", type=float, default=95, help="percent of the rounds that have to be (default: %(default)s)")
    parser.add_argument(
        "--microbatches", type=int, default=MICROBATCHES, help="of a peer and local step that the run aims at (default: %(default)s)"
    )
    parser.add_argument("--microbatch-ms", type=int, default=100, help="how long a microbatch takes (default: %(default)s)")
    parser.add_argument("--local-steps", type=int, default=_THIN.local_steps, help="(default: %(default)s)")
    parser.add_argument("--codec", type=codec, default=_THIN.codec, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what happens (default: %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="a line for whatever happens")
    parser.add_argument("--keep", action="store_true", help="keep the programs' files and logs")
    arguments = parser.parse_args(words)
    if (
        min(arguments.peers, arguments.cohort_size, arguments.microbatches, arguments.microbatch_ms, arguments.local_steps) < 1
        or arguments.minutes <= 0
    ):
        parser.error("at least one of each")
    if arguments.peers < 2 * arguments.cohort_size:
        parser.error("--peers: two cohorts at least")
    return arguments


def main() -> None:
    """Run from the command line."""
    arguments = parse(sys.argv[1:])
    with ending_when_told(), scratch(arguments.keep) as directory:
        text, figures, broken = soak(arguments, directory, lambda line: print(line, file=sys.stderr, flush=True))
    print(text)
    results.keep(**figures)
    results.write(arguments)
    if broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
