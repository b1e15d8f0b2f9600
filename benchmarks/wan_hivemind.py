"""hivemind's own averager on the network of ``wan.py``: one flat group of all peers, the same vectors, in fp16.

Run as a program, which ``wan.py`` does, it is one peer, told what to do on its standard input, a JSON text a line. fp16 is the best of
its compressions that works: what it calls 8-bit returns full groups that have averaged nothing (hivemind 1.1.12 with NumPy 2.4 or newer).
What is timed is the all-reduce alone, from the first peer's start to the last peer's end; its matchmaking is over by then.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wan_network import SITES, Carried, Network

PORT = 31100
START_S, ROUND_S, STOP_S = 120.0, 400.0, 20.0
MAX_ERROR = 1e-3  # of a mean of values around 0.01: beyond it parts of the vector were not averaged
_MATCHMAKING_S = 5.0
_PART_S = 120.0  # for the next part of a vector to come
_TRIES = 3  # of the first round, in which connections are made


@dataclass(frozen=True, slots=True)
class Averaged:
    """Rounds of hivemind's averager over one vector and one link."""

    rounds: int
    failures: int  # that raised, or averaged only parts of the vector
    seconds: float  # of an all-reduce, median
    up_mb: float  # over a site's link and round, mean of the sites
    down_mb: float


# The benchmark's side.


class Peer:
    """A process with one of hivemind's peers."""

    def __init__(self, place: int, network: Network, initial_peers: Sequence[str], sizes: Sequence[int]) -> None:
        """Start it on a host of the network; what it logs goes to a file."""
        host, num_peers = network.hosts[place], len(network.hosts)
        given = {"place": place, "address": host.address, "initial_peers": initial_peers, "num_peers": num_peers, "sizes": sizes}
        self._name = host.namespace
        own = network.directory / f"hivemind-{place}"
        own.mkdir()
        self._log = own / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                host.command(sys.executable, __file__, json.dumps(given)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(own)},
            )
        self._read = b""

    def tell(self, what: Any) -> None:
        """Send it a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    def answer(self, timeout_s: float) -> Any:
        """Return what it answers."""
        assert self._process.stdout is not None
        end_s = time.monotonic() + timeout_s
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end_s - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not data:
                end = "does not answer" if not ready else "has ended"
                raise SystemExit(f"hivemind's peer {self._name} {end}:\n{self._log.read_text(errors='replace')[-2000:]}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def stop(self) -> None:
        """End it with all that it has started."""
        with contextlib.suppress(OSError):
            self.tell(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def peers(network: Network, sizes: Sequence[int]) -> Iterator[list[Peer]]:
    """Start a peer on each host, one after the other, while the links are fast; end them whatever happens."""
    found: list[Peer] = []
    addresses: list[str] = []
    try:
        network.shape(None)
        for place in range(len(network.hosts)):
            found.append(Peer(place, network, addresses[:2], sizes))
            addresses.append(found[-1].answer(START_S)["address"])
        yield found
    finally:
        for peer in found:
            with contextlib.suppress(OSError):
                peer.tell(None)
        for peer in found:
            peer.stop()


def measure(
    network: Network, sizes: Mapping[str, int], mbits: Sequence[float], num_rounds: int, say: Callable[[str], None]
) -> dict[tuple[str, float], Averaged]:
    """Return what the averager needs for each vector (by name) and link; first rounds are not counted."""
    found = {}
    with peers(network, list(sizes.values())) as group:
        for name, size in sizes.items():
            for _ in range(_TRIES):
                first = _round(network, group, size)
                say(f"hivemind, {name}, a first round: {_said(first)}")
                if not isinstance(first, str):
                    break
            for mbit in mbits:
                network.shape(mbit)
                rounds = []
                for number in range(num_rounds):
                    rounds.append(_round(network, group, size))
                    say(f"hivemind, {name}, {mbit:g} Mbit/s: round {number + 1} of {num_rounds}: {_said(rounds[-1])}")
                found[name, mbit] = _averaged(rounds)
            network.shape(None)
    return found


def _round(network: Network, group: Sequence[Peer], size: int) -> tuple[float, Carried] | str:
    """Return an all-reduce's seconds and what the links carried; or why it failed."""
    for peer in group:
        peer.tell({"prepare": size})
    for peer in group:
        peer.answer(START_S)
    before = network.carried()
    for peer in group:
        peer.tell({"step": size})
    answers = [peer.answer(ROUND_S + START_S) for peer in group]
    carried = network.carried() - before
    for said in answers:
        if "error" in said:
            return str(said["error"])
    error = max(said["max_error"] for said in answers)
    if error > MAX_ERROR:
        return f"a success that is none: the means differ by {error:.1e} from the mean"
    return max(said["end_s"] for said in answers) - min(said["start_s"] for said in answers), carried


def _said(round_: tuple[float, Carried] | str) -> str:
    return round_ if isinstance(round_, str) else f"{round_[0]:.2f} s"


def _averaged(rounds: Sequence[tuple[float, Carried] | str]) -> Averaged:
    good = [each for each in rounds if not isinstance(each, str)]
    seconds = [seconds for seconds, _ in good] or [float("nan")]
    ups, downs = ([sum(getattr(carried, way).values()) / len(SITES) / 1e6 for _, carried in good] for way in ("up", "down"))
    up_mb, down_mb = (statistics.mean(values or [float("nan")]) for values in (ups, downs))
    return Averaged(len(good), len(rounds) - len(good), statistics.median(seconds), up_mb, down_mb)


def as_json(found: Mapping[tuple[str, float], Averaged]) -> list[dict[str, Any]]:
    """Return all of it for a JSON file."""
    return [{"vector": name, "mbit": mbit, **asdict(averaged)} for (name, mbit), averaged in found.items()]


# The peer's side: a process of its own.


def serve(place: int, address: str, initial_peers: Sequence[str], num_peers: int, sizes: Sequence[int]) -> None:
    """Be a peer until it is told to stop, or its standard input ends."""
    import multiprocessing
    import tempfile

    import hivemind
    import torch
    from hivemind.averaging.averager import DecentralizedAverager
    from hivemind.compression import Float16Compression
    from hivemind.p2p import P2P

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    P2P._UNIX_SOCKET_PREFIX = f"/unix{tempfile.gettempdir()}/"  # inherited by the processes that hivemind forks
    multiprocessing.set_start_method("fork", force=True)  # the only one that hivemind works with
    shared = multiprocessing.Array("d", 2)  # start, end: measured in the forked averager

    class Timed(DecentralizedAverager):  # type: ignore[misc]
        async def _run_allreduce_inplace_(self, *args: Any, **kwargs: Any) -> None:
            shared[0] = time.monotonic()
            await super()._run_allreduce_inplace_(*args, **kwargs)
            shared[1] = time.monotonic()

    def vector_of(seed: int, size: int) -> Any:
        return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 1e-2

    dht = hivemind.DHT(initial_peers=list(initial_peers), host_maddrs=[f"/ip4/{address}/tcp/{PORT}"], start=True)
    averagers = {
        size: Timed(
            [torch.zeros(size)],
            dht,
            start=True,
            prefix=f"wan{size}",
            compression=Float16Compression(),
            target_group_size=num_peers,
            min_group_size=num_peers,
            min_matchmaking_time=_MATCHMAKING_S,
            request_timeout=_MATCHMAKING_S / 2,
            allreduce_timeout=ROUND_S,
            sender_timeout=_PART_S,
            reducer_timeout=2 * _PART_S,
            allow_state_sharing=False,
        )
        for size in sizes
    }
    print(json.dumps({"address": next(str(each) for each in dht.get_visible_maddrs() if address in str(each))}), file=answers)
    try:
        for line in sys.stdin:
            if (told := json.loads(line)) is None:
                break
            if (size := told.get("prepare")) is not None:
                with averagers[size].get_tensors() as tensors:
                    tensors[0].copy_(vector_of(place, size))
                print(json.dumps({}), file=answers)
                continue
            size = told["step"]
            try:
                averagers[size].step(timeout=ROUND_S, allow_retries=False)
            except Exception as error:  # noqa: BLE001 - whatever hivemind raises, the round counts as failed
                print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
                continue
            exact = sum(vector_of(each, size).double() for each in range(num_peers)) / num_peers
            with averagers[size].get_tensors() as tensors:
                max_error = float((tensors[0].double() - exact).abs().max())
            print(json.dumps({"start_s": shared[0], "end_s": shared[1], "max_error": max_error}), file=answers)
    finally:
        for averager in averagers.values():
            averager.shutdown()
        dht.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", type=json.loads, metavar="JSON", help="the arguments of serve, by name")
    serve(**parser.parse_args().given)
