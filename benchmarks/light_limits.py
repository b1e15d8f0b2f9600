"""Whether limits are kept where light contributors are: a gateway's HTTP, a contributor's own, and the share of the time that it computes.

    .venv/bin/python benchmarks/light_limits.py [--duty 25 60] [--rate 200kB 2MB] [--seconds 20]

The bytes are contents, without HTTP's and TCP's headers, as the limited side counts them, over loopback and by the clock: blobs of half a
megabyte one after the other, between a real server, whose service has nothing else, and a real client. The share is that of the
microbatches of a real worker (classifier-tiny, digits). Each line ends with measured / limit.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results
import torch

from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.network.traffic import Flow, Traffic
from manta_swarm.peer.config import GatewayUrl
from manta_swarm.peer.features.gateway.http import serving
from manta_swarm.peer.features.light.client import GatewayClient
from manta_swarm.peer.features.light.work_gate import BlockingTraffic, WorkGate
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.light import RETURNS
from manta_swarm.protocol.signing import sha256
from manta_swarm.runtime.listen_address import ListenAddress

BLOB = bytes(512 * 1024)


async def measure_rates(rates: list[int], seconds: float) -> None:
    """Print how many bytes pass at each limit."""

    async def take(data: bytes) -> bytes:
        raise RemoteFault(f"{len(data)} bytes came")

    service = SimpleNamespace(welcome=b"", blob=lambda _: BLOB, take=take, max_return_bytes=len(BLOB))
    gateways, own = Traffic(), Traffic()
    async with serving(service, ListenAddress("127.0.0.1", 0), gateways) as address:  # type: ignore[arg-type]
        client = GatewayClient([GatewayUrl.of(address)], BlockingTraffic(own, asyncio.get_running_loop()))

        def fetch() -> None:
            client.blob(sha256(BLOB), len(BLOB))

        def give() -> None:
            try:
                client._request(RETURNS, BLOB, 1024, 120.0)
            except RemoteFault:  # as soon as all of it came
                return

        for way, flow, call in (
            ("a gateway sends", gateways.sent, fetch),
            ("a gateway receives", gateways.received, give),
            ("a contributor sends", own.sent, give),
            ("a contributor receives", own.received, fetch),
        ):
            for rate in rates:
                await _measure_rate(way, flow, call, rate, seconds)


async def _measure_rate(way: str, flow: Flow, call: Callable[[], None], rate: int, seconds: float) -> None:
    flow.limit = rate
    await asyncio.to_thread(call)  # what was unused before
    begun, begun_s = flow.total, time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < seconds:
        await asyncio.to_thread(call)
    passed_s = time.monotonic() - begun_s
    measured = (flow.total - begun) / passed_s
    flow.limit = None
    results.say(f"{way} at {rate / 1e6:g} MB/s: {measured / 1e6:.3f} MB/s  {measured / rate:.3f}", way=way, limit=rate, measured=measured)


def measure_duty(duties: list[int], seconds: float) -> None:
    """Print what share of the time microbatches are computed at each limit."""
    worker, work_gate, index = Worker(TINY.name, digits()), WorkGate(), 0
    supernet = build(TINY)
    supernet.initialise(torch.Generator().manual_seed(1))
    worker.load(supernet.flat_weights_N)
    for duty in (100, *duties):  # the first one warms up
        work_gate.limit(duty, None)
        computed_s, begun_s = 0.0, time.monotonic()
        while time.monotonic() - begun_s < seconds:
            work_gate.before_microbatch(until_s=0)
            microbatch_s = time.monotonic()
            worker.train(Microbatch(7, b"base" * 8, 0, b"key", index, TINY.smallest(), 32))
            took_s = time.monotonic() - microbatch_s
            work_gate.after_microbatch(1000 * took_s, 32)
            computed_s, index = computed_s + took_s, index + 1
        share = computed_s / (time.monotonic() - begun_s)
        results.say(
            f"duty {duty:3d}%: computes {share:6.1%} of the time  {share / (duty / 100):.3f}", way="duty", limit=duty / 100, measured=share
        )


def main() -> None:
    """Measure."""
    parser = results.parser(__doc__)
    parser.add_argument("--duty", type=int, nargs="*", default=[25, 60], metavar="PERCENT")
    parser.add_argument("--rate", nargs="*", default=["200kB", "2MB"], metavar="RATE")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each line")
    arguments = parser.parse_args()
    rates = [rate for text in arguments.rate if (rate := Limits(max_upload=text).max_upload) is not None]
    if rates:
        asyncio.run(measure_rates(rates, arguments.seconds))
    if arguments.duty:
        measure_duty(arguments.duty, arguments.seconds)
    results.write(arguments)


if __name__ == "__main__":
    main()
