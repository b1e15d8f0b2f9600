"""Averaging among peers that are near each other: ours, inside one host and over the network, hivemind's averager, and gloo's all_reduce.

Every peer is a process of its own on loopback; ours and hivemind's each have a libp2p daemon of their own. One run alternates: a round of
each variant, then the next round of each, so that a busy moment of the machine hits all alike. What is timed is the averaging alone, from
the first peer's start to the last peer's end; who takes part is known by then, on all sides. Ours ends with the same mean at every peer.

With ``--namespaces MBIT`` (Linux, root) each of our peers and of hivemind's is a host of its own, behind a line of so many Mbit/s in both
directions; then the bytes on the lines are told too.

Run it from the repository: ``.venv/bin/python benchmarks/reduce.py --help``.
"""

import argparse
import asyncio
import contextlib
import ctypes
import functools
import hashlib
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results
from wan_network import BURST_BYTES, QUEUE_MS, why_not

from manta_swarm.codec.residuals import part_digests, vector_digest
from manta_swarm.network.links import Links
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.node import Node
from manta_swarm.network.rpc import TLS, UNIX
from manta_swarm.peer.cohort.cohort import Cohort
from manta_swarm.peer.cohort.cohort_membership import Choice, FirstCohort
from manta_swarm.protocol.exchange import Exchange
from manta_swarm.protocol.manifest import Manifest, Optimizer
from manta_swarm.protocol.records import Claim, ClaimStep
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.runtime.clock import SYSTEM_CLOCK
from tests import namespaces

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 120.0
ROUND_TIMEOUT_S = 60.0
MAX_ERROR = 1e-3  # of a mean of values around 0.01: beyond it parts of the vector were not averaged
STOP_TIMEOUT_S = 20.0
START_IN_S = 0.1  # all begin at the same moment
TOKEN, RUN = bytes(32), bytes(32)

SIDES = OURS_LOCAL, OURS_NETWORK, HIVEMIND, GLOO = UNIX, TLS, "hivemind", "gloo"  # each has its processes


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to average."""

    name: str
    side: str
    how: str = ""  # what the side's peers are told


LOCAL = Variant("ours, inside one host", OURS_LOCAL)
NETWORK = Variant("ours, over the network", OURS_NETWORK)
THEIRS = Variant("hivemind, uncompressed", HIVEMIND, "none")
HALVES = Variant("hivemind, Float16", HIVEMIND, "fp16")
ALL_REDUCE = Variant("gloo, all_reduce", GLOO)
VARIANTS = (LOCAL, NETWORK, THEIRS, HALVES, ALL_REDUCE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a peer reports of its part in a round; times by the monotonic clock that all processes share."""

    start_s: float
    end_s: float
    digest: str
    max_error: float  # against the exact mean in float64
    is_founder: bool = False


@dataclass
class Record:
    """The rounds of one variant."""

    times_s: list[float] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)  # how many different ones a round ended with
    max_error: float = 0.0
    failures: int = 0
    wrong: int = 0  # reported as a success, and parts of the vector were not averaged
    line_bytes: list[float] = field(default_factory=list)  # on the founder's line, against the most on another one's
    most_bytes: list[int] = field(default_factory=list)  # on any line

    def add(self, outcomes: list[Outcome]) -> None:
        """Count a round."""
        if max(o.max_error for o in outcomes) > MAX_ERROR:
            self.wrong += 1
            return
        self.times_s.append(max(o.end_s for o in outcomes) - min(o.start_s for o in outcomes))
        self.digests.append(len({o.digest for o in outcomes}))
        self.max_error = max(self.max_error, *(o.max_error for o in outcomes))


def vector_of(peer: int, num_values: int) -> torch.Tensor:
    """Return what a peer brings: as gradients are, normal and small."""
    return torch.randn(num_values, generator=torch.Generator().manual_seed(peer)) * 1e-2


def exact_mean(num_peers: int, num_values: int) -> torch.Tensor:
    """Return what is to come of it."""
    return torch.stack([vector_of(peer, num_values).double() for peer in range(num_peers)]).mean(0)


def outcome_of(start_s: float, end_s: float, mean: torch.Tensor, exact: torch.Tensor, *, is_founder: bool = False) -> Outcome:
    """Return what to report."""
    error = float((mean.double() - exact).abs().max())
    return Outcome(start_s, end_s, hashlib.sha256(mean.numpy().tobytes()).hexdigest(), error, is_founder)


# One of our peers.


class FixedTrainingSpec:
    """A run's training, as far as claims go by it: one architecture that costs the same in every round."""

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        """See ``protocol.rewards.TrainingSpec``."""
        return (1,)

    def role(self, round: int, cohort: str) -> int:
        """See ``protocol.rewards.TrainingSpec``."""
        return 0

    def sorts_after(self, round: int) -> bool:
        """See ``protocol.rewards.TrainingSpec``."""
        return False


def manifest_of(operator: PublicKey) -> Manifest:
    """Return the manifest of a run whose rounds have two local steps, of which the first is timed."""
    exchange = Exchange("int16", 0, 2, 64, 4096, 2**20, 2**20, -32, 600_000, 100, 600_000)
    return Manifest(
        name="reduce",
        task="classification",
        dataset="digits",
        data_digest=RUN,
        supernet="classifier-tiny",
        seed=0,
        algorithm="data-parallel",
        schedule="sandwich",
        num_rounds=1_000,
        microbatch_samples=32,
        optimizer=Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0, outer_rate="0.9", outer_momentum="0.5"),
        initial_state=RUN,
        exchange=exchange,
        reward_pool=1,
        costs=(),
        operators=(operator,),
        cohorts="token",
    )


def claim_of(identity: Identity, founder: PublicKey, round_: int, vector: NDArray[np.float32]) -> Signed[Claim]:
    """Return what a peer claims of its one step: a microbatch."""
    digest, key = vector_digest(vector), identity.public_key
    steps = (ClaimStep(0, 0, (), digest),)
    claim = Claim(RUN, round_ + 1, sha256(b"%d" % round_), key, key, founder, "here", steps, (1,), b"", b"", 1)
    return Signed.sign(claim, identity)


async def serve_our_peer(pipe: Connection, way: str, peer: int, num_peers: int, num_values: int, directory: Path, host: str) -> None:
    """Answer the commands of the main process until it says stop, or is gone."""
    identity = Identity(secrets.token_bytes(32))
    path = directory / f"peer-{peer}.key"
    path.write_bytes(identity.to_libp2p())
    loop = asyncio.get_running_loop()
    receive = functools.partial(loop.run_in_executor, None, pipe.recv)
    node = await Node.start(identity, path, listen=[f"/ip4/{host}/tcp/0"], initial_peers=await receive())
    neighbours = Neighbours(node, RUN)
    manifest = manifest_of(identity.public_key)
    has = {
        "node": node,
        "key": identity.public_key,
        "manifest": manifest,
        "training_spec": FixedTrainingSpec(),
        "run": RUN,
        "clock": SYSTEM_CLOCK,
    }
    context: Any = SimpleNamespace(**has)
    cohort = Cohort(context, FirstCohort(Choice.LABEL, "here", TOKEN), neighbours, links=Links(node, RUN, ways=[way]))
    try:
        vector, exact = vector_of(peer, num_values).numpy(), exact_mean(num_peers, num_values)
        await cohort.start()
        pipe.send(await node.addresses())
        while (command := await receive()) is not None:
            _, round_ = command
            await meet(cohort, neighbours, num_peers, way)
            cohort_session = await cohort.convene(CommitRef(round_, sha256(b"%d" % round_), RUN, -32, None), 1, 2 * ROUND_TIMEOUT_S * 1000)
            claim, digests = claim_of(identity, cohort_session.founder, round_, vector), part_digests(vector)
            pipe.send("ready")
            await asyncio.sleep(await receive() - time.monotonic())
            start_s = time.monotonic()
            mean = await cohort_session.average(0, vector, claim, digests)
            end_s = time.monotonic()
            pipe.send("done")
            await receive()
            if cohort_session.is_alone or (cohort_session.is_founder and len(cohort_session.members) != num_peers):
                pipe.send(f"a roster of {len(cohort_session.members)}")
            else:
                found = torch.from_numpy(np.require(mean, requirements="W"))
                pipe.send(outcome_of(start_s, end_s, found, exact, is_founder=cohort_session.is_founder))
    finally:
        await cohort.close()
        await node.close()


async def meet(cohort: Cohort, neighbours: Neighbours, num_peers: int, way: str) -> None:
    """Return once all peers are cohort peers, and linked in this way."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while list(cohort.ways().values()) != [way] * (num_peers - 1):
            await neighbours.announce(cohort="here", round_=0)
            await neighbours.look()
            await cohort.meet()


# One of hivemind's peers.


def serve_hivemind_peer(pipe: Connection, peer: int, num_peers: int, num_values: int, part_bytes: int, directory: Path, host: str) -> None:
    """Answer the commands of the main process until it says stop, or is gone."""
    import hivemind
    from hivemind.averaging.averager import DecentralizedAverager
    from hivemind.compression import Float16Compression, NoCompression
    from hivemind.p2p import P2P

    P2P._UNIX_SOCKET_PREFIX = f"/unix{directory}/"  # inherited by the processes that hivemind forks
    multiprocessing.set_start_method("fork", force=True)  # the only one that hivemind works with
    shared = multiprocessing.Array("d", 2, lock=True)  # start and end: measured in the forked averager

    class Timed(DecentralizedAverager):  # type: ignore[misc]
        async def _run_allreduce_inplace_(self, *args: Any, **kwargs: Any) -> None:
            shared[0] = time.monotonic()
            await super()._run_allreduce_inplace_(*args, **kwargs)
            shared[1] = time.monotonic()

    vector, exact = vector_of(peer, num_values), exact_mean(num_peers, num_values)
    dht = hivemind.DHT(initial_peers=pipe.recv(), host_maddrs=[f"/ip4/{host}/tcp/0"], start=True)
    averagers = {
        name: Timed(
            [torch.zeros(num_values)],
            dht,
            start=True,
            prefix=name,
            compression=compression,
            target_group_size=num_peers,
            min_group_size=num_peers,
            min_matchmaking_time=3.0,
            request_timeout=1.5,
            part_size_bytes=part_bytes,
            allreduce_timeout=ROUND_TIMEOUT_S,
            sender_timeout=ROUND_TIMEOUT_S / 3,
            reducer_timeout=ROUND_TIMEOUT_S / 2,
            allow_state_sharing=False,
        )
        for name, compression in (("none", NoCompression()), ("fp16", Float16Compression()))
    }
    try:
        pipe.send([str(maddr) for maddr in dht.get_visible_maddrs()])
        while (command := pipe.recv()) is not None:
            averager = averagers[command[0]]
            with averager.get_tensors() as tensors:
                tensors[0].copy_(vector)
            pipe.send("ready")
            time.sleep(max(0.0, pipe.recv() - time.monotonic()))
            failure = ""
            try:
                averager.step(timeout=ROUND_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - whatever hivemind raises, the round counts as failed
                failure = f"{type(error).__name__}: {error}"
            pipe.send("done")
            pipe.recv()
            if failure:
                pipe.send(failure)
                continue
            with averager.get_tensors() as tensors:
                pipe.send(outcome_of(shared[0], shared[1], tensors[0], exact))
    finally:
        for averager in averagers.values():
            averager.shutdown()
        dht.shutdown()


# One of gloo's.


def serve_gloo_peer(pipe: Connection, peer: int, num_peers: int, num_values: int, directory: Path) -> None:
    """Answer the commands of the main process until it says stop, or is gone."""
    import torch.distributed as dist

    pipe.recv()
    vector, exact = vector_of(peer, num_values), exact_mean(num_peers, num_values)
    pipe.send([])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{directory}/gloo", rank=peer, world_size=num_peers)
    try:
        while pipe.recv() is not None:
            mean = vector.clone()
            pipe.send("ready")
            time.sleep(max(0.0, pipe.recv() - time.monotonic()))
            start_s = time.monotonic()
            dist.all_reduce(mean)
            mean /= num_peers
            end_s = time.monotonic()
            pipe.send("done")
            pipe.recv()
            pipe.send(outcome_of(start_s, end_s, mean, exact))
    finally:
        dist.destroy_process_group()


def run_peer(
    pipe: Connection, side: str, peer: int, num_peers: int, num_values: int, part_bytes: int, directory: Path, host: "Host | None"
) -> None:
    """The main function of a peer's process. It ends with everything it started, at the latest when the main process is gone."""
    os.setsid()
    address = LOOPBACK
    if host is not None:
        enter(host.namespace)
        address = host.address
    torch.set_num_threads(1)
    try:
        if side in (OURS_LOCAL, OURS_NETWORK):
            asyncio.run(serve_our_peer(pipe, side, peer, num_peers, num_values, directory, address))
        elif side == HIVEMIND:
            serve_hivemind_peer(pipe, peer, num_peers, num_values, part_bytes, directory, address)
        else:
            serve_gloo_peer(pipe, peer, num_peers, num_values, directory)
    except EOFError:
        shutil.rmtree(directory, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # the main process is gone


# Hosts with lines of their own.


@dataclass(frozen=True, slots=True)
class Host:
    """A computer of the network."""

    namespace: str
    address: str

    def line_bytes(self) -> int:
        """Return how many bytes its line carried so far, in both directions, with all headers."""
        (found,) = json.loads(namespaces.run("ip", "-n", self.namespace, "-s", "-j", "link", "show", "dev", "eth"))
        return int(found["stats64"]["rx"]["bytes"]) + int(found["stats64"]["tx"]["bytes"])


def enter(namespace: str) -> None:
    """Move this process into a network namespace."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(descriptor)


class Lines(namespaces.Network):
    """Hosts at one switch, each behind a line of its own. Use with ``with``."""

    def __init__(self, num_hosts: int, mbit: float) -> None:
        """Make it with ``with``; ``mbit``: what each line carries in each direction, Mbit/s."""
        super().__init__("manta-reduce-")
        self.hosts = [Host(f"manta-reduce-{number}", f"10.70.0.{10 + number}") for number in range(num_hosts)]
        self._mbit = mbit

    def _build(self) -> None:
        switch = "manta-reduce-switch"
        for namespace in (switch, *(host.namespace for host in self.hosts)):
            namespaces.make(namespace)
        namespaces.add_bridge(switch, "bridge")
        for number, host in enumerate(self.hosts):
            namespaces.cable(switch, f"port-{number}", host.namespace, "eth")
            namespaces.plug(switch, f"port-{number}", "bridge")
            namespaces.give_address(host.namespace, "eth", host.address)
            for namespace, device in ((switch, f"port-{number}"), (host.namespace, "eth")):
                shape = ("tbf", "rate", f"{self._mbit:g}mbit", "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms")
                namespaces.run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *shape)


# The main process.


class Peers:
    """The processes of one side."""

    def __init__(self, side: str, num_values: int, arguments: argparse.Namespace, directory: Path, hosts: Sequence[Host]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        self._hosts = hosts
        for peer in range(arguments.peers):
            ours, theirs = context.Pipe()
            host = hosts[peer] if hosts else None
            given = (theirs, side, peer, arguments.peers, num_values, arguments.hivemind_part_bytes, directory, host)
            process = context.Process(target=run_peer, args=given, name=f"{side}-{peer}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def connect(self) -> None:
        """Let the peers find each other, one after the other."""
        addresses: list[str] = []
        for pipe in self._pipes:
            pipe.send(addresses)
            addresses += self._receive(pipe, START_TIMEOUT_S)[:1]

    def round(self, how: str, round_: int) -> list[Outcome | str]:
        """Tell each peer how, let them go together once all are ready, and look at what they have once all are done."""
        self._tell((how, round_))
        self._all(START_TIMEOUT_S)
        before = [host.line_bytes() for host in self._hosts]
        self._tell(time.monotonic() + START_IN_S)
        self._all(2 * ROUND_TIMEOUT_S)
        self.line_bytes = [host.line_bytes() - so_far for host, so_far in zip(self._hosts, before, strict=True)]
        self._tell("report")
        return self._all(ROUND_TIMEOUT_S)

    def _tell(self, command: Any) -> None:
        for pipe in self._pipes:
            pipe.send(command)

    def _all(self, timeout_s: float) -> list[Any]:
        return [self._receive(pipe, timeout_s) for pipe in self._pipes]

    def stop(self) -> None:
        """End the processes and all that they started."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join(max(0.0, deadline_s - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):  # the session may outlive its leader
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
            pipe.close()

    def _receive(self, pipe: Connection, timeout_s: float) -> Any:
        process = self._processes[self._pipes.index(pipe)]
        wait([pipe, process.sentinel], timeout_s)
        try:
            if pipe.poll():
                return pipe.recv()
        except EOFError:
            pass
        raise SystemExit(f"{process.name} {'does not answer' if process.is_alive() else 'ended; its reason is above'}")


@contextlib.contextmanager
def started(num_values: int, arguments: argparse.Namespace, hosts: Sequence[Host]) -> Iterator[dict[str, Peers]]:
    """Start all sides; end them whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="reduce-", dir="/tmp"))  # short: sockets are in it
    sides: dict[str, Peers] = {}
    try:
        for side in arguments.sides:
            sides[side] = Peers(side, num_values, arguments, directory, hosts)
            sides[side].connect()
        yield sides
    finally:
        for peers in sides.values():
            peers.stop()
        shutil.rmtree(directory, ignore_errors=True)


def measure(sides: dict[str, Peers], num_rounds: int, say: Callable[[str], None]) -> dict[Variant, Record]:
    """Run the rounds; the first two of each variant warm up and are not kept."""
    records = {variant: Record() for variant in VARIANTS}
    number = 0
    for round_ in range(num_rounds + 2):
        say(f"round {round_} of {num_rounds + 1}")
        for variant in (variant for variant in VARIANTS if variant.side in sides):
            number += 1
            outcomes = sides[variant.side].round(variant.how, number)
            failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
            if failures:
                records[variant].failures += 1
                say(f"{variant.name}: a round failed: {failures[0]}")
            elif round_ > 1:
                whole = [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
                records[variant].add(whole)
                if lines := sides[variant.side].line_bytes:
                    founder = next((place for place, outcome in enumerate(whole) if outcome.is_founder), lines.index(max(lines)))
                    others = [size for place, size in enumerate(lines) if place != founder]
                    records[variant].line_bytes.append(lines[founder] / max(others))
                    records[variant].most_bytes.append(max(lines))
    return records


def report(records: dict[Variant, Record]) -> str:
    """Return the table of one size."""
    has_lines = any(record.most_bytes for record in records.values())
    columns = f"{'MB on a line':>14}{'founder/most':>14}" if has_lines else ""
    lines = [f"{'':28}{'median s':>10}{'min s':>8}{'digests':>9}{'max error':>11}{columns}"]
    for variant, record in records.items():
        missing = f"  {record.failures} failed" if record.failures else ""
        missing += f"  {record.wrong} wrong, though reported as a success" if record.wrong else ""
        if not record.times_s:
            lines.append(f"{variant.name:28}{missing}")
            continue
        lines.append(
            f"{variant.name:28}{statistics.median(record.times_s):10.3f}{min(record.times_s):8.3f}{max(record.digests):9}"
            f"{record.max_error:11.1e}{_line_columns(record)}{missing}"
        )
    lines += ["", "ratios of the medians (below 1: ours is faster)"]
    for ours in (LOCAL, NETWORK):
        for other in (THEIRS, HALVES, ALL_REDUCE):
            if records[ours].times_s and records[other].times_s:
                ratio = statistics.median(records[ours].times_s) / statistics.median(records[other].times_s)
                lines.append(f"{ours.name} / {other.name:28}{ratio:6.2f}")
    return "\n".join(lines)


def _line_columns(record: Record) -> str:
    if not record.most_bytes:
        return ""
    return f"{statistics.median(record.most_bytes) / 1e6:14.1f}{statistics.median(record.line_bytes):14.2f}"


def main() -> None:
    """Run it."""
    parser = results.parser(__doc__)
    sizes = [1_000_000, 5_000_000]
    parser.add_argument("--values", type=int, nargs="+", default=sizes, help="float32 values in the vector (default: 1 and 5 million)")
    parser.add_argument("--peers", type=int, default=4, help="peers of each side (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count, of each variant (default: %(default)s)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="what is compared (default: all)")
    parser.add_argument("--hivemind-part-bytes", type=int, default=2**19, help="hivemind's part_size_bytes (default: its own, %(default)s)")
    parser.add_argument("--namespaces", type=float, metavar="MBIT", help="each peer is a host behind a line of so many Mbit/s (root)")
    arguments = parser.parse_args()
    if arguments.peers < 2 or min(arguments.values) < arguments.peers or arguments.rounds < 1:
        parser.error("at least two peers, at least as many values, and at least one round")
    network: contextlib.AbstractContextManager[Lines | None] = contextlib.nullcontext()
    if arguments.namespaces is not None:
        if why := why_not():
            raise SystemExit(why)
        network = Lines(arguments.peers, arguments.namespaces)
        arguments.sides = [side for side in arguments.sides if side in (OURS_NETWORK, HIVEMIND)]
    try:
        for num_values in arguments.values:
            with network as lines, started(num_values, arguments, lines.hosts if lines else ()) as sides:
                records = measure(sides, arguments.rounds, lambda line: print(line, file=sys.stderr, flush=True))
            print(f"{arguments.peers} peers, {num_values:,} values, {arguments.rounds} rounds of each\n")
            print(report(records), end="\n\n", flush=True)
            for variant, record in records.items():
                results.keep(variant=variant.name, peers=arguments.peers, values=num_values, record=record)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print("digests: how many different results the peers of a round ended with, at most.")
    results.write(arguments)


if __name__ == "__main__":
    main()
