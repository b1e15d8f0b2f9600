"""What the monitor costs, and whether it stays fast: a made-up log of many peers and rounds, and many clients of the event stream.

    .venv/bin/python benchmarks/monitor.py [--peers 1000] [--rounds 10000] [--claims 100] [--clients 500] [--seconds 60]

Makes a log with ``--claims`` claims a round, starts the monitor's process on it, and prints how fast that reads the log, and how
fast it has it again after a restart; what it takes of memory, how long each route takes and how many bytes its answer is (nothing of it
made before); then ``--clients`` listen for ``--seconds`` while a round a second is committed, and one more asks: it prints the monitor's
share of a core.
"""

import argparse
import asyncio
import gzip
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}  # for the programs that are started

import psutil
import results
from monitor_log import MadeUpRun

from manta_swarm.aggregator.monitor.kept import KEPT
from manta_swarm.aggregator.monitor.settings import DIRECTORY, MonitorSection
from manta_swarm.runtime.child import TOLD, Child, Program, python
from manta_swarm.runtime.line import BEATS, Heartbeat

REPEATS = 15
START_S = 900.0


class Page:
    """Requests to a monitor, each over a connection of its own."""

    def __init__(self, host: str, port: int) -> None:
        """Ask there."""
        self._host, self._port = host, port

    async def get(self, target: str) -> tuple[int, bytes]:
        """Return the status and the body, which is packed if that is worth it."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        request = f"GET {target} HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n"
        writer.write(request.encode())
        data = await reader.read()
        writer.close()
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body

    async def json(self, target: str) -> Any:
        """Return what a route answers."""
        _, body = await self.get(target)
        return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)

    async def listen(self, counts: dict[int, int], number: int) -> None:
        """Listen to the event stream, and count events, until this is cancelled."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        try:
            while data := await reader.read(65_536):
                counts[number] = counts.get(number, 0) + data.count(b"event: ")
        finally:
            writer.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline_s = time.monotonic() + START_S
    while not is_so():
        await asyncio.sleep(0.1)
        if time.monotonic() > deadline_s:
            raise SystemExit("it took too long")


async def timed(page: Page, target: str) -> tuple[float, int]:
    """Return the median milliseconds of some requests, and the bytes of an answer; each asks for something else, where that is possible."""
    times, size = [], 0
    for turn in range(REPEATS):
        began = time.perf_counter()
        status, body = await page.get(target.replace("{turn}", str(turn + 1)))
        times.append(1000 * (time.perf_counter() - began))
        assert status == 200, (target, body)
        size = len(body)
        if "{turn}" not in target:
            await asyncio.sleep(0.6)  # until what was made is old
    return statistics.median(times), size


async def measure_routes(page: Page, peer: str, size: int) -> None:
    """Print a table of all routes."""
    targets = {
        "/api/now": "/api/now",
        "/api/swarm": "/api/swarm",
        "/api/series, 400 points": "/api/series?from={turn}",
        "/api/peers, 50": "/api/peers?offset={turn}",
        "/api/peers/PEER": f"/api/peers/{peer}?before=10000{{turn}}",
        "/api/rounds, 50": "/api/rounds?before=5{turn}",
        "/api/rounds/ROUND": "/api/rounds/{turn}",
        "/api/timeline": "/api/timeline?limit={turn}",
        "/api/ledger/entries, 20": "/api/ledger/entries?before=5{turn}",
        "/api/ledger/proof": f"/api/ledger/proof?size={size}&index={{turn}}",
        "/api/ledger/consistency": f"/api/ledger/consistency?new={size}&old={{turn}}",
        "/api/ledger/credits, 50": "/api/ledger/credits?offset={turn}",
        "/metrics": "/metrics",
    }
    print("| route | median ms | bytes |\n|---|---|---|")
    for name, target in targets.items():
        median, num_bytes = await timed(page, target)
        results.say(f"| `{name}` | {median:.1f} | {num_bytes:,} |", route=name, median_ms=median, num_bytes=num_bytes)


async def measure_streams(page: Page, run: MadeUpRun, process: psutil.Process, clients: int, seconds: float) -> None:
    """Print what so many clients cost while a round a second is committed, and what one more is told."""
    counts: dict[int, int] = {}
    listening = [asyncio.create_task(page.listen(counts, number)) for number in range(clients)]
    await until(lambda: len(counts) == clients)
    status, body = await page.get("/api/events")
    print(f"client {clients + 1} is told: {status} {body.decode()}")
    began_s, began_cpu = time.monotonic(), process.cpu_times()
    counts.clear()
    while time.monotonic() - began_s < seconds:
        run.grow(1)
        for _ in range(2):
            run.say()
            await asyncio.sleep(0.5)
    lasted_s, cpu = time.monotonic() - began_s, process.cpu_times()
    share = (cpu.user + cpu.system - began_cpu.user - began_cpu.system) / lasted_s
    events = sorted(counts.get(number, 0) for number in range(clients))
    gone = sum(task.done() for task in listening)
    line = f"{clients} clients for {lasted_s:.0f} s: {share:.1%} of a core, {events[0]} to {events[-1]} events each, {gone} dropped"
    results.say(line, clients=clients, cores=share, least_events=events[0], most_events=events[-1], dropped=gone)
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)


async def show(arguments: argparse.Namespace, directory: Path) -> None:
    """Make the log and measure."""
    began_s = time.monotonic()
    run = MadeUpRun(directory, arguments.peers, arguments.rounds, arguments.claims)
    run.grow(arguments.rounds)
    run.say()
    database = (directory / "log.sqlite3").stat().st_size
    print(
        f"{run.size:,} entries of {arguments.rounds:,} rounds, {database / 1e9:.2f} GB, made in {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    kept = directory / DIRECTORY / KEPT
    try:
        async with started(directory, arguments.clients) as (page, process):
            await until_read(page, run.size, process, "the first start")
            memory_mb = process.memory_info().rss / 1e6
            results.say(f"memory of the process {memory_mb:.0f} MB", memory_mb=memory_mb)
        print(f"kept of it: {kept.stat().st_size / 1e6:.2f} MB")
        async with started(directory, arguments.clients) as (page, process):
            await until_read(page, run.size, process, "a start after that")
            peer = (await page.json("/api/peers?limit=1"))["peers"][0]["peer"]
            await measure_routes(page, peer, run.size)
            await measure_streams(page, run, process, arguments.clients, arguments.seconds)
    finally:
        run.close()


@asynccontextmanager
async def started(directory: Path, clients: int) -> AsyncIterator[tuple[Page, psutil.Process]]:
    """Yield a monitor's process that was just started on a log, and requests to it; at the end it is over."""
    settings = MonitorSection(streams=clients).model_dump_json()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        where = json.dumps({"fd": listening.fileno(), "is_loopback": True})
        command = python("-m", "manta_swarm.aggregator.monitor.program", str(directory), settings, where)
        child = Child.start(Program("monitor", command, messages=BEATS, pass_fds=[listening.fileno()], steps=TOLD))
        hearing = asyncio.create_task(heard(child))
        try:
            yield Page(*listening.getsockname()), psutil.Process(child.pid)
        finally:
            hearing.cancel()
            await child.end()


async def heard(child: Child) -> None:
    """Hear that a child goes on."""
    while True:
        await child.hear(Heartbeat, START_S)


async def until_read(page: Page, size: int, process: psutil.Process, what: str) -> None:
    """Wait until the monitor has the log, and print what that took, the start of its program apart."""
    deadline_s, began = time.monotonic() + START_S, None
    while time.monotonic() < deadline_s:
        now = await page.json("/api/now")
        times = process.cpu_times()
        spent = time.monotonic(), float(times.user + times.system)
        began = began or spent  # it answers as soon as it begins to read
        if now["head"] is not None and now["head"]["size"] == size:
            wall_s, cpu_s = spent[0] - began[0], spent[1] - began[1]
            results.say(
                f"{what}: it has the log after {wall_s:.1f} s, {cpu_s:.1f} s of CPU; its program started in {began[1]:.1f} s of CPU",
                what=what,
                entries=size,
                seconds=wall_s,
                cpu_s=cpu_s,
            )
            return
        await asyncio.sleep(0.1)
    raise SystemExit("the monitor did not read the log")


def main() -> None:
    """Parse, measure, print."""
    parser = results.parser(__doc__)
    parser.add_argument("--peers", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--claims", type=int, default=100, help="a round")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(show(arguments, Path(folder) / "run"))
    results.write(arguments)


if __name__ == "__main__":
    main()
