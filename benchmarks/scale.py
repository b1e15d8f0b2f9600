"""Rounds of 4 to 32 peers on one computer, alone or in cohorts: what of the samples counts, how long a round takes beside the work,
and what it costs.

Every peer and the aggregator is a process of its own with its own libp2p daemon, on loopback: the real programs. Only the microbatches are
not trained, they would drown the processors: each is a pause of ``--microbatch-ms`` that ends in a cheap pseudo-random gradient of the
right length. All peers are there before the first microbatch begins; a few rounds warm up and are not counted. Peers are forked from this
process once it has imported what they need: they start in a moment, and share the half gigabyte that torch takes of each.

Bytes are counted where calls are handed to the node and answers come back, by method, and once more at the libp2p daemon: all that it
read (in from the network, and out from the program), the DHT included, as Linux counts it. What the peers of a cohort pass each other
through memory is in neither.

Run it from the repository: ``.venv/bin/python benchmarks/scale.py --help``.
"""

import argparse
import functools
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # before numpy: a process that has threads is not to be forked

import psutil
import results
from beginning import codec, ending_when_told, scratch
from scale_programs import METHODS, RECEIVED, SENT, Place
from scale_swarm import Moment, Swarm, Usage, run_config

from manta_swarm.aggregator.settings.sections import DataSection, ExchangeSection
from manta_swarm.protocol.exchange import MAX_AGE

REST_S = 20.0  # before the first microbatch: what it costs to be there
LEAST_MICROBATCHES = 4  # a local step: a cohort takes whose microbatch fits a third of one
WARM_UP_ROUNDS = 5  # D settles, and connections are made
TAIL_ROUNDS = MAX_AGE + 1  # after those that are counted: what is late may still come


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
    "claims": Line("  claims in them", "{:.1f}"),
    "round_s": Line("seconds a round", "{:.2f}"),
    "microbatches_s": Line("  of them a peer's microbatches", "{:.2f}"),
    "beside_s": Line("  beside the work", "{:.2f}"),
    "least": Line("  the least of a peer's time in microbatches %", "{:.0f}"),
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
    "broken": Line("inclusion promises not kept", "{:.0f}"),
    "dropped": Line("contributions dropped", "{:.0f}"),
    "refused": Line("refused by the log", "{:.0f}"),
    "busy": Line("CPU of this computer, used %", "{:.0f}"),
    "others": Line("  by others' programs %", "{:.0f}"),
}


def figures(swarm: Swarm, before: Moment, after: Moment, num_rounds: int, memory_bytes: Mapping[str, int]) -> dict[str, float]:
    """Return what a swarm's rounds came to, by the names of ``LINES``."""
    first, last = WARM_UP_ROUNDS + 1, WARM_UP_ROUNDS + num_rounds
    logged = swarm.logged()
    bases = range(first - 1, last)
    trained, busy_s = 0, dict.fromkeys(swarm.peers, 0.0)
    for name in swarm.peers:
        for microbatch in swarm.microbatches(name):
            trained += microbatch.samples if logged.commits.get(microbatch.base) in bases else 0
            busy_s[name] += microbatch.within_s(before.time_s, after.time_s)
    counted = sum(logged.counted[base] for base in bases)
    peers = len(swarm.peers) * num_rounds
    round_s, microbatches_s = (after.time_s - before.time_s) / num_rounds, sum(busy_s.values()) / peers
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
        "claims": statistics.mean(logged.claims[round_] for round_ in range(first, last + 1)),
        "round_s": round_s,
        "microbatches_s": microbatches_s,
        "beside_s": round_s - microbatches_s,
        "least": 100 * min(busy_s.values()) / (after.time_s - before.time_s),
        "open_s": statistics.median(logged.opens_ms[round_] for round_ in range(first, last + 1)) / 1000,
        **{f"{what}_s": statistics.mean(lap.get(what, 0.0) for lap in laps) for what in ("fetch", "train", "hand_in", "wait")},
        "peer_sent": sum(each["sent"] for each in of_peers) / peers / 1e3,
        "peer_received": sum(each["received"] for each in of_peers) / peers / 1e3,
        "peer_daemon": sum(each["daemon"] for each in of_peers) / peers / 1e3,
        "peer_cpu": sum(each["cpu"] for each in of_peers) / peers,
        "peer_daemon_cpu": sum(each["daemon_cpu"] for each in of_peers) / peers,
        "peer_mb": statistics.mean(memory_bytes[name] for name in swarm.peers) / 1e6,
        "log_sent": of_log["sent"] / num_rounds / 1e6,
        "log_received": of_log["received"] / num_rounds / 1e6,
        "log_daemon": of_log["daemon"] / num_rounds / 1e6,
        "log_cpu": of_log["cpu"] / num_rounds,
        "log_daemon_cpu": of_log["daemon_cpu"] / num_rounds,
        "log_mb": memory_bytes["aggregator"] / 1e6,
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


def swarm_of(num_peers: int, arguments: argparse.Namespace, directory: Path) -> Swarm:
    """Return a swarm of ``--cohort-size`` peers to a cohort, neighbours together."""
    token, size = secrets.token_hex(32), arguments.cohort_size
    places = {
        f"peer-{index}": Place(directory / f"peer-{index}", cohort=None if size == 1 else f"cohort-{index // size}", token=token)
        for index in range(num_peers)
    }
    microbatch_s = arguments.microbatch_ms / 1000
    microbatches_s = {name: microbatch_s * arguments.spread ** (index / max(1, num_peers - 1)) for index, name in enumerate(places)}
    config = run_config(
        "scale",
        num_peers,
        WARM_UP_ROUNDS + arguments.rounds + TAIL_ROUNDS,
        microbatches=arguments.microbatches,
        microbatch_s=microbatch_s,
        supernet=arguments.supernet,
        local_steps=arguments.local_steps,
        codec=arguments.codec,
    )
    return Swarm(directory, config, places, microbatches_s, Place(directory / "aggregator"))


def run(swarm: Swarm, num_rounds: int, say: Callable[[str], None]) -> tuple[dict[str, int], tuple[Moment, ...]]:
    """Run a swarm from the start to the end of its run.

    Returns each program's memory after the rounds that count, and the moments between which it rests, then those between which
    rounds count.
    """
    with swarm:
        swarm.start(say)
        resting = swarm.moment()
        swarm.until(lambda: time.monotonic() > resting.time_s + REST_S, "some rest")
        rested = swarm.moment()
        swarm.gate.touch()
        swarm.rounds(lambda line: None, 1, WARM_UP_ROUNDS)
        before = swarm.moment()
        swarm.rounds(say, WARM_UP_ROUNDS + 1, WARM_UP_ROUNDS + num_rounds)
        after = swarm.moment()
        memory_bytes = swarm.memory_bytes()
        swarm.end()
        return memory_bytes, (resting, rested, before, after)


def _say_of(say: Callable[[str], None], num_peers: int, line: str) -> None:
    say(f"{num_peers} peers: {line}")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    found: dict[int, dict[str, float]] = {}
    for num_peers in arguments.peers:
        with scratch("scale-", arguments.keep) as directory:
            os.environ["MANTA_STATE_DIR"] = str(directory / "state")
            swarm = swarm_of(num_peers, arguments, directory)
            memory_bytes, moments = run(swarm, arguments.rounds, functools.partial(_say_of, say, num_peers))
            resting, rested, before, after = moments
            found[num_peers] = figures(swarm, before, after, arguments.rounds, memory_bytes) | at_rest(swarm, resting, rested)
            say(f"{num_peers} peers; load {os.getloadavg()[0]:.1f}\n{by_method(swarm, before, after, arguments.rounds)}")
            say(report({num_peers: found[num_peers]}))
    slowest = f"(the slowest peer's {arguments.spread:g} times that)"
    microbatches = f"microbatches of {arguments.microbatch_ms} ms {slowest}, about {arguments.microbatches} a peer and round"
    exchange = f"cohorts of {arguments.cohort_size}, {arguments.local_steps} local steps, {arguments.codec}"
    print(f"{arguments.supernet}, {microbatches}; {exchange}; {psutil.cpu_count()} cores\n")
    print(report(found))
    for num_peers, of_swarm in found.items():
        results.keep(peers=num_peers, **of_swarm)
    results.write(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("a number from 1 on")
    return value


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = results.parser(__doc__)
    parser.add_argument(
        "--peers", type=_positive, nargs="+", default=[4, 8, 16, 32], help="swarms, one after the other (default: 4 8 16 32)"
    )
    parser.add_argument("--rounds", type=_positive, default=20, help="rounds that count (default: %(default)s)")
    parser.add_argument("--microbatch-ms", type=_positive, default=500, help="how long a microbatch takes (default: %(default)s)")
    parser.add_argument(
        "--microbatches", type=_positive, default=8, help="microbatches of a peer and round that the run aims at (default: %(default)s)"
    )
    parser.add_argument(
        "--spread", type=float, default=1.0, help="how many times longer the slowest peer's microbatches take (default: %(default)s)"
    )
    parser.add_argument("--cohort-size", type=_positive, default=1, help="peers that average before they hand in (default: %(default)s)")
    parser.add_argument("--local-steps", type=_positive, default=1, help="steps of a cohort between two exchanges (default: %(default)s)")
    parser.add_argument("--codec", type=codec, default=ExchangeSection().codec, help="of contributions (default: %(default)s)")
    parser.add_argument("--supernet", default=DataSection().supernet, help="whose weights are exchanged (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the programs' files and logs")
    arguments = parser.parse_args(words)
    least = LEAST_MICROBATCHES if arguments.cohort_size > 1 else 1
    if arguments.microbatches < least * arguments.local_steps:
        parser.error(f"--microbatches: at least {least} a local step")
    return arguments


def main() -> None:
    arguments = parse(sys.argv[1:])
    with ending_when_told():
        measure(arguments, lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    main()
