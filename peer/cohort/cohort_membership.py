"""Which cohort a peer is of, and why: the one that its person named, that of its person's peers on this host, or whoever is near.

Where affinity decides, a peer's cohort may change from look to look. Work on a base keeps the cohort that it began with, whose name is in
its claim. In model-parallel that name also says the cohort's size: the least of those that its members announce, so that its architectures
suit them all.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from manta_swarm.network.distances import Distances
from manta_swarm.network.lan import Networks
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.protocol.affinity import (
    FAR,
    SAME_HOST,
    SAME_SITE,
    STAY_US,
    STEPS_US,
    PlacedPeer,
    Position,
    cohort_peers_of,
    cohorts,
    first_name,
)
from manta_swarm.protocol.cohorts import AFFINITY, ALL, NUM_SIZES, OwnCohort, sized_name
from manta_swarm.protocol.signing import PublicKey, peer_name

_SHOWN = 3  # landmarks


class Choice(Enum):
    """What decides which cohort a peer is in."""

    LABEL = "label"  # --cohort NAME
    HOST = "host"  # nothing else: the peers of one person on one host
    ALONE = "alone"  # --alone
    NOISE = "noise"  # --private-noise: cohort peers would get what has no noise yet
    GATEWAY = "gateway"  # --gateway: it founds the contributions of its light contributors, and of nobody else
    AFFINITY = "affinity"
    AUDITOR = "auditor"  # --audit-only: it trains nothing

    @property
    def is_alone(self) -> bool:
        """Whether there are no cohort peers, whoever is near."""
        return self in _WHY_ALONE


_WHY_ALONE = {
    Choice.ALONE: "alone, as --alone says",
    Choice.NOISE: "alone: it adds noise to what it hands in (--private-noise), and cohort peers would get what has none yet",
    Choice.AUDITOR: "alone: it audits, and trains nothing (--audit-only)",
    Choice.GATEWAY: "alone with its light contributors: a gateway (--gateway) takes no place in a cohort of peers",
}


@dataclass(frozen=True, slots=True)
class FirstCohort:
    """The cohort that a peer begins in: what decides it, its name, and the token of its members."""

    choice: Choice
    label: str  # the cohort's name, where that decides
    token: bytes | None = None  # what its members prove to each other (32 bytes); None: this peer is alone

    @property
    def proven_name(self) -> str:
        """The name that the cohort's members prove to each other."""
        return AFFINITY if self.choice is Choice.AFFINITY else self.label


class CohortMembership:
    """The cohort of one peer from round to round."""

    def __init__(
        self,
        key: PublicKey,
        first_cohort: FirstCohort,
        neighbours: Neighbours,
        distances: Distances,
        operators: Collection[bytes],
        sizing: Sizing | None = None,
    ) -> None:
        """Begin alone where affinity decides; else the label names the cohort, for good. Without ``sizing`` it has no size."""
        self._key = key
        self._choice = choice = first_cohort.choice
        self._neighbours = neighbours
        self._distances = distances
        self._operators = operators
        self._sizing = sizing
        self.name = first_name(key) if choice is Choice.AFFINITY else first_cohort.label  # the cohort's at present, without its size
        self._members: frozenset[PublicKey] | None = None if choice in (Choice.LABEL, Choice.HOST) else frozenset()
        self._slowest: PublicKey | None = None  # a cohort peer of a lesser size than this peer's own
        self._seen_size: int | None = None  # the cohort's, at the newest look
        self._expected: frozenset[bytes] = frozenset()  # who is to be of this peer's cohort, as far as it can tell

    @property
    def own_cohort(self) -> OwnCohort:
        """The cohort at present: what work that begins now goes by."""
        return OwnCohort(sized_name(self.name, self.size), self._members)

    @property
    def own_size(self) -> int:
        """What is to be announced of this peer's own device."""
        return ALL if self._sizing is None else self._sizing.size

    @property
    def size(self) -> int:
        """The cohort's size: as all its members saw it at their newest look, so not before that; who is alone need not wait."""
        return self.own_size if self._seen_size is None or self._choice.is_alone else self._seen_size

    @property
    def expected(self) -> list[PublicKey]:
        """The peers that are to be of the cohort as far as this peer can tell, and have not said that they are."""
        return [PublicKey(key) for key in sorted(self._expected - (self._members or frozenset()))]

    def position(self) -> Position:
        """Return what is to be announced of where this peer is."""
        cohort_peers = self._members or () if self._choice is Choice.AFFINITY else ()
        return self._distances.position(is_grouped=self._choice is Choice.AFFINITY, cohort_peers=cohort_peers)

    async def measure(self, networks: Networks) -> None:
        """Measure how far others are, on the networks that this host has an address in; to be called before each announcement.

        Raises:
            Unreachable: see ``Distances.measure``.
        """
        await self._distances.measure(self._cohort_peers(), networks)

    def _cohort_peers(self) -> Collection[PublicKey]:
        """Return the others of the cohort: where a token decides those who proved it."""
        return self._neighbours.near() if self._members is None else self._members

    def update(self) -> bool:
        """Find the cohort that follows from what is announced by now; return if its name, its size or who is to be in it changed.

        The name is for this peer alone to say, for others may know others: of its cohort are those who announced the name as well. To be
        called after each look, and announced at once: others would go by the name of before.
        """
        before = self.own_cohort.name, self._expected
        if self._choice is Choice.AFFINITY:
            self._find_cohort()
        if self._sizing is not None:
            self._find_size()
        return (self.own_cohort.name, self._expected) != before

    def _find_cohort(self) -> None:
        own = PlacedPeer(self._key, self.name, self.position())  # as it stands now; others hear of it at the next announcement
        others = [each for each in self._neighbours.others() if each.position.is_grouped]
        names = cohorts([own, *others])
        self.name = names[self._key]
        self._expected = frozenset(key for key in names if names[key] == self.name and key != self._key)
        self._members = frozenset(map(PublicKey, cohort_peers_of(replace(own, cohort=self.name), others)))

    def _find_size(self) -> None:
        """The least size that a member announces is the cohort's."""
        sizes = {key: self._neighbours.announced_size(key) for key in self._cohort_peers()}
        slowest = min(sizes, key=lambda key: (sizes[key], key), default=None)
        self._slowest = slowest if slowest is not None and sizes[slowest] < self.own_size else None
        self._seen_size = self.own_size if self._slowest is None else sizes[self._slowest]

    # In words.

    def why(self, cohort_peers: Sequence[PublicKey]) -> str:
        """Return why this peer is in its cohort; ``cohort_peers`` are those who proved that they are of it."""
        if self._choice is Choice.LABEL:
            return f"label given: --cohort {self.name}; {_counted(len(cohort_peers), 'cohort peer')} with its token"
        if self._choice.is_alone:
            return _WHY_ALONE[self._choice]
        if self._choice is Choice.HOST:
            return (
                f"{_counted(len(cohort_peers), 'other peer')} of the same user on this host" if cohort_peers else f"alone: {self._nobody()}"
            )
        members = self._members or frozenset()
        if not members and self._expected:
            return f"alone: {_counted(len(self._expected), 'other')} near enough, and not in this cohort yet"
        return self._near(sorted(members)) if members else f"alone: {self._nobody()}"

    def why_size(self) -> str:
        """Return the cohort's size and why it has that one; nothing in runs where cohorts have none."""
        if self._sizing is None:
            return ""
        if self._slowest is not None and not self._choice.is_alone:
            return f"{self.size} of {NUM_SIZES}: its slowest device is that of {peer_name(self._slowest)[-8:]}"
        is_slowest = self.size < ALL and bool(self._cohort_peers())
        return f"{self.size} of {NUM_SIZES}: {'its slowest device is this one, ' if is_slowest else ''}{self._sizing.why}"

    def suggestion(self) -> str:
        """Return who is near and might be a cohort peer if the persons trust each other; nobody where affinity decides anyway."""
        if self._choice is Choice.AFFINITY:
            return ""
        others = [key for key in self._neighbours.members() if not self._neighbours.is_near(key)]
        near = [key for key in others if self._neighbours.distance_us(key) <= STAY_US]
        return self._near(near) if near else ""

    def round_trips(self) -> str:
        """Return how far the landmarks are."""
        found = []
        for key in self._distances.landmarks[: _SHOWN + 1]:
            step = self._distances.step(key)
            if step is not None:
                who = "the aggregator" if key in self._operators else peer_name(key)[-8:]
                found.append(f"{_milliseconds(STEPS_US[step])} from {who}")
        return ", ".join(found)

    def _near(self, keys: Sequence[PublicKey]) -> str:
        found = Counter(min(self._neighbours.distance_us(key), SAME_SITE + 1) for key in keys)
        words = []
        if found[SAME_HOST]:
            words.append(f"same host as {_counted(found[SAME_HOST], 'other')}")
        if found[SAME_SITE]:
            words.append(f"same local network as {_counted(found[SAME_SITE], 'other')}")
        if far := [distance for key in keys if SAME_SITE < (distance := self._neighbours.distance_us(key)) < FAR]:
            words.append(f"at most {_milliseconds(max(far))} from {_counted(len(far), 'other')}")
        return ", ".join(words) or f"beside {_counted(len(keys), 'other')}"

    def _nobody(self) -> str:
        """Return why nobody is near."""
        if self._choice is Choice.HOST:
            return "no other peer of this user on this host; strangers are no cohort peers in this run"
        others = [placed for placed in self._neighbours.others() if placed.position.is_grouped]
        if not others:
            return "nobody else is in the run whose cohort affinity decides"
        nearest = min(self._neighbours.distance_us(PublicKey(placed.key)) for placed in others)
        known = f"the nearest is up to {_milliseconds(nearest)} away" if nearest < FAR else "no distance is known yet"
        return f"nobody is near enough; {known}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _milliseconds(microseconds: int) -> str:
    return f"{microseconds / 1000:.0f} ms" if microseconds >= 10_000 else f"{microseconds / 1000:.1f} ms"
