"""Whether a volunteer's limits are kept: the share of the time that a worker computes, and the bytes on the wire (Linux, root).

    .venv/bin/python benchmarks/limits.py [--duty 10 25 60 100] [--rate 200kB 1MB 4MB] [--seconds 30]

The share is that of a real worker process (classifier-tiny, digits, one thread) which is given a microbatch whenever it takes one: the time
of its microbatches by the clock, and its CPU time, each against the time that went by. The bytes are those of a network interface, with all
headers and encryption, between two real nodes in network namespaces of their own: one hands out pieces of half a megabyte, four at a time.
Each line ends with measured / limit.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.peer.limits.limits import Limits
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.namespaces import cable, give_address, make, on_host, remove, run, take

if TYPE_CHECKING:
    from manta_swarm.peer.workers.processes import ProcessPool

PREFIX = "manta-limits-"
GIVER, TAKER = f"{PREFIX}giver", f"{PREFIX}taker"
GIVER_ADDRESS, TAKER_ADDRESS = "10.70.0.1", "10.70.0.2"
PIECE_BYTES = 512 * 1024
AT_A_TIME = 4
SETTLE_S = 15.0  # before it is measured: connections, windows, and what the other side sent ahead
CALL_S = 60.0
WAYS = {"answers sent": "giver", "requests sent": "taker", "answers received": "taker"}  # and who is limited


async def measure_duty(duties: list[int], seconds: float) -> None:
    """Print what share of the time a worker computes at each limit."""
    import torch

    from manta_swarm.automl.data.catalog import digits
    from manta_swarm.automl.models.networks import build
    from manta_swarm.automl.spaces.space import TINY
    from manta_swarm.automl.training.microbatches import Microbatch
    from manta_swarm.peer.workers.devices import Device
    from manta_swarm.peer.workers.pool import ThrottledPool
    from manta_swarm.peer.workers.processes import ProcessPool, WorkerData

    processes = ProcessPool(TINY.name, WorkerData.of(digits(), None), (Device("cpu", 1),))
    pool = ThrottledPool(processes)
    await pool.start()
    supernet = build(TINY)
    supernet.initialise(torch.Generator().manual_seed(1))
    await pool.load(supernet.flat_weights_N, None)
    index = 0
    try:
        for duty in (100, *duties):  # the first one warms up
            pool.duty = duty
            computed_ms, begun_s, cpu_s = 0.0, None, 0.0
            while begun_s is None or time.monotonic() - begun_s < seconds:
                if not pool.free():
                    await pool.changes.next()
                    continue
                microbatch = Microbatch(7, b"base" * 8, 0, b"key", index, TINY.largest() if index % 2 else TINY.smallest(), 32)
                done = await pool.train(0, microbatch)
                pool.release(done)
                index += 1
                if begun_s is None:
                    begun_s, cpu_s = time.monotonic(), _cpu_s(processes)
                else:
                    computed_ms += done.took_ms
            passed_s = time.monotonic() - begun_s
            share, cpu = computed_ms / 1000 / passed_s, (_cpu_s(processes) - cpu_s) / passed_s
            line = f"duty {duty:3d}%: computes {share:6.1%} of the time (CPU {cpu:6.1%})  {share / (duty / 100):.3f}"
            results.say(line, way="duty", limit=duty / 100, measured=share)
    finally:
        await pool.close()


def _cpu_s(pool: "ProcessPool") -> float:
    times = psutil.Process(pool.pids[0]).cpu_times()
    return float(times.user + times.system)


def measure_rates(rates: list[int], seconds: float) -> None:
    """Print how many bytes pass on the wire at each limit."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        raise SystemExit(
            "rates are measured between network namespaces: on Linux, with ip (Debian: iproute2), as root; or give --rate alone"
        )
    with _network(), tempfile.TemporaryDirectory() as folder:
        for way, limited in WAYS.items():
            for rate in rates:
                _measure_rate(Path(folder), way, limited, rate, seconds)


def _measure_rate(folder: Path, way: str, limited: str, rate: int, seconds: float) -> None:
    with contextlib.ExitStack() as ending:
        giver = _start(ending, GIVER, folder, "give", str(rate if limited == "giver" else 0))
        assert giver.stdout is not None
        address = giver.stdout.readline().strip()
        taker = _start(ending, TAKER, folder, way, str(rate if limited == "taker" else 0), address)
        assert taker.stdout is not None
        taker.stdout.readline()  # it has begun
        time.sleep(SETTLE_S)
        direction = "rx" if way == "answers received" else "tx"
        namespace = GIVER if limited == "giver" else TAKER
        begun, begun_s = _carried(namespace, direction), time.monotonic()
        time.sleep(seconds)
        measured = (_carried(namespace, direction) - begun) / (time.monotonic() - begun_s)
    line = f"{way} at {rate / 1e6:g} MB/s: {measured / 1e6:.3f} MB/s on the wire  {measured / rate:.3f}"
    results.say(line, way=way, limit=rate, measured=measured)


def _start(ending: contextlib.ExitStack, namespace: str, folder: Path, *words: str) -> "subprocess.Popen[str]":
    command = on_host(namespace, sys.executable, __file__, "--child", str(folder), *words)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def end() -> None:
        child.terminate()
        child.wait()

    ending.callback(end)
    return child


def _carried(namespace: str, direction: str) -> int:
    return int(run(*on_host(namespace, "cat", f"/sys/class/net/eth/statistics/{direction}_bytes")))


@contextlib.contextmanager
def _network() -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as name:
        if not take(PREFIX, name):
            raise SystemExit("such a network is in use already: wait until that benchmark is over")
        remove(PREFIX)
        try:
            for namespace in (GIVER, TAKER):
                make(namespace)
            cable(GIVER, "eth", TAKER, "eth")
            give_address(GIVER, "eth", GIVER_ADDRESS)
            give_address(TAKER, "eth", TAKER_ADDRESS)
            yield
        finally:
            remove(PREFIX)


async def be_child(folder: Path, way: str, rate: int, address: str | None) -> None:
    """Give, or take without an end, at most at ``rate``; 0: without a limit."""
    from manta_swarm.network.node import Node, parse_address

    identity = Identity(secrets.token_bytes(32))
    path = folder / f"{identity.public_key.hex()[:8]}.key"
    path.touch(mode=0o600)
    path.write_bytes(identity.to_libp2p())
    here = GIVER_ADDRESS if address is None else TAKER_ADDRESS
    node = await Node.start(identity, path, listen=[f"/ip4/{here}/tcp/0"], initial_peers=[] if address is None else [address])
    piece = secrets.token_bytes(PIECE_BYTES)

    async def give(_caller: PublicKey, request: bytes) -> bytes:
        return b"" if len(request) > 1 else piece

    await node.serve("piece", give)
    if address is None:
        node.traffic.sent.limit = rate or None
        print((await node.addresses())[0], flush=True)
        await asyncio.Event().wait()
    assert address is not None
    is_sent = way == "requests sent"
    flow = node.traffic.sent if is_sent else node.traffic.received
    flow.limit = rate or None
    key, _ = parse_address(address)

    async def call() -> None:
        while True:
            await node.call(key, "piece", piece if is_sent else b"?", timeout_s=CALL_S, large_answer=True)

    print("begun", flush=True)
    await asyncio.gather(*(call() for _ in range(AT_A_TIME)))


def main() -> None:
    """Measure."""
    if sys.argv[1:2] == ["--child"]:
        folder, way, at_most, *rest = sys.argv[2:]
        asyncio.run(be_child(Path(folder), way, int(at_most), rest[0] if rest else None))
        return
    parser = results.parser(__doc__)
    parser.add_argument("--duty", type=int, nargs="*", default=[10, 25, 60, 100], metavar="PERCENT")
    parser.add_argument("--rate", nargs="*", default=["200kB", "1MB", "4MB"], metavar="RATE")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each line")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and nothing of a network is left
    rates = [rate for text in arguments.rate if (rate := Limits(max_upload=text).max_upload) is not None]
    if rates:
        measure_rates(rates, arguments.seconds)
    if arguments.duty:
        asyncio.run(measure_duty(arguments.duty, arguments.seconds))
    results.write(arguments)


if __name__ == "__main__":
    main()
