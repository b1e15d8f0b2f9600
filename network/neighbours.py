"""Finds who else is in the run, by announcements in the DHT: to ask them for bytes, tell them what is new, and know who is near.

Everybody stands in the bucket of the first bits of its key's hash; the larger the run, the more bits, so that what is read at a look does
not grow with the run. A peer reads its own bucket, another one at random, and that of its cohort. A peer that knows nothing yet reads the
sample: the name without any bits, under which the few of a large run with the smallest hashes stand. In a small run that name is the only
bucket.

An announcement costs nothing, and anybody can make thousands. So those who were met, who answered a call or made one, are drawn before
those who are only announced, and stay where there is no room.

Where affinity makes the cohorts, peers that are near by what they announce come to be known as cohort peers do, and stay: else those who
are to be a cohort would not find each other among many.

A round needs none of this: a peer that finds nobody takes part by the log alone.
"""

import contextlib
import random
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.affinity import FAR, NOWHERE, STAY_US, PlacedPeer, Position, distance_us
from manta_swarm.protocol.cohorts import ALL
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, RemoteFault
from manta_swarm.protocol.records import MAX_ANNOUNCEMENT_BYTES, Announcement
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.tasks import together

METHOD = "announcement"
MAX_NEIGHBOURS = 64  # known at once; of a larger run near ones, and then random ones
MAX_NEAR = 32  # of them
SPLIT, JOIN = 96, 64  # a bucket of more is split; two that are less together become one
_CHANGED = 8  # one of so many is forgotten at a look, where there is no room
_MET = 0.75  # of those who are drawn, as long as there are any who were met
_OPENED = 512  # announcements that a look opens for who is near, though there is no room
_FEW = 16  # announcements are enough to tell a run's size from
_S_A_NEIGHBOUR = 2.0  # what is read at a look grows with a small run: so the time from look to look does, too
_PERIODS_PUBLISHED, _PERIODS_KNOWN = 6, 3  # how long an announcement lives: in the DHT, and at those who read it
_LEFT = b""  # in the place of an announcement
_MAX_BITS = 16  # of a key's hash, that buckets go by


@dataclass(frozen=True, slots=True)
class _Known:
    announcement: Announcement
    forgotten_s: float  # the time when it is
    is_met: bool = False
    is_cohort_peer: bool = False  # it stands where the own cohort meets
    data: bytes = b""  # the announcement as it came


class ProvenCohortPeers(Protocol):
    """Knows who has proven to be of the own cohort."""

    def cohort_peers(self) -> Container[PublicKey]:
        """Return the keys that have proven it."""
        ...


class Neighbours:
    """The other peers of one run as this node knows them."""

    def __init__(
        self,
        endpoint: Endpoint,
        run: bytes,
        clock: Clock = SYSTEM_CLOCK,
        *,
        proven: ProvenCohortPeers | None = None,
        secret: bytes = b"",
        rng: random.Random | None = None,
    ) -> None:
        """Know nobody yet.

        Args:
            endpoint: this node's.
            run: the run's id.
            proven: says who of those at the own cohort's meeting is of it; None: all of them.
            secret: what the own cohort's members share: who does not know it cannot tell where they meet.
            rng: of who is looked for, and chosen.
        """
        self._endpoint = endpoint
        self._run = run
        self._clock = clock
        self._proven = proven
        self._secret = secret
        self._rng = rng or random.Random()
        self._known: dict[PublicKey, _Known] = {}
        self._own: PlacedPeer | None = None  # as this node announced itself
        self._announced = b""  # the same, as it travels
        self._distances: dict[PublicKey, int] = {}  # as far as they were asked for since the last look
        self._sequence = 0
        self._bits = 0  # of the own bucket
        self._size: float | None = None  # of the run, about; None: not known yet
        self._left_to_open = 0  # announcements, at this look
        self.malformed = 0

    async def start(self) -> None:
        """Let others say that they are there, see ``tell``."""
        await self._endpoint.serve(METHOD, self._on_told)

    async def announce(self, *, cohort: str, round_: int, position: Position = NOWHERE, size: int = ALL) -> None:
        """Say in the DHT that this node is there, whose round's state it holds, of which cohort it is, where, and of which size."""
        if cohort != self._cohort:  # whoever stood where the last one meets is no cohort peer for that any more
            self._known = {key: replace(known, is_cohort_peer=False) for key, known in self._known.items()}
        self._own = PlacedPeer(self._endpoint.key, cohort, position)
        self._distances.clear()
        self._sequence = max(time.time_ns() // 1_000_000, self._sequence + 1)
        data = self._announced = pack(Announcement(self._run, self._endpoint.key, cohort, round_, self._sequence, position, size))
        names = [*(self._bucket(bits) for bits in self._own_levels()), self._meeting(cohort)]
        await together(*(self._endpoint.publish(name, data, ttl_s=_PERIODS_PUBLISHED * self.period_s) for name in names))

    async def tell(self, keys: Iterable[PublicKey]) -> None:
        """Hand these what was announced: they may not know of this node, though it is near. Who is away hears of it by the DHT."""

        async def hand(key: PublicKey) -> None:
            with contextlib.suppress(MantaError):
                await self._endpoint.call(key, METHOD, self._announced, timeout_s=timeouts.PUSH_S)

        await together(*(hand(key) for key in keys))

    async def _on_told(self, caller: PublicKey, request: bytes) -> bytes:
        self._take(caller, request, of_cohort=False)
        self.met(caller)
        return b""

    async def withdraw(self) -> None:
        """Say that this node leaves: nothing is expected of it any more."""
        if self._own is not None:
            names = [*(self._bucket(bits) for bits in self._own_levels()), self._meeting(self._own.cohort)]
            await together(*(self._endpoint.publish(name, _LEFT, ttl_s=_PERIODS_PUBLISHED * self.period_s) for name in names))

    async def look(self) -> None:
        """Read announcements in the DHT."""
        if self._size is None:
            self._judge_by_sample(await self._read(self._bucket(0)))
        own = _first_bits(self._endpoint.key, self._bits)
        others = [own ^ self._rng.randrange(1, 2**self._bits)] if self._bits else []
        names = [self._name_of(self._bits, prefix) for prefix in (own, *others)]
        meetings = [self._meeting(self._cohort)] if self._cohort is not None else []
        found = await together(*(self._read(name) for name in (*names, *meetings)))
        self._make_room()
        if meetings:
            self._take_all(found.pop(), of_cohort=True)
        self._take_all({key: data for records in found for key, data in records.items()})
        counts = [len(records) for records in found]
        if self._bits and min(counts) < _FEW:  # others may see a smaller run
            sample = await self._read(self._bucket(0))
            self._take_all(sample)
            self._judge_by_sample(sample)
        else:
            self._judge(sum(counts) / len(counts) * 2**self._bits)

    async def _read(self, name: str) -> dict[PublicKey, bytes]:
        """Return the announcements under a name; who withdrew its own is forgotten."""
        found = await self._endpoint.lookup(name)
        for key in [key for key, data in found.items() if data == _LEFT]:
            del found[key]
            self._known.pop(key, None)
        return found

    @property
    def period_s(self) -> float:
        """How long to wait between two announcements, or looks: longer in a larger run."""
        return _period_s(len(self._known))

    @property
    def _counts_for_s(self) -> float:
        """How long an announcement counts: some periods of whoever made it, who may know more by now than this node does."""
        known = max(len(self._known), min(round(self._size or 0), MAX_NEIGHBOURS))
        return max(timeouts.ANNOUNCED_S, _PERIODS_KNOWN * _period_s(known))

    @property
    def size(self) -> int:
        """How many peers the run has, this one among them: in a large run about, in a small one those who are known."""
        known = len(self.members()) + 1
        return known if self._bits == 0 or self._size is None else max(known, round(self._size))

    def members(self) -> list[PublicKey]:
        """Return the keys of the others that announced themselves lately."""
        now = self._clock.now_s()
        return [key for key, known in self._known.items() if known.forgotten_s > now]

    async def find(self) -> list[PublicKey]:
        """Look, and return the keys of the others."""
        await self.look()
        return self.members()

    def others(self) -> list[PlacedPeer]:
        """Return the others that announced themselves lately, with the cohort that they are of, and where they are."""
        known = [self._known[key].announcement for key in self.members()]
        return [PlacedPeer(each.key, each.cohort, each.position) for each in known]

    def position(self, key: PublicKey) -> Position:
        """Return what a peer announced of where it is; ``NOWHERE`` where it is not known."""
        known = self._known.get(key)
        return NOWHERE if known is None else known.announcement.position

    def announced_size(self, key: PublicKey) -> int:
        """Return the size that a peer announced; ``ALL`` where it is not known."""
        known = self._known.get(key)
        return ALL if known is None else known.announcement.size

    def distance_us(self, key: PublicKey) -> int:
        """Return the least bound that is known on the round trip to a peer, see ``protocol.affinity``; ``FAR`` where there is none."""
        known = self._known.get(key)
        if known is None or self._own is None:
            return FAR
        if key not in self._distances:
            self._distances[key] = distance_us(self._own, PlacedPeer(key, known.announcement.cohort, known.announcement.position))
        return self._distances[key]

    def at_meeting(self) -> list[PublicKey]:
        """Return the members that stand where the own cohort meets."""
        return [key for key in self.members() if self._known[key].is_cohort_peer]

    def some(self, count: int) -> list[PublicKey]:
        """Return at most so many members, drawn at random."""
        return self._drawn(self.members(), count)

    def mixed(self, count: int) -> list[PublicKey]:
        """Return at most so many members: half of them near ones, if there are any, then others; those it met and the nearest in front."""
        near = self.near()[: (count + 1) // 2]
        far = self.far(count - len(near))
        return near + far + [key for key in self.near() if key not in near][: count - len(near) - len(far)]

    def near(self) -> list[PublicKey]:
        """Return the near members, the nearest first, in random order as far as these are as near."""
        near = [key for key in self.members() if self.is_near(key)]
        return sorted(self._rng.sample(near, len(near)), key=self.distance_us)

    def far(self, count: int, *, without: Container[PublicKey] = ()) -> list[PublicKey]:
        """Return at most so many random members that are not near."""
        return self._drawn([key for key in self.members() if key not in without and not self.is_near(key)], count)

    def _drawn(self, keys: list[PublicKey], count: int) -> list[PublicKey]:
        """Return at most so many random ones of these, most of them such as were met, and those in front; of them the nearest first."""
        self._rng.shuffle(keys)
        pools = {is_met: [key for key in keys if self._known[key].is_met == is_met] for is_met in (True, False)}
        drawn: list[PublicKey] = []
        while len(drawn) < min(count, len(keys)):
            is_met = bool(pools[True]) and (not pools[False] or self._rng.random() < _MET)
            drawn.append(pools[is_met].pop())
        return sorted(drawn, key=lambda key: (not self._known[key].is_met, self.distance_us(key)))

    def is_near(self, key: PublicKey) -> bool:
        """Return whether a peer stands where the own cohort meets, and is of it as far as is known."""
        known = self._known.get(key)
        return known is not None and known.is_cohort_peer and (self._proven is None or key in self._proven.cohort_peers())

    def met(self, key: PublicKey) -> None:
        """Take note that a peer answered a call, or made one: it is there."""
        known = self._known.get(key)
        if known is not None and not known.is_met:
            self._known[key] = replace(known, is_met=True)

    def forget(self, key: PublicKey) -> None:
        """Do without a peer that cannot be reached until it announces itself again."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = _Known(known.announcement, self._clock.now_s())

    @property
    def _cohort(self) -> str | None:
        return None if self._own is None else self._own.cohort

    # Names. The hash of a key says its buckets, and whether it stands in the sample.

    def _name_of(self, bits: int, prefix: int) -> str:
        name = f"manta-{self._run.hex()}-members"
        return f"{name}-{bits}-{prefix:x}" if bits else name

    def _bucket(self, bits: int) -> str:
        return self._name_of(bits, _first_bits(self._endpoint.key, bits))

    def _meeting(self, cohort: str) -> str:
        return f"manta-{self._run.hex()}-cohort-{sha256(self._secret + cohort.encode()).hex()}"

    def _own_levels(self) -> list[int]:
        """Return the bits of the buckets to stand in: all for others who see the run a little smaller, then fewer and fewer in each."""
        depth = _depth_of(self._endpoint.key)
        return [bits for bits in range(self._bits, -1, -1) if self._bits - bits <= max(1, depth)]

    # The run's size.

    def _judge(self, size: float) -> None:
        """Take it that the run has about so many, and so how many bits a bucket has."""
        self._size = size
        while self._bits < _MAX_BITS and size / 2**self._bits > SPLIT:
            self._bits += 1
        while self._bits > 0 and size / 2 ** (self._bits - 1) < JOIN:
            self._bits -= 1

    def _judge_by_sample(self, found: Mapping[PublicKey, bytes]) -> None:
        """See from those who stand under the name without bits how large the run is.

        Where buckets have b bits, they have a depth of b or more, half of them just b; and they are one of 2^b.
        """
        depths = sorted(_depth_of(key) for key in found)
        depth = depths[len(depths) // 4] if depths else 0
        self._judge(sum(each >= depth for each in depths) * 2.0**depth)

    # Who is known.

    def _make_room(self) -> None:
        """Forget for good who is forgotten since long; where many are known, also some of the others, so that newcomers come to be known.

        Not before the DHT has forgotten it as well, if there is room: else the old announcement of who is away would bring it back.
        """
        now, is_full = self._clock.now_s(), len(self._known) >= MAX_NEIGHBOURS
        after_s = 0.0 if is_full else _PERIODS_PUBLISHED * self.period_s
        self._known = {key: known for key, known in self._known.items() if known.forgotten_s + after_s > now}
        close = [key for key in self._known if self._is_close(key) and not self._is_cohort_peer(key)]
        if len(self._known) >= MAX_NEIGHBOURS:
            far = sorted((key for key in self.far(MAX_NEIGHBOURS) if key not in close), key=lambda key: self._known[key].is_met)
            for key in far[: MAX_NEIGHBOURS // _CHANGED]:
                del self._known[key]
        if self._num_cohort_peers + len(close) >= MAX_NEAR:  # there may be more of them, with whom there is room
            for key in self._rng.sample(close, min(len(close), MAX_NEAR // _CHANGED)):
                del self._known[key]

    def _take_all(self, found: Mapping[PublicKey, bytes], *, of_cohort: bool = False) -> None:
        self._distances.clear()
        self._left_to_open = _OPENED
        keys = list(found)
        self._rng.shuffle(keys)
        for key in keys:
            with contextlib.suppress(RemoteFault):  # counted; the others' announcements are as good as before
                self._take(key, found[key], of_cohort)

    def _take(self, key: PublicKey, data: bytes, of_cohort: bool) -> None:
        """Take an announcement that is listed under ``key``, if it is news and there is room.

        Raises:
            EncodingError: it is none of this run's, or not that key's, or none of the own cohort's where it stands.
        """
        known = self._known.get(key)
        if key == self._endpoint.key or (known is None and not self._has_room(key, of_cohort) and not self._may_open()):
            return
        try:
            is_known = known is not None and known.data == data  # as most are: a look finds what the one before found
            announcement = known.announcement if known is not None and is_known else _opened(data)
            if (announcement.key, announcement.run) != (key, self._run):
                raise EncodingError("an announcement in another's name, or for another run")
            if of_cohort and announcement.cohort != self._cohort:
                raise EncodingError("an announcement of another cohort")
        except RemoteFault:
            self.malformed += 1
            raise
        if known is None and not self._has_room(key, of_cohort) and not self._has_room_near(announcement):
            return
        is_cohort_peer = announcement.cohort == self._cohort and (of_cohort or (known is not None and known.is_cohort_peer))
        if known is not None and known.announcement.sequence >= announcement.sequence:
            self._known[key] = replace(known, is_cohort_peer=is_cohort_peer)
            return
        if known is None and len(self._known) >= MAX_NEIGHBOURS:
            others = [each for each in self._known if not self._is_cohort_peer(each)]
            del self._known[self._rng.choice([each for each in others if not self._is_close(each)] or others)]
        is_met = known is not None and known.is_met
        self._known[key] = _Known(announcement, self._clock.now_s() + self._counts_for_s, is_met, is_cohort_peer, data)
        self._distances.pop(key, None)

    def _has_room(self, key: PublicKey, of_cohort: bool) -> bool:
        """Return whether one more may be known: near ones always, up to their number; of the own bucket, who stay, half of the others."""
        if len(self._known) >= MAX_NEIGHBOURS and not of_cohort:
            return False
        if of_cohort:
            return self._num_cohort_peers < min(MAX_NEAR, MAX_NEIGHBOURS)
        own = _first_bits(self._endpoint.key, self._bits)
        if self._bits == 0 or _first_bits(key, self._bits) != own:
            return True
        cohort_peers = self._num_cohort_peers
        beside = sum(not known.is_cohort_peer and _first_bits(each, self._bits) == own for each, known in self._known.items())
        return beside < (MAX_NEIGHBOURS - cohort_peers) // 2

    # Where affinity makes the cohorts: who may come to be a cohort peer.

    def _may_open(self) -> bool:
        """Return whether to see if somebody for whom there is no room is near; a look sees that of some."""
        is_grouped = self._own is not None and self._own.position.is_grouped == 1
        self._left_to_open -= is_grouped
        return is_grouped and self._left_to_open >= 0

    def _has_room_near(self, announcement: Announcement) -> bool:
        """Return whether this is somebody near, and one more may be known: with the cohort peers as many as these may be."""
        assert self._own is not None
        there = PlacedPeer(announcement.key, announcement.cohort, announcement.position)
        if not announcement.position.is_grouped or distance_us(self._own, there) > STAY_US:
            return False
        return sum(self._is_cohort_peer(each) or self._is_close(each) for each in self._known) < min(MAX_NEAR, MAX_NEIGHBOURS)

    def _is_close(self, key: PublicKey) -> bool:
        """Return whether affinity may make a cohort peer of a peer that is known."""
        is_grouped = self._own is not None and self._own.position.is_grouped and self._known[key].announcement.position.is_grouped
        return bool(is_grouped) and self.distance_us(key) <= STAY_US

    def _is_cohort_peer(self, key: PublicKey) -> bool:
        return self._known[key].is_cohort_peer

    @property
    def _num_cohort_peers(self) -> int:
        return sum(known.is_cohort_peer for known in self._known.values())


def _period_s(known: int) -> float:
    shortest_s, longest_s = timeouts.ANNOUNCE_S
    return min(max(shortest_s, known * _S_A_NEIGHBOUR), longest_s)


@lru_cache(maxsize=_OPENED)  # of those for whom there is no room the next look finds most again
def _opened(data: bytes) -> Announcement:
    return unpack(Announcement, data, max_bytes=MAX_ANNOUNCEMENT_BYTES)


@lru_cache(maxsize=4096)
def _hash_of(key: bytes) -> int:
    return int.from_bytes(sha256(key), "big")


def _first_bits(key: bytes, bits: int) -> int:
    """Return the first so many bits of a key's hash: which of 2^bits buckets is its own."""
    return _hash_of(key) >> (256 - bits)


def _depth_of(key: bytes) -> int:
    """Return how many zero bits a key's hash ends with, at most ``_MAX_BITS``."""
    number = _hash_of(key) | 1 << _MAX_BITS
    return (number & -number).bit_length() - 1
