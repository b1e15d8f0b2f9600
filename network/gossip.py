"""How bodies, and what follows a commit, go from peer to peer: tells links what is here, takes what they tell, gets what is lacking.

What is to be told and got says ``network.gossip_state.GossipState``; here are the calls. Nothing of this is needed for a round: what does
not come this way can be had from the log.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.fetching import fetch
from manta_swarm.network.gossip_state import GossipState, Pull
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.pushes import MAX_PUSH_BYTES, BodyOffer, Push, PushAnswer
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.sources import Sources
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Unreachable
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import Clock
from manta_swarm.runtime.tasks import wait_within

METHOD = "offers"
FAR_LINKS, FAR_LINKS_BESIDE_NEAR, NEAR_LINKS = 3, 2, 4  # that a node makes by itself for each round
PULLS_AT_ONCE = 32
MAX_REQUEST_BYTES = MAX_PUSH_BYTES + 16 * 1024  # beside the offers a push has roots
_MAX_ANSWER_BYTES = 64
_OTHER_LINKS = 16  # made in a round in place of those that do not answer, or have no room
_OWN_BODIES = 4  # that are here and not shown yet
_WRONG_S, _WRONG_KEYS = 60.0, 256  # how long who sent wrong bytes is not believed, and how many of them are remembered
_TRIES = 4  # times that the log says that it has nothing of a blob, as after its restart, before the blob is given up

logger = logging.getLogger("manta.gossip")


@dataclass(frozen=True, slots=True)
class Spare:
    """Somebody who may have a blob, though nobody said so."""

    key: PublicKey
    rest_s: float  # before it is asked
    is_last: bool = False  # to be asked only for what nobody else is ready to give


@dataclass(eq=False, slots=True)
class _Getting:
    """A blob on its way here."""

    sources: Sources
    is_pull: bool  # it is got though nobody may wait for it
    waiting: int = 0
    task: "asyncio.Task[Blob]" = field(init=False)


class Gossip:
    """Passes bodies and other blobs on between one node and its links."""

    def __init__(
        self,
        endpoint: Endpoint,
        gossip_state: GossipState,
        blob_store: BlobStore,
        neighbours: Neighbours,
        body_sizes: Sequence[int],
        *,
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare; ``start`` takes part from then on.

        Args:
            endpoint: the node.
            gossip_state: of this node alone.
            blob_store: from which the node hands blobs out.
            neighbours: among whom links are chosen.
            body_sizes: of the pieces of a body.
            rng: draws what is fetched from whom.
        """
        self._endpoint = endpoint
        self._gossip_state = gossip_state
        self._blob_store = blob_store
        self._neighbours = neighbours
        self._body_sizes = tuple(body_sizes)
        self._clock = clock
        self._rng = rng
        self.faults = CallerFaults(clock)
        self._wrong: OrderedDict[PublicKey, float] = OrderedDict()  # who sent wrong bytes, and until when they are not believed
        self._own: dict[bytes, Blob] = {}  # bodies that are here, by root, until they may be shown
        self._getting: dict[bytes, _Getting] = {}  # by root
        self._pushing: dict[PublicKey, asyncio.Task[None]] = {}
        self._others_left = 0
        self._linked_for = -1  # the newest round that links were made for
        self._alarm: asyncio.TimerHandle | None = None
        self._is_over = False
        self.bytes_in = 0  # of blobs and pushes
        self.bytes_out = 0  # of pushes; of blobs the blob store counts them
        self._heard = asyncio.Event()  # of somebody who has something

    async def start(self) -> None:
        """Take what links tell."""
        await self._endpoint.serve(METHOD, self._on_push)

    async def close(self) -> None:
        """End all that is under way."""
        self._is_over = True
        if self._alarm is not None:
            self._alarm.cancel()
        tasks: list[asyncio.Task[None] | asyncio.Task[Blob]] = [*self._pushing.values(), *(each.task for each in self._getting.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What happens here.

    def own(self, offer: BodyOffer, blob: Blob) -> None:
        """Hand out a body that this node made, and tell of it, once the headers of its inclusion promise's round are closed.

        Raises:
            RemoteFault: the inclusion promise is not for it.
        """
        self._keep_own(blob)
        self._gossip_state.add_own(offer)
        self._go_on()

    def know(self, blob: Blob) -> None:
        """A body of this node's cohort is here, without an inclusion promise: when somebody offers it, it need not be got."""
        self._keep_own(blob)
        self._go_on()

    def close_headers(self, round_: int) -> None:
        """The headers of a round are closed: begin to tell of its bodies, and to get them.

        Where nobody handed anything in the same round's are closed again and again: the links that were made for it stay.
        """
        is_new = round_ > self._linked_for
        self._linked_for = max(round_, self._linked_for)
        self._gossip_state.close_headers(round_)
        if not is_new:
            self._go_on()
            return
        self._gossip_state.unlink_old()
        self._others_left = _OTHER_LINKS
        near = [key for key in self._neighbours.near() if key not in self._gossip_state.links][:NEAR_LINKS]
        for key in near:
            self._gossip_state.link(key, is_near=True, is_invited=False)
        num_far = FAR_LINKS_BESIDE_NEAR if any(self._gossip_state.links.values()) else FAR_LINKS
        self._link_far(num_far)
        self._go_on()

    def commit(self, round_: int) -> None:
        """A round is committed."""
        self._gossip_state.commit(round_)
        for root, getting in list(self._getting.items()):
            if getting.is_pull and not getting.waiting and not self._gossip_state.is_known(root):
                self._drop(root, getting)
        self._go_on()

    def hold(self, root: bytes) -> None:
        """Tell links of a blob in the blob store that they may want."""
        self._gossip_state.hold(root)
        self._go_on()

    def sources(self, root: bytes) -> list[PublicKey]:
        """Return who said that it has a blob: near ones first."""
        return self._gossip_state.sources(root)

    async def hear(self, timeout_s: float) -> None:
        """Wait until somebody says that it has something, but not longer."""
        await wait_within(self._heard, timeout_s)

    async def get(self, root: bytes, sizes: Sequence[int], kind: str, spare: Iterable[Spare] = ()) -> Blob:
        """Return a blob: from those who say that they have it, else from ``spare``; it is handed out from then on as ``kind``.

        Raises:
            Unreachable: nobody gives it.
        """
        spares = tuple(spare)
        while True:
            here = self._blob_store.get(root) or self._own.get(root)
            if here is not None:
                return here
            getting = self._getting.get(root)
            is_joined = getting is not None
            if getting is None:
                getting = self._begin(root, sizes, kind, Sources(self._gossip_state.sources(root), may_grow=True), is_pull=False)
            for each in spares:
                getting.sources.add(each.key, is_spare=each.is_last, rest_s=each.rest_s)
            getting.waiting += 1
            try:
                return await asyncio.shield(getting.task)
            except Unreachable:
                if not is_joined:
                    raise
            finally:
                getting.waiting -= 1
                if not getting.waiting and not getting.is_pull:
                    self._drop(root, getting)

    def distrust(self, key: PublicKey, reason: str) -> None:
        """A node sent wrong bytes: do without it for a while."""
        self.faults.note(key, "wrong bytes")
        if self._wrong.get(key, 0.0) <= self._clock.now_s():
            logger.warning("wrong bytes peer=%s reason=%s", key.hex()[:8], reason)
        self._wrong[key] = self._clock.now_s() + _WRONG_S
        if len(self._wrong) > _WRONG_KEYS:
            self._wrong.popitem(last=False)
        self._gossip_state.drop_source(key)
        self._neighbours.forget(key)

    # How it goes on.

    def _keep_own(self, blob: Blob) -> None:
        self._own[blob.root] = blob
        while len(self._own) > _OWN_BODIES:
            del self._own[next(iter(self._own))]

    def _go_on(self) -> None:
        """Begin whatever there is to do: to be called after whatever changes something."""
        if self._is_over:
            return
        for root, key in self._gossip_state.take_heard():
            self._know_source(root, key)
        for root in [root for root in self._own if self._gossip_state.is_shown(root)]:
            self._blob_store.put(self._own.pop(root), "body")
            self._gossip_state.hold(root, is_own=True)
        now = self._clock.now_s()
        while len(self._getting) < PULLS_AT_ONCE and (pull := self._gossip_state.next_pull(now)) is not None:
            self._pull(pull)
        for key in self._gossip_state.to_tell:
            if key not in self._pushing and (push := self._gossip_state.next_push(key)) is not None:
                self._pushing[key] = asyncio.create_task(self._push(key, push))
        if self._alarm is not None:
            self._alarm.cancel()
        wakes_at = self._gossip_state.wakes_at(now)
        self._alarm = None if wakes_at is None else asyncio.get_running_loop().call_later(wakes_at - now, self._go_on)

    def _pull(self, pull: Pull) -> None:
        if self._blob_store.get(pull.root) is not None:
            self._gossip_state.hold(pull.root)
        elif pull.root not in self._getting:
            sources = Sources(pull.near or pull.far, spare=pull.far if pull.near else (), timeout_s=timeouts.NEAR_GETS_S, may_grow=True)
            self._begin(pull.root, self._body_sizes, "body", sources, is_pull=True)

    def _begin(self, root: bytes, sizes: Sequence[int], kind: str, sources: Sources, *, is_pull: bool) -> _Getting:
        getting = self._getting[root] = _Getting(sources, is_pull)
        deadline_s = timeouts.BODY_S if is_pull else timeouts.FETCH_S
        getting.task = asyncio.create_task(
            fetch(
                self._endpoint,
                root,
                sizes,
                sources,
                deadline_s=deadline_s,
                tries=_TRIES,
                blob_store=self._blob_store,
                kind=kind,
                judge=self,
                progress=_Quarters(self, root, len(sizes)),
                rng=self._rng,
            )
        )
        getting.task.add_done_callback(lambda task: self._on_got(root, getting, task))
        return getting

    def hold_part(self, root: bytes) -> None:
        """What is large, and no body, is told of as it comes: links that wait for it begin with what there is."""
        if not self._gossip_state.is_known(root):
            self.hold(root)

    def _drop(self, root: bytes, getting: _Getting) -> None:
        """Nobody wants it: end it, and let nobody who comes to want it wait for its end."""
        if self._getting.get(root) is getting:
            del self._getting[root]
        getting.task.cancel()

    def _on_got(self, root: bytes, getting: _Getting, task: "asyncio.Task[Blob]") -> None:
        if self._getting.get(root) is getting:
            del self._getting[root]
        if task.cancelled() or task.exception() is not None:
            self._gossip_state.failed(root)
        else:
            self.bytes_in += task.result().size_bytes
            self._gossip_state.hold(root)
        self._go_on()

    def _know_source(self, root: bytes, key: PublicKey) -> None:
        """Somebody says that it has a blob: it may be on its way here."""
        self._heard.set()
        self._heard = asyncio.Event()
        getting = self._getting.get(root)
        if getting is None:
            return
        has_near = any(self._neighbours.is_near(each) for each in getting.sources)
        is_far_beside_near = has_near and not self._neighbours.is_near(key)
        getting.sources.add(key, is_spare=is_far_beside_near, rest_s=timeouts.NEAR_GETS_S if is_far_beside_near else 0.0)

    # Links.

    def _link_far(self, count: int) -> None:
        links = self._gossip_state.links
        for key in self._neighbours.far(count, without=links):
            self._gossip_state.link(key, is_near=False, is_invited=False)

    async def _push(self, key: PublicKey, first: Push) -> None:
        """Tell a link what there is to tell, one push after the other; a link that does not listen is replaced."""
        push: Push | None = first
        try:
            while push is not None:
                request = pack(push)
                answer = await self._endpoint.call(key, METHOD, request, timeout_s=timeouts.PUSH_S)
                self.bytes_out += len(request)
                if not unpack(PushAnswer, answer, max_bytes=_MAX_ANSWER_BYTES).is_linked:
                    raise EncodingError("no room for another link")
                self._neighbours.met(key)
                push = self._gossip_state.next_push(key)
        except Unreachable:
            self._neighbours.forget(key)
            self._lose(key)
        except RemoteFault:
            self._lose(key)
        finally:
            del self._pushing[key]
        self._go_on()

    def _lose(self, key: PublicKey) -> None:
        self._gossip_state.unlink(key)
        if self._others_left:
            self._others_left -= 1
            self._link_far(1)

    async def _on_push(self, caller: PublicKey, request: bytes) -> bytes:
        if self.faults.is_too_much(caller) or self._wrong.get(caller, 0.0) > self._clock.now_s():
            raise Unreachable("too much was wrong")
        try:
            push = unpack(Push, request, max_bytes=MAX_REQUEST_BYTES)
            is_linked = self._gossip_state.link(caller, is_near=self._neighbours.is_near(caller), is_invited=True)
            self._gossip_state.take(caller, push, self._clock.now_s())
            self._neighbours.met(caller)
        except RemoteFault as error:
            self.faults.note(caller, type(error).__name__)
            self._gossip_state.unlink(caller)
            raise
        finally:
            self.bytes_in += len(request)
            self._go_on()
        return pack(PushAnswer(int(is_linked)))


class _Quarters:
    """A blob of several pieces that comes, told of at the first piece and at each quarter. A ``network.fetching.FetchProgress``."""

    def __init__(self, gossip: Gossip, root: bytes, num_pieces: int) -> None:
        self._gossip = gossip
        self._root = root
        self._told_at = {1, *(-(-num_pieces * quarter // 4) for quarter in range(4))} if num_pieces > 1 else set()

    def arrived(self, count: int) -> None:
        if count in self._told_at:
            self._gossip.hold_part(self._root)
