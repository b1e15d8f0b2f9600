"""Two sites of four peers behind slow links, Manta's rounds against hivemind's averager: bytes over the links, seconds, time to compute.

Everything runs on one computer, in network namespaces (Linux, root): each site behind a link of so many Mbit/s up and down, the aggregator
at a third place behind none. hivemind averages the same vector over the same links, all eight in one flat group: at H = 1 that is what each
step costs. Manta runs its real programs: with H = 1, dense, and with several local steps, sparse. The microbatches of the small vector are
trained; those of the large one are pauses of ``--microbatch-ms``, for eight of them would drown the processors of one computer.

A site is one computer with four processes: its peers pass each other their vectors through memory, not over a network.
With ``--cohorts
affinity`` or ``token`` nobody has a label, and each peer is of somebody else, on a machine with an id of its own: where affinity decides
those of a site find each other by their local network, where a token does all stay alone.

Run it from the repository, as root: ``.venv/bin/python benchmarks/wan.py --help``.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # before numpy: a process that has threads is not to be forked

import psutil
import results
import torch
import wan_hivemind
import wan_manta
from beginning import codec, ending_when_told
from wan_hivemind import Averaged
from wan_manta import COHORTS, Exchanged, Setting, Vector
from wan_network import Network, failed, why_not

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import fitted_name, space_named
from manta_swarm.automl.training.settings import thin

HOSTS_A_SITE = 4
MICROBATCHES = 4  # a step: a cohort takes whose microbatch fits a third of one
SUPERNETS = {"tiny": "classifier-tiny", "base": "classifier-base"}
DATASET = "digits"
_THIN = thin("classification")
_COLUMNS = (("s a round", 10), ("beside", 9), ("compute %", 11), ("up MB", 9), ("down MB", 9), ("rows", 6), ("claims", 8))
_NOTES = (
    "beside: seconds of a round that are no work; hivemind's are its all-reduce alone, without matchmaking. up, down: of a site's link and",
    "round, with all headers and whatever else the programs say. compute: part of the time that peers trained, the mean of the peers.",
    "Cohort peers pass each other vectors through memory: a site is one computer with four processes.",
)


def vectors(names: Sequence[str], microbatch_s: float) -> list[Vector]:
    """Return the vectors of these names; the weights of the base net are as many as with this data."""
    dataset = load_dataset(DATASET)
    found = []
    for name in names:
        fitted = fitted_name(SUPERNETS[name], dataset.image_channels, dataset.num_classes)
        num_weights = build(space_named(fitted), torch.device("cpu")).num_weights
        found.append(Vector(name, SUPERNETS[name], num_weights, 0.0 if name == "tiny" else microbatch_s))
    return found


def report(averaged: Mapping[tuple[str, float], Averaged], exchanged: Mapping[tuple[str, Setting, float], Exchanged]) -> str:
    """Return the tables: what was measured, and Manta's part of hivemind's."""
    columns = "".join(f"{name:>{width}}" for name, width in _COLUMNS)
    lines = [f"{'vector':8}{'Mbit/s':>7}  {'':24}{columns}"]
    for (name, mbit), one in averaged.items():
        failures = f"   {one.failures} failed" if one.failures else ""
        figures = f"{'':10}{one.seconds:9.2f}{'':11}{one.up_mb:9.3f}{one.down_mb:9.3f}{failures}"
        lines.append(f"{name:8}{mbit:7g}  {'hivemind, flat, fp16':24}{figures}")
    for (name, setting, mbit), each in exchanged.items():
        times = f"{each.seconds:10.2f}{each.beside_s:9.2f}{100 * each.computing:11.1f}"
        sizes = f"{each.up_mb:9.3f}{each.down_mb:9.3f}{each.contributions:6.1f}{each.claims:8.1f}"
        lines.append(f"{name:8}{mbit:7g}  {setting.name:24}{times}{sizes}" + (f"   {each.divergent} DIVERGED" if each.divergent else ""))
    lines += ["", "Manta's part of hivemind's, of a round and of a local step"]
    for (name, setting, mbit), each in exchanged.items():
        its = averaged.get((name, mbit))
        if its is not None and its.rounds:
            lines.append(f"{name:8}{mbit:7g}  {setting.name:24}{_ratios(its, each, setting.local_steps)}")
    return "\n".join([*lines, "", *_NOTES])


def _ratios(its: Averaged, ours: Exchanged, steps: int) -> str:
    size = (its.up_mb + its.down_mb) / (ours.up_mb + ours.down_mb)
    time = its.seconds / ours.beside_s
    return f"bytes 1/{size:.1f}, a step 1/{size * steps:.0f}; seconds that are no work 1/{time:.1f}, a step 1/{time * steps:.1f}"


def measure(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measure it all; return the report, and what goes to a JSON file."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    mbits = sorted(set(arguments.mbit), reverse=True)  # fast links first: rounds grow longer sooner than shorter
    chosen = vectors(arguments.vectors, arguments.microbatch_ms / 1000)
    known = {
        "dense": Setting(1, "int16", arguments.microbatches),
        "sparse": Setting(arguments.local_steps, arguments.codec, arguments.microbatches * arguments.local_steps),
    }
    settings = [replace(known[name], cohorts=cohorts) for cohorts in arguments.cohorts for name in arguments.settings]
    averaged: dict[tuple[str, float], Averaged] = {}
    exchanged: dict[tuple[str, Setting, float], Exchanged] = {}
    with Network(HOSTS_A_SITE) as network:
        if "hivemind" in arguments.sides:
            averaged = wan_hivemind.measure(network, {each.name: each.num_weights for each in chosen}, mbits, arguments.rounds, say)
        for vector in chosen if "manta" in arguments.sides else ():
            for setting in settings:
                found = wan_manta.measure(network, vector, setting, mbits, arguments.rounds, say)
                exchanged |= {(vector.name, setting, mbit): one for mbit, one in found.items()}
                say(report(averaged, exchanged))
    sizes = ", ".join(f"{each.name}: {each.num_weights:,} weights, microbatches {_microbatches(each)}" for each in chosen)
    title = f"2 sites x {HOSTS_A_SITE} peers; {sizes}; {psutil.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    as_json = {
        "vectors": {each.name: each.num_weights for each in chosen},
        "hivemind": wan_hivemind.as_json(averaged),
        "manta": wan_manta.as_json(exchanged),
    }
    return f"{title}\n\n{report(averaged, exchanged)}", as_json


def _microbatches(vector: Vector) -> str:
    return f"of {vector.microbatch_s:g} s" if vector.microbatch_s else "trained"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments."""
    parser = results.parser(__doc__)
    parser.add_argument("--mbit", type=float, nargs="+", default=[4, 10, 50], help="of the links, up and down (default: 4 10 50)")
    parser.add_argument("--vectors", nargs="+", choices=list(SUPERNETS), default=list(SUPERNETS), help="(default: both)")
    parser.add_argument("--rounds", type=int, default=3, help="that count, of each (default: %(default)s)")
    parser.add_argument(
        "--microbatches", type=int, default=2, help="of a peer and round that a run aims at, at least one a step (default: %(default)s)"
    )
    parser.add_argument(
        "--microbatch-ms", type=float, default=1500, help="how long a microbatch of the large vector takes (default: %(default)s)"
    )
    parser.add_argument("--local-steps", type=int, default=_THIN.local_steps, help="H of the sparse setting (default: %(default)s)")
    parser.add_argument("--codec", type=codec, default=_THIN.codec, help="of the sparse setting (default: %(default)s)")
    parser.add_argument("--sides", nargs="+", choices=["hivemind", "manta"], default=["hivemind", "manta"], help="(default: both)")
    names = ["dense", "sparse"]
    parser.add_argument("--settings", nargs="+", choices=names, default=names, help="of Manta: H = 1, and several steps (default: both)")
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=["labels"], help="how sites come to be cohorts (default: labels)")
    arguments = parser.parse_args(words)
    if min(arguments.mbit) <= 0 or min(arguments.rounds, arguments.microbatches, arguments.microbatch_ms, arguments.local_steps) < 1:
        parser.error("speeds above 0, and at least one round, microbatch, millisecond and step")
    return arguments


def main() -> None:
    """Run from the command line."""
    arguments = parse(sys.argv[1:])
    if (reason := why_not()) is not None:
        print(reason, file=sys.stderr)
        raise SystemExit(2)
    try:
        with ending_when_told():
            text, figures = measure(arguments)
    except subprocess.CalledProcessError as error:
        raise SystemExit(failed(error)) from error
    print(text)
    results.keep(**figures)
    results.write(arguments)


if __name__ == "__main__":
    main()
