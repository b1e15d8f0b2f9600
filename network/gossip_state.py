"""Who has which bodies, whom to tell of them and whom to ask: the protocol by which bodies spread, without a clock and a network.

A body spreads by offers, each with the log's inclusion promise for its contribution, so that nobody can make anybody fetch what is not in
the round. Nothing is shown before the headers of its round are closed. Who lacks a body that it is offered asks for it
(``network.gossip``), and offers it on, to its *links*: a few neighbours, near ones among them, which change from round to round. A link is
not told of what it is known to have. Near links are told at once of what is being got from afar, so that they wait for it a moment instead
of getting it from afar too.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from manta_swarm.network.pushes import MAX_HOPS, MAX_OFFERS, MAX_PUSH_BYTES, MAX_ROOTS, BodyOffer, Push, ShownOffer
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.records import Contribution, InclusionPromise
from manta_swarm.protocol.signing import PublicKey

MAX_LINKS = 16  # far ones, whoever began them
MAX_NEAR_LINKS = 32
_MAX_SOURCES = 16  # that are remembered of one body
_HELD = 16  # roots that are remembered of a link beside bodies: means and tables of the newest rounds
_PULLS_OF_ONE = 6  # at the same time, with one source in front: fewer than it answers at a time


@dataclass(frozen=True, slots=True)
class Pull:
    """A body to get, and from whom: if there are near ones, from these, and from the others only if they do not do."""

    root: bytes
    near: tuple[PublicKey, ...]
    far: tuple[PublicKey, ...]


@dataclass(eq=False, slots=True)
class _Item:
    """A body of a round that is not over."""

    root: bytes
    round: int
    offer: BodyOffer
    hops: int
    num_bytes: int  # of its offer
    is_held: bool = False
    asked: PublicKey | None = None  # while it is being got: who is asked first
    sources: dict[PublicKey, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Link:
    is_near: bool
    round: int  # the newest that it was made or used for
    is_to_be_greeted: bool  # it does not know yet that it is one
    has: set[bytes] = field(default_factory=set)  # roots of bodies, as it said or was told
    holds: "OrderedDict[bytes, None]" = field(default_factory=OrderedDict)  # other roots, as it said, the newest last
    offers: dict[bytes, None] = field(default_factory=dict)  # roots that it is to be told of
    held: dict[bytes, None] = field(default_factory=dict)
    coming: dict[bytes, None] = field(default_factory=dict)
    num_coming: int = 0  # roots that it said it is getting from afar


class PeerDistances(Protocol):
    """Knows how far peers are."""

    def distance_us(self, key: PublicKey) -> int:
        """Return how far a peer is, as far as is known; ``FAR`` where it is not."""
        ...


class GossipState:
    """What one node knows of the bodies of the newest commit's round and the two after it, and of its links."""

    def __init__(
        self, run: bytes, operators: Collection[bytes], places: PeerDistances, *, max_rows: int, body_bytes: int, near_timeout_s: float
    ) -> None:
        """Know nothing yet.

        Args:
            run: its id.
            operators: whose inclusion promises count.
            places: of several that have a body the nearest is asked first.
            max_rows: bodies of a round that are remembered.
            body_bytes: of each.
            near_timeout_s: how long to wait for what a near link is getting from afar.
        """
        self.run = run
        self.operators = operators
        self.budget_bytes = 0  # of bodies of one round that are got from others
        self._places = places
        self._heard: list[tuple[bytes, PublicKey]] = []  # who says that it has what, until somebody asks
        self.outside: Counter[str] = Counter()  # offers that came to nothing, though nobody did wrong
        self.hops: Counter[int] = Counter()  # of the bodies that were got
        self._max_rows = max_rows
        self._body_bytes = body_bytes
        self._near_timeout_s = near_timeout_s
        self._newest = 0  # committed
        self._closed = 0  # the newest round whose headers are closed
        self._items: dict[bytes, _Item] = {}  # by root
        self._roots: dict[bytes, bytes] = {}  # by contribution
        self._of_round: Counter[int] = Counter()
        self._got_bytes: Counter[int] = Counter()  # by round, of what was got or is being got
        self._missing: dict[bytes, None] = {}  # roots of what is neither held nor being got
        self._asked: Counter[PublicKey] = Counter()  # by who is in front, what is being got
        self._links: dict[PublicKey, _Link] = {}
        self._to_tell: dict[PublicKey, None] = {}  # links for which there is something
        self._coming: dict[bytes, float] = {}  # roots that a near link said it is getting from afar, and until when to wait for it

    # Rounds.

    @property
    def newest(self) -> int:
        """The newest round that is known to be committed."""
        return self._newest

    def close_headers(self, round_: int) -> None:
        """The headers of a round are closed: what is here of it may be shown."""
        self._closed = max(self._closed, round_)
        for item in self._items.values():
            if item.is_held:
                self._tell_all(item)

    def commit(self, round_: int) -> None:
        """A round is committed: forget those before it."""
        if round_ <= self._newest:
            return
        self._newest = round_
        old = {root for root, item in self._items.items() if item.round < round_}
        for root in old:
            item = self._items.pop(root)
            del self._roots[item.offer.contribution.digest]
            self._of_round[item.round] -= 1
            self._missing.pop(root, None)
            self._release(item)
        self._coming.clear()
        self._of_round, self._got_bytes = +self._of_round, Counter({r: n for r, n in self._got_bytes.items() if r >= round_})
        for link in self._links.values():
            link.has -= old
            link.num_coming = 0
            link.offers = {root: None for root in link.offers if root not in old}
        self.close_headers(round_)

    def num_held(self, round_: int) -> int:
        """Return how many bodies of a round are here, this node's own among them."""
        return sum(item.is_held for item in self._items.values() if item.round == round_)

    # Bodies.

    def add_own(self, offer: BodyOffer) -> None:
        """Hand out a body that this node made, once the headers of its inclusion promise's round are closed.

        Raises:
            EncodingError, SignatureError: see ``BodyOffer.open``.
        """
        item = self._item_of(ShownOffer(offer, 0), hops=0)
        if item is not None:
            self.hold(item.root, is_own=True)

    def hold(self, root: bytes, *, is_own: bool = False) -> None:
        """A body is here, perhaps one that was made here: tell links, if it may be shown. Or it is something else that they may want, or
        parts of it, or more parts than when they were told: tell them, again.
        """
        item = self._items.get(root)
        if item is None:
            for link in self._links.values():
                link.held[root] = None
            self._to_tell.update(dict.fromkeys(self._links))
            return
        self._missing.pop(root, None)
        self._coming.pop(root, None)
        self._release(item)
        if not item.is_held:
            item.is_held = True
            if is_own:
                item.hops = 0
            else:
                self.hops[item.hops] += 1
            self._tell_all(item)

    def is_known(self, root: bytes) -> bool:
        """Return whether this is a body of one of the rounds that are remembered."""
        return root in self._items

    def is_shown(self, root: bytes) -> bool:
        """Return whether the headers of a body's round are closed."""
        item = self._items.get(root)
        return item is not None and item.round <= self._closed

    def sources(self, root: bytes) -> list[PublicKey]:
        """Return who said that it has a blob: near ones first, then the others by their distance."""
        item = self._items.get(root)
        found = {key for key, link in self._links.items() if root in link.holds} | set(item.sources if item is not None else ())
        return sorted(found, key=lambda key: (not self._is_near(key), self._places.distance_us(key), key))

    def take_heard(self) -> list[tuple[bytes, PublicKey]]:
        """Return which roots were said to be had since the last time, and by whom."""
        heard, self._heard = self._heard, []
        return heard

    def next_pull(self, now: float) -> Pull | None:
        """Return a body to get next, if there is one; it counts as being got until ``hold`` or ``failed``."""
        if self.budget_bytes < self._body_bytes:
            return None
        for root in self._missing:
            item = self._items[root]
            if item.round > self._closed or self._got_bytes[item.round] + self._body_bytes > self.budget_bytes:
                continue
            near = [key for key in item.sources if self._is_near(key)]
            if not near and self._coming.get(root, now) > now:
                continue
            front = min(near or item.sources, key=lambda key: (self._asked[key], self._places.distance_us(key)), default=None)
            if front is None or self._asked[front] >= _PULLS_OF_ONE:
                continue
            far = sorted((key for key in item.sources if key not in near), key=self._places.distance_us)
            del self._missing[root]
            item.asked = front
            self._asked[front] += 1
            self._got_bytes[item.round] += self._body_bytes
            if not near:
                for key, link in self._links.items():
                    if link.is_near and root not in link.has:
                        link.coming[root] = self._to_tell[key] = None
            by_load = sorted(near or far, key=lambda key: (key != front, self._places.distance_us(key)))
            return Pull(root, tuple(by_load), tuple(far)) if near else Pull(root, (), tuple(by_load))
        return None

    def wakes_at(self, now: float) -> float | None:
        """Return when ``next_pull`` may have something that it has not now, if only time has to pass for that."""
        return min((until for root, until in self._coming.items() if until > now and root in self._missing), default=None)

    def failed(self, root: bytes) -> None:
        """A body could not be got from those who offered it: it is wanted again when somebody else offers it."""
        item = self._items.get(root)
        if item is not None and item.asked is not None:
            self._release(item)
            self._got_bytes[item.round] -= self._body_bytes
            item.sources.clear()
            self._missing[root] = None

    def drop_source(self, key: PublicKey) -> None:
        """A node sent wrong bytes: believe nothing that it said."""
        self.unlink(key)
        for item in self._items.values():
            item.sources.pop(key, None)

    # Links.

    @property
    def links(self) -> dict[PublicKey, bool]:
        """The nodes that this one tells, and whether they are near."""
        return {key: link.is_near for key, link in self._links.items()}

    @property
    def to_tell(self) -> list[PublicKey]:
        """The links for which ``next_push`` may have something."""
        return list(self._to_tell)

    def link(self, key: PublicKey, *, is_near: bool, is_invited: bool) -> bool:
        """Tell a node of what is here and comes to be here from now on.

        False: there are too many, and it is the other's wish (``is_invited``), not this node's own choice.
        """
        link = self._links.get(key)
        if link is not None:
            link.round = max(link.round, self._closed)
            return True
        if is_invited and sum(each.is_near == is_near for each in self._links.values()) >= (MAX_NEAR_LINKS if is_near else MAX_LINKS):
            return False
        link = self._links[key] = _Link(is_near, self._closed, is_to_be_greeted=not is_invited)
        for item in self._items.values():
            if key in item.sources:
                link.has.add(item.root)
            elif item.is_held and item.round <= self._closed:
                link.offers[item.root] = None
        self._to_tell[key] = None
        return True

    def unlink(self, key: PublicKey) -> None:
        """Tell a node nothing more."""
        self._links.pop(key, None)
        self._to_tell.pop(key, None)

    def unlink_old(self) -> None:
        """Forget the links that were not made or used for the round whose headers were closed last."""
        self._links = {key: link for key, link in self._links.items() if link.round >= self._closed}

    def next_push(self, key: PublicKey) -> Push | None:
        """Return what a link is to be told next, if anything; from here on it counts as told.

        Who was just made a link is told that at least: it tells this node in turn, which has perhaps nothing to tell yet.
        """
        self._to_tell.pop(key, None)
        link = self._links.get(key)
        if link is None or not (link.offers or link.held or link.coming or link.is_to_be_greeted):
            return None
        shown: list[ShownOffer] = []
        num_bytes = 0
        for root in list(link.offers):
            item = self._items[root]
            num_bytes += item.num_bytes
            if len(shown) == MAX_OFFERS or (shown and num_bytes > MAX_PUSH_BYTES):
                break
            shown.append(ShownOffer(item.offer, item.hops))
            link.has.add(root)
            del link.offers[root]
        coming = tuple(root for root in link.coming if root not in link.has)[: MAX_ROOTS // 2]
        held = tuple(link.held)[: MAX_ROOTS // 2]
        link.coming.clear()
        link.held.clear()
        if link.offers:
            self._to_tell[key] = None
        is_greeting, link.is_to_be_greeted = link.is_to_be_greeted, False
        return Push(tuple(shown), held, coming) if shown or held or coming or is_greeting else None

    def take(self, sender: PublicKey, push: Push, now: float) -> None:
        """Take what a node tells. The caller has made it a link before, if there was room.

        Raises:
            EncodingError, SignatureError: it offers what is no offer; what came before that in the push was taken.
        """
        link = self._links.get(sender)
        for shown in push.offers:
            item = self._item_of(shown, hops=min(shown.hops + 1, MAX_HOPS))
            if item is None:
                continue
            if link is not None:
                link.round = max(link.round, item.round)
                link.has.add(item.root)
                link.offers.pop(item.root, None)
            if not item.is_held and len(item.sources) < _MAX_SOURCES:
                item.sources[sender] = None
                self._heard.append((item.root, sender))
        if link is None:
            return
        for root in push.held:
            link.holds[root] = None
            link.holds.move_to_end(root)
            if len(link.holds) > _HELD:
                link.holds.popitem(last=False)
            self._heard.append((root, sender))
        if link.is_near:
            for root in push.coming[: self._max_rows - link.num_coming]:
                link.num_coming += 1
                self._coming[root] = now + self._near_timeout_s

    def _item_of(self, shown: ShownOffer, *, hops: int) -> _Item | None:
        """Return what is known of the body that is shown, which is checked if it is new; None: it is of no use now.

        Raises:
            EncodingError, SignatureError: see ``BodyOffer.open``.
        """
        offer = shown.offer
        digest = offer.contribution.digest
        known = self._roots.get(digest)
        if known is not None:
            return self._items[known]
        contribution, inclusion_promise = self._opened(offer)
        if not self._newest <= inclusion_promise.round <= self._newest + 2:
            self.outside["another round"] += 1
        elif contribution.body in self._items:
            self.outside["a body twice"] += 1
        elif self._of_round[inclusion_promise.round] >= self._max_rows:
            self.outside["too many"] += 1
        else:
            item = _Item(contribution.body, inclusion_promise.round, offer, hops, self._size_of(shown))
            self._items[item.root] = item
            self._roots[digest] = item.root
            self._of_round[item.round] += 1
            self._missing[item.root] = None
            return item
        return None

    def _opened(self, offer: BodyOffer) -> tuple[Contribution, InclusionPromise]:
        return offer.open(self.run, self.operators)

    def _size_of(self, shown: ShownOffer) -> int:
        return len(pack(shown))

    def _tell_all(self, item: _Item) -> None:
        if item.round <= self._closed:
            for key, link in self._links.items():
                if item.root not in link.has:
                    link.offers[item.root] = self._to_tell[key] = None

    def _release(self, item: _Item) -> None:
        if item.asked is not None:
            self._asked[item.asked] -= 1
            self._asked += Counter()
            item.asked = None

    def _is_near(self, key: PublicKey) -> bool:
        link = self._links.get(key)
        return link is not None and link.is_near
