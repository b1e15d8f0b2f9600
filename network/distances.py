"""How far other peers are: round trips of tiny calls to landmarks, to the own cohort and to some others, and who is on the local network.

What comes of it is announced as this peer's position (``protocol.affinity``). Noise only ever lengthens a round trip, so the shortest of
the newest ones counts. A node that cannot be reached, or never answers, is left out of it.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

from manta_swarm.network import timeouts
from manta_swarm.network.lan import Networks, is_in
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Endpoint, OwnNode
from manta_swarm.protocol.affinity import MAX_DISTANCES, STAY_US, STEPS_US, TAG_BYTES, Position, step_of, tag_of
from manta_swarm.protocol.errors import EncodingError, MantaError
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.tasks import together

METHOD = "ping"
NUM_LANDMARKS = 3  # peers that all measure, beside the operators
_CALLS, _CALLS_NEAR = 3, 8  # of one node, one after the other; of one that may be near
_MAY_BE_NEAR_US = 2 * STAY_US  # computers that train are busy most of the time: the shortest of a few calls may take so much too long
_PAUSE_S = 0.05  # between calls of who may be near, at most: else one busy moment would be in all of them
_KEPT = 32  # round trips of one node
_OTHERS = 8  # peers that are measured at a look although they are no landmarks and not of the own cohort
_AT_ONCE = 4
_SITE_STEP = 8  # 16 ms: whoever takes longer is not on the local network, but beyond a tunnel; a busy computer may take some of it


async def serve_pings(endpoint: Endpoint) -> None:
    """Answer whoever measures how far this node is."""

    async def answer(_caller: PublicKey, request: bytes) -> bytes:
        if request:
            raise EncodingError("a ping says nothing")
        return b""

    await endpoint.serve(METHOD, answer)


class Distances:
    """Measures how far others are from one peer, and so that peer's own position."""

    def __init__(
        self,
        node: OwnNode,
        neighbours: Neighbours,
        operators: Iterable[bytes],
        host: bytes,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        """Know nothing yet.

        Args:
            node: this peer's.
            neighbours: who is measured.
            operators: keys of the run's, landmarks as far as they answer.
            host: see ``network.lan.host_digest``.
            rng: chooses who is measured beside.
        """
        self._node = node
        self._neighbours = neighbours
        self._operators = [PublicKey(key) for key in operators]
        self._host = host
        self._clock = clock
        self._rng = rng or random.Random()
        self._times_us: dict[PublicKey, deque[int]] = {}
        self._steps: dict[PublicKey, int] = {}
        self._tried: Counter[PublicKey] = Counter()  # looks at which others were measured
        self._networks: Networks = []
        self._local: set[PublicKey] = set()  # peers that are on this host's local network

    @property
    def landmarks(self) -> list[PublicKey]:
        """The operators, and of the peers that are known those with the smallest hashes: most know the same."""
        smallest = sorted({self._node.key, *self._neighbours.members()}, key=tag_of)[:NUM_LANDMARKS]
        return [key for key in (*self._operators, *smallest) if key != self._node.key]

    async def measure(self, cohort_peers: Collection[PublicKey], networks: Networks) -> None:
        """Measure landmarks, cohort peers and some others: those that were so the fewest times, of them those that may be nearest.

        ``networks``: those that this host has an address in.

        Raises:
            Unreachable: the node's daemon does not say whom it is connected to.
        """
        members = self._neighbours.members()
        wanted = list(dict.fromkeys((*cohort_peers, *self.landmarks)))
        others = [key for key in members if key not in wanted]
        self._rng.shuffle(others)
        others.sort(key=lambda key: (self._tried[key], self._least_us(key)))
        others = others[:_OTHERS]
        self._tried.update(others)
        kept = {*wanted, *members}
        self._times_us = {key: times for key, times in self._times_us.items() if key in kept}
        self._steps = {key: step for key, step in self._steps.items() if key in kept}
        self._tried = Counter({key: count for key, count in self._tried.items() if key in kept})
        await together(*map(self._ping, (*wanted, *others)), at_once=_AT_ONCE)
        await self._find_local(members, networks)

    def position(self, *, is_grouped: bool, cohort_peers: Collection[PublicKey] = ()) -> Position:
        """Return what is to be announced: distances to cohort peers first, then to landmarks, then to who is nearest."""
        nearest = sorted(self._steps, key=lambda key: (self._steps[key], tag_of(key)))
        named = [key for key in dict.fromkeys((*sorted(cohort_peers), *self.landmarks, *nearest)) if key in self._steps][:MAX_DISTANCES]
        return Position(int(is_grouped), self._host, self._site(), tuple(sorted((tag_of(key), self._steps[key]) for key in named)))

    def step(self, key: PublicKey) -> int | None:
        """Return the step of the round trip to a node; None: it was not measured."""
        return self._steps.get(key)

    async def _ping(self, key: PublicKey) -> None:
        """Call a node some times; one that is known well, and still is as near as that, once."""
        known = self._steps.get(key) if len(self._times_us.get(key, ())) == _KEPT else None
        with contextlib.suppress(MantaError):  # it is away, or does not know what a ping is
            for count in range(_CALLS_NEAR):
                if count >= _CALLS:
                    if min(self._times_us[key]) > _MAY_BE_NEAR_US:
                        break
                    await asyncio.sleep(_PAUSE_S * self._rng.random())
                began_s = self._clock.now_s()
                await self._node.call(key, METHOD, b"", timeout_s=timeouts.PING_S)
                took_us = round((self._clock.now_s() - began_s) * 1e6)
                self._took(key, took_us)
                if known is not None and self._steps.get(key) == step_of(took_us, known) == known:
                    break

    def _took(self, key: PublicKey, round_trip_us: int) -> None:
        times = self._times_us.setdefault(key, deque(maxlen=_KEPT))
        times.append(round_trip_us)
        step = step_of(min(times), self._steps.get(key))
        if step is None:
            self._steps.pop(key, None)
        else:
            self._steps[key] = step

    def _least_us(self, key: PublicKey) -> int:
        """Return how far a peer is at least, as far as both measured the same nodes: as much as their distances to one differ."""
        announced = self._neighbours.position(key)
        own = {tag_of(each): STEPS_US[step] for each, step in self._steps.items()}
        theirs = {tag: STEPS_US[step] for tag, step in announced.distances}
        return max((abs(own[tag] - theirs[tag]) for tag in own.keys() & theirs.keys()), default=0)

    async def _find_local(self, members: Sequence[PublicKey], networks: Networks) -> None:
        """See who is connected over an address of a local network, and answers as fast as one there does."""
        if networks != self._networks:
            self._networks = networks
            self._local.clear()
        self._local &= set(members)
        connected = await self._node.connected()
        for key in members:
            hosts = connected.get(key, [])
            if any(is_in(host, networks) for host in hosts) and self._steps.get(key, _SITE_STEP + 1) <= _SITE_STEP:
                self._local.add(key)
            elif hosts:
                self._local.discard(key)

    def _site(self) -> bytes:
        """Return the smallest of the tags of who is on the local network, and of what those say it is."""
        if not self._local:
            return b""
        said = [site for key in self._local if len(site := self._neighbours.position(key).site) == TAG_BYTES]
        return min([tag_of(self._node.key), *(tag_of(key) for key in self._local), *said])
