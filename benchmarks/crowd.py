"""How much of a crowd's work counts: the log's rounds and the peers' in virtual time, with durations in place of gradients and networks.

Peers' speeds differ many times, their messages take random times, and some of them leave in mid-round for good (``crowd_rounds.py``). The
same seed gives the same digest of all tables. How a round's bodies and its mean come to everybody is in ``crowd_gossip.py``.

Run it from the repository: ``.venv/bin/python benchmarks/crowd.py --help``.
"""

import argparse
import hashlib
import math
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results
from crowd_rounds import FASTEST_MICROBATCH_MS, MICROBATCH_SAMPLES, OPERATOR, UNEVEN, Log, Peer, World

from manta_swarm.protocol.exchange import Exchange
from manta_swarm.protocol.manifest import Manifest, Optimizer
from manta_swarm.protocol.signing import sha256


@dataclass(frozen=True)
class Outcome:
    """What came of a crowd."""

    num_peers: int
    rounds: int
    counted: float  # share of the samples of those who stayed
    computed: float  # share of their time
    by_age: Counter[int]
    open_ms: int
    round_ms: float
    lost: Counter[str]  # samples, by reason
    headers_dropped: Counter[str]
    digest: str
    took_s: float


def manifest_of(num_peers: int, rounds: int, aim_s: float, ratio: float, first_open_ms: int) -> Manifest:
    """Return the manifest of a run whose rounds last about ``aim_s`` if all its peers stay and compute all of the time."""
    slowest_ms = FASTEST_MICROBATCH_MS * ratio
    microbatches_a_ms = (1 / FASTEST_MICROBATCH_MS - 1 / slowest_ms) / math.log(ratio) if ratio > 1 else 1 / FASTEST_MICROBATCH_MS
    target = round(num_peers * microbatches_a_ms * aim_s * 1000 * MICROBATCH_SAMPLES)
    exchange = Exchange("int8", 100, 1, 1024, target, 2**40, 2**40, -32, first_open_ms, 100, 86_400_000)
    return Manifest(
        name="crowd",
        task="classification",
        dataset="digits",
        data_digest=sha256(b"data"),
        supernet="classifier-tiny",
        seed=0,
        algorithm="data-parallel",
        schedule="sandwich",
        num_rounds=rounds,
        microbatch_samples=MICROBATCH_SAMPLES,
        optimizer=Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0, "0.9", "0.5"),
        initial_state=sha256(b"initial"),
        exchange=exchange,
        reward_pool=1_000,
        costs=(),
        operators=(OPERATOR.public_key,),
        cohorts="token",
    )


def simulate(num_peers: int, arguments: argparse.Namespace) -> Outcome:
    start_s = time.monotonic()
    seed, rounds, ratio = f"{arguments.seed}:{num_peers}", arguments.rounds, arguments.ratio
    rng = random.Random(seed)
    world = World()
    log = Log(world, manifest_of(num_peers, rounds, arguments.aim, ratio, arguments.first_open_ms))
    for place in range(num_peers):
        microbatch_ms = FASTEST_MICROBATCH_MS * ratio ** rng.random()
        microbatches_ms = [microbatch_ms * part for part in (UNEVEN if arguments.uneven else (1.0,))]
        log.peers.append(Peer(world, log, place, microbatches_ms, random.Random(f"{seed}:{place}")))
    for peer in rng.sample(log.peers, round(arguments.leaving * num_peers)):
        peer.leaves_in = rng.randint(2, rounds)
    for peer in log.peers:
        world.after(rng.uniform(0, 1000), peer.begin)
    world.run()
    assert log.is_over
    stayed = {peer.key: peer for peer in log.peers if not peer.leaves_in}
    by_age: Counter[int] = Counter()
    for table in log.tables:
        for claim in table.claims:
            if claim.key in stayed:
                by_age[table.round.round - claim.round] += claim.microbatches * MICROBATCH_SAMPLES
    lost: Counter[str] = Counter()
    for peer in stayed.values():
        lost += peer.tally.lost
    del lost["the run was over"]  # that is nobody's loss
    digest = hashlib.sha256(b"".join(table.round.weights for table in log.tables)).hexdigest()
    return Outcome(
        num_peers,
        rounds,
        by_age.total() / (by_age.total() + lost.total()),
        statistics.mean(peer.tally.computed_ms / log.over_at for peer in stayed.values()),
        by_age,
        log.open_ms,
        log.over_at / rounds,
        lost,
        log.closing.dropped,
        digest,
        time.monotonic() - start_s,
    )


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[16, 100, 1000], help="(default: 16 100 1000)")
    parser.add_argument("--rounds", type=int, default=40, help="(default: %(default)s)")
    parser.add_argument(
        "--aim", type=float, default=45.0, help="seconds of a round that the target batch is made for (default: %(default)s)"
    )
    parser.add_argument(
        "--ratio", type=float, default=50.0, help="of the slowest peer's time for a microbatch to the fastest's (default: %(default)s)"
    )
    parser.add_argument("--first-open-ms", type=int, default=20_000, help="of the first round (default: %(default)s)")
    parser.add_argument("--leaving", type=float, default=0.2, help="share of peers that leave in mid-round (default: %(default)s)")
    parser.add_argument("--uneven", action="store_true", help="let a peer's microbatches differ as those of architectures do")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    arguments = parser.parse_args()
    print(f"{'peers':>6}{'rounds':>7}{'counted %':>11}{'computing %':>13}{'D at the end s':>16}{'a round s':>11}{'took s':>8}")
    for num_peers in arguments.peers:
        one = simulate(num_peers, arguments)
        figures = f"{one.counted:>11.2%}{one.computed:>13.1%}{one.open_ms / 1000:>16.1f}{one.round_ms / 1000:>11.1f}{one.took_s:>8.1f}"
        print(f"{one.num_peers:>6}{one.rounds:>7}{figures}")
        ages = ", ".join(f"{age}: {samples / one.by_age.total():.1%}" for age, samples in sorted(one.by_age.items()))
        print(f"       counted samples by age: {ages}")
        print(f"       samples lost: {dict(one.lost)}; headers that came to nothing: {dict(one.headers_dropped)}")
        found = {"counted": one.counted, "computed": one.computed, "round_ms": one.round_ms, "lost": sum(one.lost.values())}
        results.say(f"       digest {one.digest}", peers=one.num_peers, rounds=one.rounds, digest=one.digest, **found)
    results.write(arguments)


if __name__ == "__main__":
    main()
