"""The recursive reduce against hivemind's own flat averager: time and bytes of a round, the same vectors at the same number of peers.

Every peer is a process of its own on loopback, with its own libp2p daemon. One run alternates: a round of each variant, then the next
round of each, so that a busy moment of the machine hits all alike. What is timed is the reduce alone, from the first peer's start to
the last peer's end; matchmaking is over by then, on both sides. Ours ends with the mean, decoded and digested, at every peer.

Run it from the repository: ``.venv/bin/python benchmarks/reduce.py --help``.
"""

import argparse
import asyncio
import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from protocol.errors import MantaError
from protocol.signing import Identity, PublicKey
from swarm.allreduce import Branch, Leaf, Part, Reduction
from swarm.node import Node

LISTEN = "/ip4/127.0.0.1/tcp/0"
START_TIMEOUT_S = 120.0
ROUND_TIMEOUT_S = 60.0
MAX_ERROR = 1e-3  # of a mean of values around 0.01: beyond it parts of the vector were not averaged
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to average."""

    name: str
    codecs: tuple[str, ...]  # ours: of the cohort, of the swarm; hivemind's: one
    num_cohorts: int = 1
    is_ours: bool = True


VARIANTS = (
    Variant("hivemind flat, uncompressed", ("none",), is_ours=False),
    Variant("ours flat, fp32/fp32", ("fp32", "fp32")),
    Variant("ours in 2 cohorts, fp32/fp32", ("fp32", "fp32"), 2),
    Variant("hivemind flat, Float16", ("fp16",), is_ours=False),
    Variant("ours flat, fp32/fp16", ("fp32", "fp16")),
    Variant("ours in 2 cohorts, fp32/fp16", ("fp32", "fp16"), 2),
    Variant("ours in 2 cohorts, fp16/fp16", ("fp16", "fp16"), 2),
)
REFERENCES = {"fp32": VARIANTS[0], "fp16": VARIANTS[3]}  # by the codec of the result


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a peer reports of its part in a round; times by the monotonic clock that all processes share."""

    start_s: float
    end_s: float
    sent_bytes: int
    crossing_bytes: int  # of them to peers of another cohort, where peers are split in two; -1: not counted
    digest: str
    max_error: float  # against the exact mean in float64


@dataclass
class Record:
    """The rounds of one variant."""

    times_s: list[float] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)  # a peer, on average
    crossing_bytes: list[float] = field(default_factory=list)  # a cohort, on average
    digests: list[int] = field(default_factory=list)  # how many different ones a round ended with
    max_error: float = 0.0
    failures: int = 0
    wrong: int = 0  # reported as a success, and parts of the vector were not averaged

    def add(self, outcomes: list[Outcome]) -> None:
        if max(o.max_error for o in outcomes) > MAX_ERROR:
            self.wrong += 1
            return
        self.times_s.append(max(o.end_s for o in outcomes) - min(o.start_s for o in outcomes))
        self.sent_bytes.append(statistics.mean(o.sent_bytes for o in outcomes))
        if outcomes[0].crossing_bytes >= 0:
            self.crossing_bytes.append(sum(o.crossing_bytes for o in outcomes) / 2)
        self.digests.append(len({o.digest for o in outcomes}))
        self.max_error = max(self.max_error, *(o.max_error for o in outcomes))


def vector_of(peer: int, num_values: int) -> torch.Tensor:
    """Return what a peer brings: as gradients are, normal and small."""
    return torch.randn(num_values, generator=torch.Generator().manual_seed(peer)) * 1e-2


def exact_mean(num_peers: int, num_values: int) -> torch.Tensor:
    return torch.stack([vector_of(peer, num_values).double() for peer in range(num_peers)]).mean(0)


# One of our peers.


class CountingEndpoint:
    """The node as the reduce sees it, with the payload bytes counted by receiver."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.key = node.key
        self.sent_bytes: dict[PublicKey, int] = {}

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float) -> bytes:
        self.sent_bytes[key] = self.sent_bytes.get(key, 0) + len(request)
        return await self.node.call(key, method, request, timeout_s=timeout_s)

    async def serve(self, method: str, handler: Any) -> None:
        await self.node.serve(method, handler)

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        raise NotImplementedError

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        raise NotImplementedError


async def serve_our_peer(pipe: Connection, peer: int, num_peers: int, num_values: int, directory: Path) -> None:
    """Answer the commands of the main process until it says stop, or is gone."""
    identity = Identity(secrets.token_bytes(32))
    path = directory / f"peer-{peer}.key"
    path.write_bytes(identity.to_libp2p())
    loop = asyncio.get_running_loop()
    receive = functools.partial(loop.run_in_executor, None, pipe.recv)
    known = await receive()
    node = await Node.start(identity, path, listen=[LISTEN], initial_peers=known)
    try:
        vector, exact = vector_of(peer, num_values), exact_mean(num_peers, num_values)
        active: list[Reduction] = []

        async def on_part(sender: PublicKey, data: bytes) -> bytes:
            active[-1].receive(sender, Part.open(data))
            return b""

        await node.serve("part", on_part)
        pipe.send((node.key, await node.addresses()))
        while (command := await receive()) is not None:
            attempt, root, codecs, far = command
            endpoint = CountingEndpoint(node)
            active[:] = [Reduction(endpoint, attempt, root, codecs, vector)]
            pipe.send("ready")
            await receive()
            pipe.send(await run_our_round(active[0], endpoint, far, exact))
    finally:
        await node.close()


async def run_our_round(reduction: Reduction, endpoint: CountingEndpoint, far: set[PublicKey], exact: torch.Tensor) -> Outcome | str:
    start_s = time.monotonic()
    try:
        async with asyncio.timeout(ROUND_TIMEOUT_S):
            mean = await reduction.run()
    except (MantaError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    end_s = time.monotonic()
    sent = endpoint.sent_bytes
    crossing = sum(size for key, size in sent.items() if key in far)
    return Outcome(start_s, end_s, sum(sent.values()), crossing, mean.digest.hex(), float((mean.values.double() - exact).abs().max()))


# One of hivemind's peers.


def serve_hivemind_peer(pipe: Connection, peer: int, num_peers: int, num_values: int, part_bytes: int, directory: Path) -> None:
    """Answer the commands of the main process until it says stop, or is gone."""
    import hivemind
    from hivemind.averaging.averager import DecentralizedAverager
    from hivemind.compression import Float16Compression, NoCompression
    from hivemind.p2p import P2P
    from hivemind.proto import averaging_pb2

    P2P._UNIX_SOCKET_PREFIX = f"/unix{directory}/"  # inherited by the processes that hivemind forks
    multiprocessing.set_start_method("fork", force=True)  # the only one that hivemind works with
    shared = multiprocessing.Array("d", 3, lock=True)  # start, end, bytes: measured in the forked averager

    class Timed(DecentralizedAverager):  # type: ignore[misc]
        async def _run_allreduce_inplace_(self, *args: Any, **kwargs: Any) -> None:
            shared[0], shared[2] = time.monotonic(), 0.0
            await super()._run_allreduce_inplace_(*args, **kwargs)
            shared[1] = time.monotonic()

    send_protobuf = P2P.send_protobuf

    async def counted(protobuf: Any, writer: Any) -> None:
        if isinstance(protobuf, averaging_pb2.AveragingData):
            shared[2] += protobuf.ByteSize()
        await send_protobuf(protobuf, writer)

    P2P.send_protobuf = staticmethod(counted)
    vector, exact = vector_of(peer, num_values), exact_mean(num_peers, num_values)
    dht = hivemind.DHT(initial_peers=pipe.recv(), host_maddrs=[LISTEN], start=True)
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
        pipe.send((b"", [str(maddr) for maddr in dht.get_visible_maddrs()]))
        while (command := pipe.recv()) is not None:
            averager = averagers[command]
            with averager.get_tensors() as tensors:
                tensors[0].copy_(vector)
            pipe.send("ready")
            pipe.recv()
            try:
                averager.step(timeout=ROUND_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - whatever hivemind raises, the round counts as failed
                pipe.send(f"{type(error).__name__}: {error}")
                continue
            with averager.get_tensors() as tensors:
                digest = hashlib.sha256(tensors[0].numpy().tobytes()).hexdigest()
                max_error = float((tensors[0].double() - exact).abs().max())
            pipe.send(Outcome(shared[0], shared[1], int(shared[2]), -1, digest, max_error))
    finally:
        for averager in averagers.values():
            averager.shutdown()
        dht.shutdown()


def run_peer(pipe: Connection, is_ours: bool, peer: int, num_peers: int, num_values: int, part_bytes: int, directory: Path) -> None:
    """The main function of a peer's process. It ends with everything it started, at the latest when the main process is gone."""
    os.setsid()
    torch.set_num_threads(1)
    try:
        if is_ours:
            asyncio.run(serve_our_peer(pipe, peer, num_peers, num_values, directory))
        else:
            serve_hivemind_peer(pipe, peer, num_peers, num_values, part_bytes, directory)
    except EOFError:
        shutil.rmtree(directory, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # the main process is gone


# The main process.


class Peers:
    """The processes of one side, ours or hivemind's."""

    def __init__(self, is_ours: bool, arguments: argparse.Namespace, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.keys: list[PublicKey] = []
        self._pipes: list[Connection] = []
        self._processes = []
        for peer in range(arguments.peers):
            ours, theirs = context.Pipe()
            given = (theirs, is_ours, peer, arguments.peers, arguments.values, arguments.hivemind_part_bytes, directory)
            process = context.Process(target=run_peer, args=given, name=f"{'ours' if is_ours else 'hivemind'}-{peer}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def connect(self) -> None:
        """Let the peers find each other, one after the other."""
        addresses: list[str] = []
        for pipe in self._pipes:
            pipe.send(addresses)
            key, found = self._receive(pipe, START_TIMEOUT_S)
            self.keys.append(key)
            addresses = [*addresses, found[0]]

    def round(self, commands: list[Any]) -> list[Outcome | str]:
        """Give each peer its command, wait until all are ready, and let them go together."""
        for pipe, command in zip(self._pipes, commands, strict=True):
            pipe.send(command)
        for pipe in self._pipes:
            self._receive(pipe, ROUND_TIMEOUT_S)
        for pipe in self._pipes:
            pipe.send("go")
        return [self._receive(pipe, 2 * ROUND_TIMEOUT_S) for pipe in self._pipes]

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
def started(arguments: argparse.Namespace) -> Iterator[dict[bool, Peers]]:
    """Start both sides; end them whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="reduce-", dir="/tmp"))  # short: sockets are in it
    sides: dict[bool, Peers] = {}
    try:
        for is_ours in (True, False):
            sides[is_ours] = Peers(is_ours, arguments, directory)
            sides[is_ours].connect()
        yield sides
    finally:
        for side in sides.values():
            side.stop()
        shutil.rmtree(directory, ignore_errors=True)


def cohorts_of(keys: list[PublicKey], num_cohorts: int) -> list[list[PublicKey]]:
    cuts = [len(keys) * i // num_cohorts for i in range(num_cohorts + 1)]
    return [keys[lo:hi] for lo, hi in itertools.pairwise(cuts)]


def commands_of(variant: Variant, keys: list[PublicKey]) -> list[Any]:
    """Return what each peer is told for one round."""
    if not variant.is_ours:
        return [variant.codecs[0]] * len(keys)
    root = Branch(tuple(Branch(tuple(Leaf(key, 1) for key in cohort)) for cohort in cohorts_of(keys, variant.num_cohorts)))
    halves = cohorts_of(keys, 2)  # also a flat group is asked how much it would send from one half of the peers to the other
    attempt = secrets.token_bytes(20)
    return [(attempt, root, variant.codecs, {other for half in halves if key not in half for other in half}) for key in keys]


def measure(sides: dict[bool, Peers], num_rounds: int, say: Callable[[str], None]) -> dict[Variant, Record]:
    """Run the rounds; the first of each variant warms up and is not kept."""
    records = {variant: Record() for variant in VARIANTS}
    for round_ in range(num_rounds + 1):
        say(f"round {round_} of {num_rounds}")
        for variant in VARIANTS:
            side = sides[variant.is_ours]
            outcomes = side.round(commands_of(variant, side.keys))
            failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
            if failures:
                records[variant].failures += 1
                say(f"{variant.name}: a round failed: {failures[0]}")
            elif round_:
                records[variant].add([outcome for outcome in outcomes if isinstance(outcome, Outcome)])
    return records


def report(records: dict[Variant, Record], num_peers: int) -> str:
    lines = [f"{'':32}{'median s':>10}{'min s':>8}{'sent MB':>9}{'across MB':>11}{'digests':>9}{'max error':>11}"]
    for variant, record in records.items():
        if not record.times_s:
            lines.append(f"{variant.name:32}{_not_counted(record)}")
            continue
        across = f"{statistics.mean(record.crossing_bytes) / 1e6:.2f}" if record.crossing_bytes else _flat_crossing(record, num_peers)
        sent = statistics.mean(record.sent_bytes) / 1e6
        lines.append(
            f"{variant.name:32}{statistics.median(record.times_s):10.3f}{min(record.times_s):8.3f}{sent:9.2f}{across:>11}"
            f"{max(record.digests):9}{record.max_error:11.1e}{_not_counted(record)}"
        )
    lines += ["", "ratios, ours / hivemind's (below 1: ours is faster, or sends less)"]
    for variant, record in records.items():
        reference = records[REFERENCES[variant.codecs[-1]]] if variant.is_ours else None
        if reference and reference.times_s and record.times_s:
            time_ratio = statistics.median(record.times_s) / statistics.median(reference.times_s)
            bytes_ratio = statistics.mean(record.sent_bytes) / statistics.mean(reference.sent_bytes)
            lines.append(f"{variant.name:32} time {time_ratio:5.2f}   bytes {bytes_ratio:5.2f}")
    lines += ["", _bits(records, num_peers)]
    return "\n".join(lines)


def _not_counted(record: Record) -> str:
    failed = f"  {record.failures} failed" if record.failures else ""
    return failed + (f"  {record.wrong} wrong, though reported as a success" if record.wrong else "")


def _flat_crossing(record: Record, num_peers: int) -> str:
    """hivemind's peers send every other peer as much: what one half of them sends to the other half."""
    half = num_peers // 2
    return f"{statistics.mean(record.sent_bytes) * half * (num_peers - half) / (num_peers - 1) / 1e6:.2f}*"


def _bits(records: dict[Variant, Record], num_peers: int) -> str:
    ours = max((n for variant, record in records.items() if variant.is_ours for n in record.digests), default=0)
    theirs = [n for variant, record in records.items() if not variant.is_ours for n in record.digests]
    return (
        f"digests: how many different results {num_peers} peers end one round with, at most. Ours: {ours}. hivemind's: "
        f"{min(theirs, default=0)} to\n{max(theirs, default=0)}; "
        "its peers do not end with the same bits, as each adds a delta of its own.\n"
        "sent: counted where a message is handed to the daemon, a peer on average. across: what one half of the peers sends to the other\n"
        "half, cohort to cohort (* computed: every peer sends as much to each)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1_000_000, help="float32 values in the vector (default: %(default)s)")
    parser.add_argument("--peers", type=int, default=4, help="peers of each side, an even number (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, of each variant (default: %(default)s)")
    parser.add_argument("--hivemind-part-bytes", type=int, default=2**19, help="hivemind's part_size_bytes (default: its own, %(default)s)")
    arguments = parser.parse_args()
    if arguments.peers < 2 or arguments.peers % 2 or arguments.values < arguments.peers or arguments.rounds < 1:
        parser.error("an even number of peers, at least as many values, and at least one round")
    try:
        with started(arguments) as sides:
            records = measure(sides, arguments.rounds, lambda line: print(line, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(f"{arguments.peers} peers, {arguments.values:,} values, {arguments.rounds} rounds of each\n")
    print(report(records, arguments.peers))


if __name__ == "__main__":
    main()
