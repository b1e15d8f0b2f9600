"""Whether a swarm is slowed by who looks on: the same swarm without a monitor and with one, in turn, its start left out.

    .venv/bin/python benchmarks/monitor_beside.py [--rounds 80] [--from-round 5] [--repeats 3] [--clients 500] [--share 0.1]
        [--ways none,page,whole,clients]
    .venv/bin/python benchmarks/monitor_beside.py --one-core

Ways: ``none`` is ``--no-monitor``; ``page`` a monitor that evaluates nothing (``evaluate_share = 0``); ``whole`` one that also evaluates
subnets (``--share`` of a core, as much as ``manta-swarm up`` takes); ``clients`` the whole one with that many clients on its event stream
from the first round to the last. Two peers, each alone, on digits. Printed of each run: the seconds from the commit of ``--from-round`` to
the last one, the samples a second that counted in them, and how much of a core the monitor's two processes took meanwhile, and all else:
what others do on a computer that is not quiet is in the figures. In the end the medians.

``--one-core`` starts no swarm: two busy loops share a core for five seconds, each in a session of its own, as a peer and the evaluator do;
the second one of niceness 19, first the process alone, then by ``runtime.tether.lower``. Printed are the seconds that each had.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from monitor import Page  # before what is Manta's: it says where that is
from rich.console import Console

from manta_swarm.aggregator.local.settings import Options, make_settings
from manta_swarm.aggregator.local.swarm import LocalSwarm
from manta_swarm.aggregator.log.storage import read_manifest
from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.aggregator.monitor.opened import opened
from manta_swarm.protocol.records import Round
from manta_swarm.runtime import tether

WAYS = ("none", "page", "whole", "clients")
POLL_S = 0.05
LOOP = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.stdin.read()
end, began = time.monotonic() + 5, time.process_time()
while time.monotonic() < end:
    pass
print(round(time.process_time() - began, 2))
"""
PARTS = ("monitor", "evaluator", "the rest of the swarm", "all else on this computer")
_MODULES = ("manta_swarm.aggregator.monitor.program", "manta_swarm.aggregator.monitor.evaluator")


@dataclass
class Seen:
    """What was seen of a swarm while it ran."""

    began_s: float = 0.0
    ended_s: float = 0.0
    first: int = 0  # the round at whose commit it began
    last: int = 0
    cpu_s: tuple[float, ...] = ()  # of each of PARTS, from the first commit to the last
    events: tuple[int, int] = (0, 0)  # the least and the most that a client had


class Watch:
    """Looks at a swarm from a thread of its own, since the swarm's children are those of the main thread."""

    def __init__(self, directory: Path, first: int, last: int, clients: int) -> None:
        """Look from the commit of one round to that of another."""
        self.seen = Seen()
        self._status = directory / "aggregator" / "status.json"
        self._first, self._last, self._clients = first, last, clients
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as this lasts."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    async def _watch(self) -> None:
        counts: dict[int, int] = {}
        listening: list[asyncio.Task[None]] = []
        began: tuple[float, ...] = ()
        while not self._stop.is_set():
            round_, url = self._read()
            if self._clients and url and not listening:
                host, port = url.split("/")[2].rsplit(":", 1)
                page = Page(host, int(port))
                listening = [asyncio.create_task(page.listen(counts, number)) for number in range(self._clients)]
            now_s = time.monotonic()
            if round_ >= self._first and not self.seen.began_s:
                self.seen.began_s, self.seen.first, began = now_s, round_, _cpu()
            if round_ >= self._last and not self.seen.ended_s:
                self.seen.ended_s, self.seen.last = now_s, round_
                self.seen.cpu_s = tuple(after - before for after, before in zip(_cpu(), began, strict=True))
            await asyncio.sleep(POLL_S)
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        self.seen.events = min(counts.values(), default=0), max(counts.values(), default=0)

    def _read(self) -> tuple[int, str | None]:
        with contextlib.suppress(OSError, ValueError):  # it is not there yet
            status = json.loads(self._status.read_text())
            return status["round"], status["monitor"]
        return 0, None


def _cpu() -> tuple[float, ...]:
    """Return the seconds of CPU that each of PARTS took so far."""
    of_modules, of_all = dict.fromkeys(_MODULES, 0.0), 0.0
    myself = psutil.Process()
    for process in (myself, *myself.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            line, times = process.cmdline(), process.cpu_times()
            of_all += times.user + times.system
            for module in _MODULES:
                if module in line:
                    of_modules[module] += times.user + times.system
    computer = psutil.cpu_times()
    busy = sum(computer) - computer.idle - getattr(computer, "iowait", 0.0) - getattr(computer, "guest", 0.0)
    return (*of_modules.values(), of_all - sum(of_modules.values()), busy - of_all)


def counted(directory: Path, size: int, first: int, last: int) -> int:
    """Return the samples that a log of ``size`` entries counts in the rounds after ``first`` up to ``last``."""
    found, microbatches = 0, 0
    for one in map(opened, StoredLog(directory / "aggregator").entries(0, size)):
        microbatches += sum(claim.microbatches for claim in one.claims)
        if isinstance(one.said, Round):
            found, microbatches = found + microbatches * (first < one.said.round <= last), 0
    return found * read_manifest(directory / "aggregator").open().microbatch_samples


def run(way: str, directory: Path, arguments: argparse.Namespace) -> tuple[float, float]:
    """Run a swarm one way, print how it went, and return its seconds and samples a second."""
    asked = {"no_monitor": True} if way == "none" else {"monitor": "127.0.0.1:0"}
    settings = make_settings(Options(peers=2, cohorts=2, rounds=arguments.rounds, directory=directory, **asked))  # type: ignore[arg-type]
    share = 0.0 if way == "page" else arguments.share
    of_monitor = settings.run.monitor.model_copy(update={"evaluate_share": share})
    settings = replace(settings, run=settings.run.model_copy(update={"monitor": of_monitor}))
    watch = Watch(directory, arguments.from_round, arguments.rounds, arguments.clients if way == "clients" else 0)
    told: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    with directory.with_suffix(".txt").open("w") as file, watch.watching():
        report = LocalSwarm(settings, Console(file=file), told).run()
    seen = watch.seen
    lasted_s = seen.ended_s - seen.began_s
    rate = counted(directory, report.ledger.size, seen.first, seen.last) / lasted_s
    shares = ", ".join(f"{name} {cpu_s / lasted_s:.1%}" for name, cpu_s in zip(PARTS, seen.cpu_s, strict=True))
    events = f"; events a client {seen.events[0]} to {seen.events[1]}" if way == "clients" else ""
    print(
        f"{way}: rounds {seen.first} to {seen.last} in {lasted_s:.1f} s, {rate:.0f} samples/s; of a core: {shares}; "
        f"passed {report.succeeded}, log verified {report.ledger.verified}{events}",
        flush=True,
    )
    return lasted_s, rate


def one_core() -> None:
    """Print what is left for a loop of niceness 19 beside one of niceness 0, by how it was made nice."""
    tethered = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), "19", ""]
    for name, nice in (("the process", ["nice", "-n", "19"]), ("manta_swarm.runtime.tether", tethered)):
        loops = [
            subprocess.Popen(
                [*start, sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            for start in ([], nice)
        ]
        for loop in loops:
            assert loop.stdin is not None
            loop.stdin.close()  # begin
        print(f"niceness of {name}:", *(f"{loop.stdout.read().strip()} s" for loop in loops if loop.stdout is not None))
        for loop in loops:
            loop.wait()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--from-round", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--share", type=float, default=0.1, help="of a core, to evaluate")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--one-core", action="store_true", help="two busy loops instead of swarms")
    arguments = parser.parse_args()
    if arguments.one_core:
        return one_core()
    ways = arguments.ways.split(",")
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(arguments.repeats):
            for way in ways if turn % 2 == 0 else reversed(ways):
                found[way].append(run(way, Path(folder) / f"{turn}-{way}", arguments))
    print("| | s | samples a second |\n|---|---|---|")
    for way, runs in found.items():
        seconds, rates = (statistics.median(one) for one in zip(*runs, strict=True))
        print(f"| {way} | {seconds:.1f} | {rates:.0f} |")


if __name__ == "__main__":
    main()
