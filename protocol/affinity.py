"""Which peers of a run are near each other, and so which cohorts they make where the manifest lets affinity decide. Pure decisions.

A peer announces its *position*: a digest that those on its host share, the tag of a peer of its local network, and how long a call of some
nodes takes there and back: of *landmarks*, which many measure, and of whom it found near. The distance of two peers is the best bound on
the round trip between them that follows from both positions, so who has the same announcements finds the same distances and cohorts.

Nothing here is known to be true: a position is its peer's word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isqrt

from manta_swarm.protocol.signing import sha256

MAX_GROUP = 8  # members of a cohort that comes of itself; a founder receives all their vectors
MAX_DISTANCES = 16  # that a position names
HOST_BYTES, TAG_BYTES = 16, 8
SAME_HOST, SAME_SITE = 0, 1  # distances that nothing was measured for: every other one is as long as the shortest step at least
NUM_STEPS = 24
STEPS_US = tuple(isqrt(1_000_000 << step) for step in range(NUM_STEPS))  # 1 ms, 1.41 ms, 2 ms, ...: the longest round trip of each step
FAR = 2**40  # nothing is known

JOIN_US, STAY_US = STEPS_US[6], STEPS_US[8]  # 8 ms and 16 ms: who comes to a cohort is that near to all in it, and no farther stays there
_MERGED = MAX_GROUP * 3 // 4  # two cohorts become one of at most so many, so that the next one to come has room
_MARGIN = (1189, 1000)  # a quarter of a power of 2: beyond its step a round trip may be so much without being of another one

_NOT_NEAR = 3
_Part = list[int]


def tag_of(key: bytes) -> bytes:
    """Return what a node is called in positions (8 bytes)."""
    return sha256(key)[:TAG_BYTES]


def step_of(round_trip_us: int, before: int | None = None) -> int | None:
    """Return the step of a measured round trip: the first whose longest is not less; None: it is longer than all of them.

    Noise is not to change it: it is still of the step ``before`` if it is hardly longer. It only makes round trips longer, so a shorter one
    is believed.
    """
    if before is not None and 0 <= before < NUM_STEPS:
        longest = STEPS_US[before] * _MARGIN[0] // _MARGIN[1]
        shortest = STEPS_US[before - 1] if before else 0
        if shortest < round_trip_us <= longest:
            return before
    return next((step for step, longest in enumerate(STEPS_US) if round_trip_us <= longest), None)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a peer is, as it announces it: no address, and no name of a machine."""

    is_grouped: int  # 1: its cohort comes of affinity; 0: it has a label, or is alone
    host: bytes  # a digest that all peers of the run on its host have in common, 16 bytes; empty: it does not say
    site: bytes  # the tag of a peer on its local network, itself perhaps, the same one for all there; empty: nobody else was met there
    distances: tuple[tuple[bytes, int], ...]  # tag of a node -> step of the round trip, in the order of the tags

    def __post_init__(self) -> None:
        if self.is_grouped not in (0, 1) or len(self.host) not in (0, HOST_BYTES) or len(self.site) not in (0, TAG_BYTES):
            raise ValueError("a position with a host or a site that is none")
        tags = [tag for tag, _ in self.distances]
        if len(tags) > MAX_DISTANCES or tags != sorted(set(tags)):
            raise ValueError(f"a position has at most {MAX_DISTANCES} distances, in the order of the tags")
        if any(len(tag) != TAG_BYTES or not 0 <= step < NUM_STEPS for tag, step in self.distances):
            raise ValueError("a distance out of range")


NOWHERE = Position(0, b"", b"", ())  # of who says nothing


@dataclass(frozen=True, slots=True)
class PlacedPeer:
    """A peer as it announced itself."""

    key: bytes
    cohort: str
    position: Position


def distance_us(one: PlacedPeer, other: PlacedPeer) -> int:
    """Return the least bound on the round trip between two peers, in microseconds; ``SAME_HOST``, ``SAME_SITE`` or ``FAR``.

    By way of a landmark it is the sum of both ways there: whoever is 1 ms from it is at most 3 ms from who is 2 ms from it.
    """
    return _bound_us(one, other, _ways(one), _ways(other))


def _bound_us(one: PlacedPeer, other: PlacedPeer, ways: dict[bytes, int], back: dict[bytes, int]) -> int:
    if one.key == other.key or (one.position.host and one.position.host == other.position.host):
        return SAME_HOST
    if one.position.site and one.position.site == other.position.site:
        return SAME_SITE
    return min((ways[tag] + back[tag] for tag in ways.keys() & back.keys()), default=FAR)


def _ways(peer: PlacedPeer) -> dict[bytes, int]:
    """Return the longest round trip to each node that a peer names, and to itself."""
    return {tag: STEPS_US[step] for tag, step in peer.position.distances} | {tag_of(peer.key): 0}


def first_name(key: bytes) -> str:
    """Return the name of the cohort of a peer that knows nobody yet."""
    return _name(key, 0)


def _name(key: bytes, number: int) -> str:
    return f"near-{sha256(key + bytes([number]) if number else key).hex()[:12]}"


def cohorts(peers: Iterable[PlacedPeer]) -> dict[bytes, str]:
    """Return the cohort's name of each peer, by key.

    It follows from what was announced alone, in whatever order that comes. A cohort has at most ``MAX_GROUP`` members, each near to all
    others. It goes on under its name, whoever comes or goes: its members stay as long as they are near, unless they are nearer to those of
    another one (on the same host, or else on the same local network). Whoever is alone joins those that it is nearest to; where these are
    full, or not all near to it, it takes one of three or more along who is no farther from it than from them.

    Args:
        peers: those whose positions say that they are grouped; each key once.
    """
    return _Grouping(peers).names()


def cohort_peers_of(own: PlacedPeer, peers: Iterable[PlacedPeer]) -> frozenset[bytes]:
    """Return the keys of those who are in a cohort with ``own``: they announced the same name, and are not too far apart or too many.

    Nobody else's announcement counts, and all of a name stand where it meets and know each other: so they agree, whomever else each knows.
    """
    return _Grouping([own, *(peer for peer in peers if peer.cohort == own.cohort and peer.key != own.key)]).together_with(own.key)


class _Grouping:
    """Peers by their place in the order of their tags; a part is the places of a cohort's members.

    Tiers are 0 on one host, 1 on one local network, 2 near by the round trip, ``_NOT_NEAR``.
    """

    def __init__(self, peers: Iterable[PlacedPeer]) -> None:
        self._peers = sorted(peers, key=lambda peer: (tag_of(peer.key), peer.key))
        found = _distances(self._peers)
        self._joins = [[_tier(distance, JOIN_US) for distance in row] for row in found]
        self._stays = [[_tier(distance, STAY_US) for distance in row] for row in found]
        self._named: list[tuple[_Part, str | None]] = []

    def names(self) -> dict[bytes, str]:
        """Return the cohorts' names by key."""
        self._split()
        for _ in range(4 * len(self._peers)):  # each change is for the better; this bounds it all the same
            if not (self._merge() or self._move() or self._take_along()):
                break
        used = {peer.cohort for peer in self._peers}
        names: dict[bytes, str] = {}
        for part, name in sorted(self._named, key=lambda each: min(each[0])):
            if name is None:
                key = self._peers[min(part)].key
                name = next(each for number in range(256) if (each := _name(key, number)) not in used)
                used.add(name)
            names |= {self._peers[place].key: name for place in part}
        return names

    def together_with(self, key: bytes) -> frozenset[bytes]:
        """Return the others of a peer's cohort as it was announced."""
        self._split()
        part = next(part for part, _ in self._named if any(self._peers[place].key == key for place in part))
        return frozenset(self._peers[place].key for place in part) - {key}

    def _split(self) -> None:
        """Begin with the cohorts that were announced, each without those who are not near to its others any more."""
        announced: dict[str, _Part] = {}
        for place, peer in enumerate(self._peers):
            announced.setdefault(peer.cohort, []).append(place)
        for name, part in sorted(announced.items()):
            parts: list[_Part] = []
            for place in sorted(part, key=lambda place: (-sum(self._stays[place][other] < _NOT_NEAR for other in part), place)):
                fitting = (each for each in parts if len(each) < MAX_GROUP and _farthest(self._stays, [place], each) < _NOT_NEAR)
                each = next(fitting, None)
                if each is None:
                    parts.append([place])
                else:
                    each.append(place)
            heir = max(parts, key=len)
            self._named += [(each, name if each is heir else None) for each in parts]

    def _merge(self) -> bool:
        """Make one cohort of the two that are nearest to each other."""
        best: tuple[tuple[int, ...], int, int] | None = None
        for second in range(len(self._named)):
            for first in range(second):
                one, other = self._named[first][0], self._named[second][0]
                if self._joins[one[0]][other[0]] == _NOT_NEAR:  # as almost all pairs of a large run
                    continue
                size = len(one) + len(other)
                if size > (MAX_GROUP if min(len(one), len(other)) == 1 else _MERGED):
                    continue
                tier = _farthest(self._joins, one, other)
                rank = (tier, -size, *sorted((min(one), min(other))))
                if tier < _NOT_NEAR and (best is None or rank < best[0]):
                    best = rank, first, second
        if best is None:
            return False
        heir, joined = sorted((self._named.pop(best[2]), self._named.pop(best[1])), key=_rank_of_heir)
        self._named.append((heir[0] + joined[0], heir[1] if heir[1] is not None else joined[1]))
        return True

    def _move(self) -> bool:
        """Let somebody go to a cohort with room whose members are all nearer than its own ones."""
        for place in range(len(self._peers)):
            own = self._part_of(place)
            others = [other for other in own if other != place]
            if not others:
                continue
            ranked = [
                (tier, -len(part), min(part))
                for part, _ in self._named
                if part is not own and len(part) < MAX_GROUP and (tier := _farthest(self._joins, [place], part)) < _NOT_NEAR
            ]
            if ranked and min(ranked)[0] < _farthest(self._stays, [place], others):
                own.remove(place)
                self._part_of(min(ranked)[2]).append(place)
                return True
        return False

    def _take_along(self) -> bool:
        """Let somebody who is alone take one member of a cohort of three or more along, who is no farther from it than from the others."""
        for (place,) in [part for part, _ in self._named if len(part) == 1]:
            ranked = []
            for part, _ in self._named:
                for other in part if len(part) > 2 else ():
                    rest = [each for each in part if each != other]
                    tier, before = self._joins[place][other], _farthest(self._stays, [other], rest)
                    if tier < _NOT_NEAR and tier <= before:
                        ranked.append((tier, -before, -len(part), -other))
            if ranked:
                taken = -min(ranked)[3]
                self._part_of(taken).remove(taken)
                self._part_of(place).append(taken)
                return True
        return False

    def _part_of(self, place: int) -> _Part:
        return next(part for part, _ in self._named if place in part)


def _distances(peers: Sequence[PlacedPeer]) -> list[list[int]]:
    ways = [_ways(peer) for peer in peers]
    found = [[SAME_HOST] * len(peers) for _ in peers]
    for place, one in enumerate(peers):
        for before in range(place):
            found[place][before] = found[before][place] = _bound_us(one, peers[before], ways[place], ways[before])
    return found


def _tier(distance: int, limit_us: int) -> int:
    if distance <= SAME_SITE:
        return distance
    return 2 if distance <= limit_us else _NOT_NEAR


def _farthest(tiers: Sequence[Sequence[int]], one: _Part, other: _Part) -> int:
    return max(tiers[place][other_place] for place in one for other_place in other)


def _rank_of_heir(named: tuple[_Part, str | None]) -> tuple[int, bool, int]:
    """Of two cohorts that become one the larger's name stays, or whichever has one."""
    part, name = named
    return -len(part), name is None, min(part)
