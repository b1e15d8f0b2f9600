"""Microbatches of two sites with a view each, in two processes over real connections, against one with both views: loss, bytes, time.

The sites prove one token to each other as cohort peers do. Each trains microbatches of its own in turn with the other, which the left one
computes again with both views. Bytes are those of the exchanges; what libp2p and the calls add comes on top.

Run it from the repository: ``.venv/bin/python benchmarks/vertical.py --help``.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results

from manta_swarm.automl.data.views import LEFT, RIGHT
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.spaces.space import STEREO_TINY
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker
from manta_swarm.automl.training.settings import usual
from manta_swarm.automl.training.vertical import SiteWorker
from manta_swarm.network.links import Links
from manta_swarm.network.near_cohort_peers import CohortPeers, NotACohortPeer
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import Handler
from manta_swarm.peer.features.two_views.partner import Site
from manta_swarm.peer.features.two_views.views import SitePool
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.pool import WorkerLost
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.runs import manifest_of
from tests.stereo_sites import at_site, few_pairs

TOKEN, RUN, BASE = sha256(b"token"), sha256(b"run"), sha256(b"base")
PEERS = {view: Identity(sha256(view.encode())) for view in (LEFT, RIGHT)}
TIMEOUT_S, NUM_PAIRS = 120.0, 256


class Near:
    """Cohort peers and nobody else, without a run."""

    def __init__(self, node: Node) -> None:
        self.key = node.key
        self._links = Links(node, RUN)
        self._cohort_peers = CohortPeers(node, self._links, RUN, "pair", TOKEN)

    async def start(self) -> None:
        await self._links.start()
        await self._cohort_peers.start()

    async def meet(self, key: PublicKey) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not self._cohort_peers.knows(key):
                await self._cohort_peers.meet([key], TIMEOUT_S)

    async def close(self) -> None:
        await self._links.close()
        await self._cohort_peers.close()

    def cohort_peers(self) -> tuple[PublicKey, ...]:
        return self._cohort_peers.fresh()

    async def serve_cohort_peers(self, method: str, handler: Handler) -> None:
        async def for_cohort_peers(caller: PublicKey, request: bytes) -> bytes:
            if not self._cohort_peers.knows(caller):
                raise NotACohortPeer("prove the cohort's token first")
            return await handler(caller, request)

        await self._links.serve(method, for_cohort_peers)

    async def call_cohort_peer(self, cohort_peer: PublicKey, method: str, request: bytes, *, timeout_s: float, largest: int) -> bytes:
        return await self._links.call(cohort_peer, method, request, timeout_s=timeout_s, largest=largest)


def weights() -> torch.Tensor:
    """Return the weights that both sites begin with."""
    stereo = Stereo(STEREO_TINY)
    stereo.initialise(torch.Generator().manual_seed(0))
    return stereo.flat_weights_N


def microbatch_of(view: str, index: int, samples: int) -> Microbatch:
    """Return a microbatch of a site; the first architecture is the largest, then the smallest, the others are random."""
    kinds = (STEREO_TINY.largest(), STEREO_TINY.smallest())
    architecture = kinds[index] if index < len(kinds) else STEREO_TINY.sample(random.Random(index))
    return Microbatch(7, BASE, 0, PEERS[view].public_key, index, architecture, samples)


async def train(pool: SitePool, microbatch: Microbatch) -> tuple[MicrobatchResult, float]:
    """Train a microbatch as often as it takes; return what it gave, and the milliseconds of the last try."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if not pool.free():
                for line in await pool.changes.next():
                    print(line, file=sys.stderr)
                continue
            try:
                done = await pool.train(0, microbatch)
            except WorkerLost as error:
                print(f"microbatch again: {error}", file=sys.stderr)
                continue
            return done.result, done.took_ms


async def site(view: str, microbatches: int, samples: int, directory: Path, address: str | None) -> None:
    """Be one site; the right one is started by the left one, and ends with it."""
    path = directory / f"{view}.key"
    path.write_bytes(PEERS[view].to_libp2p())
    node = await Node.start(PEERS[view], path, listen=["/ip4/127.0.0.1/tcp/0"], initial_peers=[] if address is None else [address])
    near, compute, both = Near(node), ComputeThread(), few_pairs(NUM_PAIRS)
    manifest = replace(
        manifest_of(PEERS[view]), task="stereo", supernet="stereo-tiny", data_digest=both.digest, microbatch_samples=samples, seed=7
    )
    data = at_site(both, view)
    pool = SitePool(SiteWorker("stereo-tiny", data, view), data, Site.of(data, view), manifest, compute)
    pool.reach(near)
    try:
        await near.start()
        await pool.load(weights(), None)
        await pool.start()
        if view == RIGHT:
            print("ready", flush=True)
            for index in range(microbatches):
                await train(pool, microbatch_of(view, index, samples))
            print("done", flush=True)
            await asyncio.to_thread(sys.stdin.read)
        else:
            await lead(pool, near, node, microbatches, samples, directory)
    finally:
        await pool.close()
        compute.close()
        await near.close()
        await node.close()


async def lead(pool: SitePool, near: Near, node: Node, microbatches: int, samples: int, directory: Path) -> None:
    """Start the right site, train with it, and print what came of it."""
    address = (await node.addresses())[0]
    arguments = [
        "--site",
        RIGHT,
        "--microbatches",
        str(microbatches),
        "--samples",
        str(samples),
        "--dir",
        str(directory),
        "--address",
        address,
    ]
    pipe = asyncio.subprocess.PIPE
    right = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdin=pipe, stdout=pipe)
    assert right.stdin is not None
    assert right.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await right.stdout.readline()
        await near.meet(PEERS[RIGHT].public_key)
        pooled = Worker("stereo-tiny", few_pairs(NUM_PAIRS))
        pooled.load(weights())
        trained = [await train(pool, microbatch_of(LEFT, index, samples)) for index in range(microbatches)]
        async with asyncio.timeout(TIMEOUT_S):
            await right.stdout.readline()
        report(pool, trained, pooled, samples)
    finally:
        right.stdin.close()
        await right.wait()


def report(pool: SitePool, trained: list[tuple[MicrobatchResult, float]], pooled: Worker, samples: int) -> None:
    """Print what the left site's microbatches gave and cost."""
    loss = gradient = pooled_ms = 0.0
    for index, (result, _) in enumerate(trained):
        started = time.perf_counter()
        expected = pooled.train(microbatch_of(LEFT, index, samples))
        pooled_ms += 1000 * (time.perf_counter() - started)
        loss = max(loss, abs(result.loss - expected.loss) / expected.loss)
        gradient = max(gradient, float((result.gradient - expected.gradient).norm() / expected.gradient.norm()))
    print(f"{pool.own.microbatches} and {pool.others.microbatches} microbatches of {samples} samples; compared: {len(trained)}")
    line = f"largest relative difference to both views at one site: loss {loss:.1e}, gradient {gradient:.1e}"
    results.say(line, loss_difference=loss, gradient_difference=gradient)
    for whose, traffic in (("left", pool.own), ("right", pool.others)):
        trips = traffic.exchanges / traffic.microbatches
        sent, received = traffic.bytes_sent / traffic.microbatches / 1000, traffic.bytes_received / traffic.microbatches / 1000
        line = f"a microbatch of the {whose} site: {trips:.1f} round trips, {sent:.0f} kB left to right, {received:.0f} kB right to left"
        results.say(line, site=whose, round_trips=trips, left_to_right_kb=sent, right_to_left_kb=received)
    took_ms, alone_ms = sum(took_ms for _, took_ms in trained) / len(trained), pooled_ms / len(trained)
    line = f"a microbatch of the left site takes {took_ms:.0f} ms, with that of the right one before it; with both views: {alone_ms:.0f} ms"
    results.say(line, took_ms=took_ms, both_views_ms=alone_ms)


def main() -> None:
    """Parse and run."""
    parser = results.parser(__doc__)
    parser.add_argument("--microbatches", type=int, default=8, help="of each site (default 8)")
    parser.add_argument("--samples", type=int, default=usual("stereo").microbatch_samples, help="of a microbatch (default: a stereo run's)")
    for name in ("--site", "--dir", "--address"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(options.dir or temporary)
        asyncio.run(site(options.site or LEFT, options.microbatches, options.samples, directory, options.address))
    results.write(options)


if __name__ == "__main__":
    main()
