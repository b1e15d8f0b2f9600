"""A peer's part in the spreading of bodies, and its ways to what follows a commit: from others first, and from the log last.

The log has everything, but if everybody asked it, what it sends would grow with the run. So only a few peers ask the log at once for what
they lack: which ones follows from their keys, and changes each time. The others wait for these, and ask the log later, each in its turn,
where nobody else gives it. In a small run, or for something small, the few are all.
"""

import asyncio
import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from manta_swarm.codec.coding import group_sizes
from manta_swarm.codec.vectors import vector_group_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob
from manta_swarm.network.gossip import Gossip, Spare
from manta_swarm.network.gossip_state import GossipState
from manta_swarm.network.log_client import AskRound
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.pushes import BodyOffer
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import MantaError, Unreachable
from manta_swarm.protocol.records import Contribution, InclusionPromise, Round
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.protocol.table import Weighed, open_weighed, weighed_bytes

LOG_BYTES = 4 * 1024 * 1024  # that the log is asked for at once, of one thing, by all peers together
LOG_FIRST = 4  # peers at least
CROWD_A_CONTRIBUTION = 8  # peers for each contribution of the newest table, and as many that are in none: more are not believed to be there
_NEIGHBOURS_ASKED = 4  # who did not say that they have it
_KEPT_ROUNDS = 4
_WEIGHED_BYTES = 128  # of what a contribution weighs as it travels, about
_MAX_REQUEST_BYTES = 128


@dataclass(frozen=True, slots=True)
class SpreadCounts:
    """What spreading has cost so far: bytes, and how often bodies were passed on."""

    bytes_in: int  # of blobs and pushes that came from anybody
    bytes_out: int  # of blobs and pushes that were sent to anybody
    hops: dict[int, int]  # bodies got from others, by the number of times that they were passed on: the log's, or their maker's, are 1


class BlobDistribution:
    """Passes bodies and other blobs of one run on between this peer and its neighbours."""

    def __init__(self, context: RunContext, neighbours: Neighbours, *, rng: random.Random | None = None) -> None:
        """Prepare; ``start`` takes part from then on.

        Args:
            context: of the run.
            neighbours: the peers that this one knows.
            rng: draws whom to ask for what.
        """
        manifest = context.manifest
        body_sizes = group_sizes(manifest.exchange.codec, context.num_weights)
        self._node = context.node
        self._log = context.log
        self._blob_store = context.blob_store
        self._neighbours = neighbours
        self._mean_bytes = sum(vector_group_sizes(context.num_weights))  # bodies that are more together are not got: then the mean is less
        self._now_s = context.clock.now_s
        self._body_bytes = sum(body_sizes)
        self._gossip_state = GossipState(
            context.run,
            manifest.operators,
            neighbours,
            max_rows=2 * manifest.exchange.max_rows,  # the log takes so many, with those of members alone beside their cohorts
            body_bytes=self._body_bytes,
            near_timeout_s=timeouts.NEAR_GETS_S,
        )
        self._gossip_state.budget_bytes = self._mean_bytes
        self._gossip = Gossip(context.node, self._gossip_state, context.blob_store, neighbours, body_sizes, clock=context.clock, rng=rng)
        self._closing: asyncio.TimerHandle | None = None  # of the open round's headers
        self._contributions = 0  # of the newest commit
        self._weights: OrderedDict[int, bytes] = OrderedDict()  # by round, as they travel; the newest last

    async def start(self) -> None:
        """Take what others tell, and hand out weights; the blob store is served by whoever made it."""
        await self._gossip.start()
        await self._node.serve("weights", self._on_weights)

    async def close(self) -> None:
        """End all that is under way."""
        if self._closing is not None:
            self._closing.cancel()
        await self._gossip.close()

    # What happens here.

    def own(self, contribution: Signed[Contribution], inclusion_promise: Signed[InclusionPromise], blob: Blob) -> None:
        """Hand out the body of this peer's cohort from the close of the headers of its inclusion promise's round on, and tell of it.

        Raises:
            RemoteFault: the inclusion promise is not for it.
        """
        self._gossip.own(BodyOffer(contribution, inclusion_promise), blob)

    def know(self, blob: Blob) -> None:
        """The body of this peer's cohort is here, but not its inclusion promise: it is handed out once somebody who has it tells of it."""
        self._gossip.know(blob)

    def headers_open(self, round_: int, left_ms: float) -> None:
        """Headers of a round come for so long from now on, by this peer's clock."""
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().call_later(left_ms / 1000, self.headers_closed, round_)

    def headers_closed(self, round_: int) -> None:
        """The headers of a round are closed: nobody can hand in any more what it sees from here on."""
        self._gossip.close_headers(round_)

    def committed(self, entry: Round) -> None:
        """The newest commit is this one."""
        self._contributions = entry.contributions
        is_worth_it = (entry.contributions - 1) * self._body_bytes <= self._mean_bytes
        self._gossip_state.budget_bytes = self._mean_bytes if is_worth_it else 0
        self._gossip.commit(entry.round)

    def hold(self, root: bytes) -> None:
        """Tell others of a blob that is in the blob store, and follows from the newest commit: its mean."""
        self._gossip.hold(root)

    # What it knows, and brings.

    def num_bodies(self, round_: int) -> int:
        """Return how many bodies with inclusion promises for a round are here."""
        return self._gossip_state.num_held(round_)

    def sources(self, root: bytes) -> list[PublicKey]:
        """Return who said that it has a blob, near ones first."""
        return self._gossip.sources(root)

    def distrust(self, key: PublicKey, reason: str) -> None:
        """A node sent wrong bytes: do without it for a while."""
        self._gossip.distrust(key, reason)

    @property
    def counts(self) -> SpreadCounts:
        """What spreading has cost so far."""
        gossip = self._gossip
        return SpreadCounts(gossip.bytes_in, gossip.bytes_out + self._blob_store.bytes_sent, dict(self._gossip_state.hops))

    async def blob(self, root: bytes, sizes: Sequence[int], kind: str, *, may_be_old: bool = False) -> Blob:
        """Return a blob that follows from a commit: a body, a mean, or a state; it is handed out from then on.

        Args:
            root: its name.
            sizes: of its pieces.
            kind: "body", "mean" or "state".
            may_be_old: others may have it for long, and so do not say so now: they are asked at once.

        Raises:
            Unreachable: nobody gives it.
        """
        rest_s = 0.0 if may_be_old else timeouts.NEIGHBOURS_S
        others = [Spare(key, rest_s) for key in self._neighbours.mixed(_NEIGHBOURS_ASKED)]
        turn_s = self._turn_s(root, sum(sizes))
        logs = [Spare(key, turn_s, is_last=True) for key in self._log.line.in_turn]
        return await self._gossip.get(root, sizes, kind, (*others, *logs))

    async def weighed(self, entry: Round) -> tuple[Weighed, ...]:
        """Return what the contributions of a committed round weigh in its mean.

        Raises:
            Unreachable: nobody gives it.
        """
        kept = self._weights.get(entry.round)
        if kept is not None:
            return open_weighed(kept, entry)
        ends = self._now_s() + self._turn_s(entry.weights, entry.contributions * _WEIGHED_BYTES)
        asked: dict[PublicKey, str] = {}
        while True:
            key = next((each for each in self._gossip.sources(entry.weights) if each not in asked), None)
            if key is None and self._now_s() < ends:
                await self._gossip.hear(ends - self._now_s())
                continue
            last = (*self._log.line.in_turn, *self._neighbours.mixed(_NEIGHBOURS_ASKED))
            key = key or next((each for each in last if each not in asked), None)
            if key is None or len(asked) > 2 * _NEIGHBOURS_ASKED + len(self._log.line.in_turn):
                raise Unreachable(f"nobody gave the weights of round {entry.round} ({'; '.join(asked.values()) or 'nobody to ask'})")
            try:
                weighed = await self._log.weighed(entry, key)
            except MantaError as error:
                asked[key] = f"{key.hex()[:8]}: {error}"
                continue
            self._neighbours.met(key)
            self.keep_weighed(entry, weighed)
            return weighed

    def keep_weighed(self, entry: Round, weighed: Sequence[Weighed]) -> None:
        """Hand out what a round's contributions weigh, and tell of it."""
        self._weights[entry.round] = weighed_bytes(weighed)
        while len(self._weights) > _KEPT_ROUNDS:
            self._weights.popitem(last=False)
        self._gossip.hold(entry.weights)

    def _turn_s(self, root: bytes, num_bytes: int) -> float:
        """Return how long to wait before the log is asked for something: 0 for the few whose turn it is at once.

        In each time ``timeouts.TURN_S`` after that, where nothing is given, twice as many come as came before. How many there are is what
        announcements say, which cost nothing, but no more than the log's rounds bear out: else a stranger could make all of them wait.
        """
        first = max(LOG_FIRST, LOG_BYTES // max(num_bytes, 1))
        drawn = int.from_bytes(sha256(root + self._node.key)[:8], "big") / 2**64
        place = drawn * min(self._neighbours.size, CROWD_A_CONTRIBUTION * (self._contributions + 1))
        return 0.0 if place < first else timeouts.TURN_S * (1 + math.log2(place / first))

    async def _on_weights(self, _caller: PublicKey, request: bytes) -> bytes:
        weights = self._weights.get(unpack(AskRound, request, max_bytes=_MAX_REQUEST_BYTES).round)
        if weights is None:
            raise Unreachable("the weights of that round are not here")
        return weights
