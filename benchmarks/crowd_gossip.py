"""How long until a crowd has a round, and who sends how much for it: spread from peer to peer, or all from the log. In virtual time.

What is told to whom and asked of whom decides ``network.gossip_state.GossipState``, the peers' own; links, turns at the log and the pieces
of a mean are as in ``network.gossip`` and ``peer.sync.spread``. Offers are not signed, and everybody knows random others. A peer sends one
thing after the other over its line; members of a cohort reach each other over a local network, whose bytes are counted by themselves. The
log gives to all who ask over its own line. Times count from the close of the headers; the commit comes ``crowd_rounds.COMMIT_MS`` and more
later.

Run it from the repository: ``.venv/bin/python benchmarks/crowd_gossip.py --help``.
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import results
from crowd_rounds import COMMIT_MS, ROW_MS, World

from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.codec.vectors import vector_group_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.gossip import FAR_LINKS, FAR_LINKS_BESIDE_NEAR, NEAR_LINKS, PULLS_AT_ONCE
from manta_swarm.network.gossip_state import GossipState
from manta_swarm.network.pushes import Push, ShownOffer
from manta_swarm.peer.sync.spread import LOG_BYTES, LOG_FIRST
from manta_swarm.protocol.affinity import FAR
from manta_swarm.protocol.signing import PublicKey, sha256

ROUND = 1
SIZES = {"tiny": 226_000, "2.9M": 2_900_000}  # weights
REQUEST_BYTES, ANSWER_BYTES, ROOT_BYTES, ROW_BYTES = 150, 30, 34, 128  # a call's least, a push's answer, and a part of each
OFFER_BYTES = 420  # and 34 for each claim
FIND_AGAIN_MS = 400  # a piece that a source has not got yet
CALLS_A_SOURCE, CALLS = 4, 8  # for the pieces of one blob
LAN_MBIT, LAN_MS = 1000, 0.3
TABLE, MEAN = sha256(b"table"), sha256(b"mean")


class Flat:
    """Peers of whom nobody measured how far they are."""

    def distance_us(self, _key: PublicKey) -> int:
        return FAR


class Offers(GossipState):
    """A gossip state whose offers are not signed."""

    def _opened(self, offer: Any) -> tuple[Any, Any]:
        return offer.opened, offer.inclusion_promise

    def _size_of(self, shown: ShownOffer) -> int:
        return shown.offer.num_bytes


@dataclass
class Line:
    """A node's line to the others: what is sent goes one after the other, what comes as well."""

    up_mbit: float
    down_mbit: float
    up_free: float = 0.0
    down_free: float = 0.0
    sent: int = 0
    sent_near: int = 0


class Net:
    """Bytes on their way."""

    def __init__(self, world: World, latency_ms: float) -> None:
        self.world, self.latency_ms = world, latency_ms

    def send(self, sender: "Node", receiver: "Node", num_bytes: int, then: Callable[[], None]) -> None:
        """Call ``then`` when so many bytes have arrived."""
        now = self.world.now
        if sender.cohort is not None and sender.cohort == receiver.cohort:
            sender.line.sent_near += num_bytes
            self.world.after(LAN_MS + num_bytes * 8 / LAN_MBIT / 1000, then)
            return
        line, other = sender.line, receiver.line
        line.sent += num_bytes
        line.up_free = max(line.up_free, now) + num_bytes * 8 / line.up_mbit / 1000
        began = line.up_free + self.latency_ms - num_bytes * 8 / other.down_mbit / 1000
        other.down_free = max(other.down_free, began) + num_bytes * 8 / other.down_mbit / 1000
        self.world.after(max(other.down_free, line.up_free + self.latency_ms) - now, then)


@dataclass
class Node:
    """The log, or what a peer and it have in common."""

    line: Line
    cohort: int | None = None
    pieces: dict[bytes, set[int]] = field(default_factory=dict)  # of each blob, those that are here


@dataclass
class Wanted:
    """A blob that a peer is getting piece by piece."""

    sizes: Sequence[int]
    missing: list[int]
    sources: dict[PublicKey, None] = field(default_factory=dict)
    asked: Counter[PublicKey] = field(default_factory=Counter)
    rests: dict[tuple[PublicKey, int], float] = field(default_factory=dict)
    log_from: float = math.inf  # when the log may be asked, if nobody else is ready to give
    log_asked: int = 0


class Peer(Node):
    """One peer's part in one round."""

    def __init__(self, crowd: "Crowd", number: int) -> None:
        super().__init__(Line(crowd.up_mbit, crowd.down_mbit), number // crowd.cohort_size)
        self.crowd, self.key = crowd, PublicKey(sha256(b"peer %d" % number))
        self.rng = random.Random(number)
        self.gossip_state = Offers(
            b"", frozenset(), Flat(), max_rows=1024, body_bytes=crowd.body_bytes, near_timeout_s=timeouts.NEAR_GETS_S
        )
        self.gossip_state.budget_bytes = 2**60 if crowd.by_bodies else 0
        self.pulling = 0
        self.pushing: set[PublicKey] = set()
        self.wanted: dict[bytes, Wanted] = {}
        self.done_ms: dict[bytes, float] = {}
        self.hops = 0  # of the piece of a mean, or table, that was passed on most often before it came here
        self.bodies_ms = math.inf  # when all were here
        self.is_silent = False
        self.wakes_at = math.inf

    # Bodies: as ``network.gossip``.

    def close_headers(self, offer: Any, near: Sequence["Peer"], far: Sequence["Peer"]) -> None:
        if self.is_silent:
            return
        self.gossip_state.add_own(offer)
        self.gossip_state.close_headers(ROUND)
        for others, is_near in ((near, True), (far, False)):
            for other in others:
                self.gossip_state.link(other.key, is_near=is_near, is_invited=False)
        self.go_on()

    def go_on(self) -> None:
        world = self.crowd.world
        for root, key in self.gossip_state.take_heard():
            self.heard_of(root, key)
        while self.pulling < PULLS_AT_ONCE and (pull := self.gossip_state.next_pull(world.now / 1000)) is not None:
            self.pulling += 1
            self.ask_for_body(pull.root, [*pull.near, *pull.far])
        for key in self.gossip_state.to_tell:
            if key not in self.pushing and (push := self.gossip_state.next_push(key)) is not None:
                self.push(key, push)
        wakes_at = self.gossip_state.wakes_at(world.now / 1000)
        if wakes_at is not None and (wakes_at * 1000 < self.wakes_at or self.wakes_at <= world.now):
            self.wakes_at = wakes_at * 1000
            world.after(self.wakes_at - world.now + 0.001, self.go_on)

    def push(self, key: PublicKey, push: Push) -> None:
        other, crowd = self.crowd.peers[key], self.crowd
        offers = sum(shown.offer.num_bytes for shown in push.offers)
        num_bytes = REQUEST_BYTES + offers + ROOT_BYTES * (len(push.held) + len(push.coming))
        self.pushing.add(key)

        def arrived() -> None:
            if not other.is_silent:
                other.gossip_state.link(self.key, is_near=self.cohort == other.cohort, is_invited=True)
                other.gossip_state.take(self.key, push, crowd.world.now / 1000)
                other.go_on()
            crowd.net.send(other, self, ANSWER_BYTES, answered)

        def answered() -> None:
            self.pushing.discard(key)
            self.go_on()

        crowd.net.send(self, other, num_bytes, arrived)

    def ask_for_body(self, root: bytes, sources: list[PublicKey]) -> None:
        crowd, key = self.crowd, sources[0]
        other = crowd.peers[key]
        is_over = False

        def asked() -> None:
            if not other.is_silent:
                crowd.net.send(other, self, crowd.body_bytes, came)

        def came() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self.pulling -= 1
                self.gossip_state.hold(root)
                if self.gossip_state.num_held(ROUND) == crowd.rows:
                    self.bodies_ms = crowd.world.now
                self.go_on()

        def overdue() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                others = [each for each in self.gossip_state.sources(root) if each != key]
                if others:
                    self.ask_for_body(root, [*others[1:], others[0]])
                else:
                    self.pulling -= 1
                    self.gossip_state.failed(root)

        crowd.net.send(self, other, REQUEST_BYTES, asked)
        if other.is_silent:
            crowd.world.after(1000, overdue)

    # The table and the mean: as ``peer.sync.spread`` and ``network.fetching``.

    def want(self, root: bytes, sizes: Sequence[int]) -> None:
        if self.is_silent:
            return
        wanted = self.wanted[root] = Wanted(sizes, self.rng.sample(range(len(sizes)), len(sizes)))
        wanted.sources.update(dict.fromkeys(self.gossip_state.sources(root)))
        place = int.from_bytes(sha256(root + self.key)[:8], "big") / 2**64 * len(self.crowd.peers)
        first = max(LOG_FIRST, LOG_BYTES // sum(sizes))
        turn_ms = 0.0 if place < first or not self.crowd.by_gossip else timeouts.TURN_S * 1000 * (1 + math.log2(place / first))
        wanted.log_from = self.crowd.world.now + turn_ms
        self.crowd.world.after(turn_ms, lambda: self.ask(root))
        self.ask(root)

    def heard_of(self, root: bytes, key: PublicKey) -> None:
        wanted = self.wanted.get(root)
        if wanted is not None and root not in self.done_ms:
            wanted.sources[key] = None
            wanted.rests = {place: until for place, until in wanted.rests.items() if place[0] != key}
            self.ask(root)

    def ask(self, root: bytes) -> None:
        """Ask for pieces: of who is asked least, and the log only for what nobody else is ready to give."""
        wanted, now = self.wanted[root], self.crowd.world.now
        for place in list(wanted.missing):
            if wanted.asked.total() + wanted.log_asked >= CALLS:
                return
            ready = [key for key in wanted.sources if wanted.rests.get((key, place), 0.0) <= now and not self.crowd.peers[key].is_silent]
            free = [key for key in ready if wanted.asked[key] < CALLS_A_SOURCE]
            if free:
                self.ask_peer(root, wanted, min(free, key=lambda key: wanted.asked[key]), place)
            elif not ready and wanted.log_from <= now and wanted.log_asked < CALLS_A_SOURCE:
                self.ask_log(root, wanted, place)

    def ask_peer(self, root: bytes, wanted: Wanted, key: PublicKey, place: int) -> None:
        crowd, other = self.crowd, self.crowd.peers[key]
        wanted.missing.remove(place)
        wanted.asked[key] += 1

        def asked() -> None:
            has_it = place in other.pieces.get(root, ())
            crowd.net.send(other, self, wanted.sizes[place] if has_it else ANSWER_BYTES, lambda: came(has_it))

        def came(has_it: bool) -> None:
            wanted.asked[key] -= 1
            wanted.asked += Counter()
            if has_it:
                self.hops = max(self.hops, other.hops + 1)
                self.has(root, wanted, place)
                return
            wanted.missing.append(place)
            wanted.rests[key, place] = crowd.world.now + FIND_AGAIN_MS
            crowd.world.after(FIND_AGAIN_MS, lambda: self.ask(root))
            self.ask(root)

        crowd.net.send(self, other, REQUEST_BYTES, asked)

    def ask_log(self, root: bytes, wanted: Wanted, place: int) -> None:
        wanted.missing.remove(place)
        wanted.log_asked += 1

        def came() -> None:
            wanted.log_asked -= 1
            self.hops = max(self.hops, 1)
            self.has(root, wanted, place)

        log = self.crowd.log
        self.crowd.net.send(self, log, REQUEST_BYTES, lambda: self.crowd.net.send(log, self, wanted.sizes[place], came))

    def has(self, root: bytes, wanted: Wanted, place: int) -> None:
        here = self.pieces.setdefault(root, set())
        here.add(place)
        count = len(wanted.sizes)
        if len(here) == count:
            self.done_ms[root] = self.crowd.world.now
        if self.crowd.by_gossip and len(here) in {1, count, *(-(-count * quarter // 4) for quarter in (1, 2, 3))}:
            self.gossip_state.hold(root)
            self.go_on()
        self.ask(root)


class Crowd:
    """A round of some peers."""

    def __init__(self, arguments: argparse.Namespace, num_weights: int, way: str) -> None:
        self.world = World()
        self.net = Net(self.world, arguments.latency_ms)
        self.up_mbit, self.down_mbit, self.cohort_size = arguments.up, arguments.down, arguments.cohort
        self.by_bodies, self.by_gossip = way == "bodies", way != "log"
        self.body_bytes = body_num_bytes(arguments.codec, num_weights)
        self.rows = -(-arguments.peers // arguments.cohort)
        self.log = Node(Line(arguments.log, arguments.log))
        found = [Peer(self, number) for number in range(arguments.peers)]
        self.peers = {peer.key: peer for peer in found}
        rng = random.Random(arguments.seed)
        for peer in rng.sample(found, round(arguments.silent * len(found))):
            peer.is_silent = True
        self.others = [peer for peer in found if not peer.is_silent]
        offers = [_offer_of(number, arguments.cohort) for number in range(self.rows)]
        for peer in found:
            near = [each for each in found[peer.cohort * self.cohort_size :][: self.cohort_size] if each is not peer]
            far = rng.sample(found, FAR_LINKS_BESIDE_NEAR if near else FAR_LINKS)
            far = [each for each in far if each.cohort != peer.cohort]
            self.world.after(
                rng.uniform(0, 100), lambda peer=peer, near=near[:NEAR_LINKS], far=far: peer.close_headers(offers[peer.cohort], near, far)
            )
        commit_ms = COMMIT_MS + ROW_MS * self.rows
        parts = (TABLE, [self.rows * ROW_BYTES]) if self.by_bodies else (MEAN, vector_group_sizes(num_weights))
        for peer in found:
            self.world.after(commit_ms + rng.uniform(0, 100), lambda peer=peer: peer.want(*parts))
        self.what = parts[0]
        self.world.run()


def _offer_of(number: int, cohort_size: int) -> Any:
    name = sha256(b"body %d" % number)
    return SimpleNamespace(
        contribution=SimpleNamespace(digest=sha256(name)),
        opened=SimpleNamespace(body=name),
        inclusion_promise=SimpleNamespace(round=ROUND),
        num_bytes=OFFER_BYTES + 34 * cohort_size,
    )


def report(way: str, crowd: Crowd, took_s: float) -> tuple[str, dict[str, float]]:
    """Return a line about what came of it, and its figures; a peer that never had all is said to have needed for ever."""
    times = sorted(max(peer.done_ms.get(crowd.what, math.inf), peer.bodies_ms if crowd.by_bodies else 0.0) for peer in crowd.others)
    far = [peer.line.sent / 1e6 for peer in crowd.others]
    near = [peer.line.sent_near / 1e6 for peer in crowd.others]
    hops: Counter[int] = sum((peer.gossip_state.hops for peer in crowd.others), Counter())
    hops = hops if crowd.by_bodies else Counter(peer.hops for peer in crowd.others)
    count = hops.total() or 1
    passed = f"{sum(number * times for number, times in hops.items()) / count:.1f}, at most {max(hops, default=0)}"
    figures = (
        f"{times[len(times) // 2] / 1000:>9.1f}{times[len(times) * 95 // 100] / 1000:>8.1f}{times[-1] / 1000:>8.1f}"
        f"{crowd.log.line.sent / 1e6:>12.1f}{statistics.mean(far):>12.2f}{max(far):>9.2f}{statistics.mean(near):>10.2f}"
    )
    found = {
        "half_s": times[len(times) // 2] / 1000,
        "all_s": times[-1] / 1000,
        "log_sent_mb": crowd.log.line.sent / 1e6,
        "peer_sent_mb": statistics.mean(far),
        "most_sent_mb": max(far),
    }
    return f"{way:<10}{figures}{passed:>18}{took_s:>8.0f}", found


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--peers", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--cohort", type=int, default=4, help="peers of a cohort (default: %(default)s)")
    parser.add_argument("--weights", nargs="+", default=list(SIZES), choices=list(SIZES), help="sizes of the vector (default: all)")
    parser.add_argument(
        "--ways", nargs="+", choices=["log", "mean", "bodies"], help="of the round to the peers (default: from the log, and what peers do)"
    )
    parser.add_argument("--codec", default="topk-256-4", help="of bodies (default: %(default)s)")
    parser.add_argument("--up", type=float, default=10.0, help="Mbit/s of a peer's line (default: %(default)s)")
    parser.add_argument("--down", type=float, default=50.0, help="Mbit/s of a peer's line (default: %(default)s)")
    parser.add_argument("--log", type=float, default=1000.0, help="Mbit/s of the log's line (default: %(default)s)")
    parser.add_argument("--latency-ms", type=float, default=50.0, help="one way (default: %(default)s)")
    parser.add_argument("--silent", type=float, default=0.0, help="share of peers that listen and give nothing (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    arguments = parser.parse_args()
    for name in arguments.weights:
        body, mean = body_num_bytes(arguments.codec, SIZES[name]), 4 * SIZES[name]
        rows = -(-arguments.peers // arguments.cohort)
        is_less = (rows - 1) * body <= mean
        sizes = f"a body {body / 1e6:.3f} MB, all {rows * body / 1e6:.1f} MB, the mean {mean / 1e6:.1f} MB"
        print(f"{name}: {arguments.peers} peers in {rows} cohorts; {sizes}: peers take {'bodies' if is_less else 'the mean'}")
        peers = f"{'a peer MB':>12}{'most':>9}{'near MB':>10}{'hops':>18}"
        print(f"{'':<10}{'half s':>9}{'95 %':>8}{'all':>8}{'log sent MB':>12}{peers}{'took s':>8}")
        for way in arguments.ways or ["log", "bodies" if is_less else "mean"]:
            start_s = time.monotonic()
            crowd = Crowd(arguments, SIZES[name], way)
            line, found = report(way, crowd, time.monotonic() - start_s)
            results.say(line, peers=arguments.peers, weights=SIZES[name], way=way, **found)
    results.write(arguments)


if __name__ == "__main__":
    main()
