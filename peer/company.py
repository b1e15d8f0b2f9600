"""Which cohort a peer is of, and why: the one that its person named, that of its person's peers on this host, or whoever is near.

Where affinity decides, the answer may change from look to look. Work on a base keeps the one it began with: the name is in its claim.
"""

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from protocol.affinity import FAR, SAME_HOST, SAME_SITE, STAY_US, STEPS_US, Placed, Position, cohorts, first_name
from protocol.cohorts import Group
from protocol.signing import PublicKey, peer_name
from swarm.distances import Distances
from swarm.neighbours import Neighbours

_SHOWN = 3  # landmarks


class Choice(Enum):
    """What decides a peer's cohort."""

    LABEL = "label"  # --cohort NAME
    HOST = "host"  # nothing else: the peers of one person on one host
    ALONE = "alone"  # --alone
    NOISE = "noise"  # --private-noise: mates would get what has no noise yet
    GATEWAY = "gateway"  # --gateway: it founds the contributions of its light contributors, and of nobody else
    AFFINITY = "affinity"

    @property
    def is_alone(self) -> bool:
        """Whether there are no mates, whoever is near."""
        return self in _WHY_ALONE


_WHY_ALONE = {
    Choice.ALONE: "alone, as --alone says",
    Choice.NOISE: "alone: it adds noise to what it hands in (--private-noise), and mates would get what has none yet",
    Choice.GATEWAY: "alone with its light contributors: a gateway (--gateway) takes no place in a cohort of peers",
}


class Company:
    """The cohort of one peer from round to round."""

    def __init__(self, key: PublicKey, choice: Choice, label: str, neighbours: Neighbours, distances: Distances, operator: bytes) -> None:
        """Begin alone where affinity decides; else ``label`` names the cohort, for good."""
        self._key = key
        self._choice = choice
        self._neighbours = neighbours
        self._distances = distances
        self._operator = operator
        is_open = choice is Choice.AFFINITY
        self.group = Group(first_name(key), frozenset()) if is_open else Group(label, frozenset() if choice.is_alone else None)

    @property
    def name(self) -> str:
        """The cohort's name at present."""
        return self.group.name

    def position(self) -> Position:
        """Return what is to be announced of where this peer is."""
        mates = self.group.members or () if self._choice is Choice.AFFINITY else ()
        return self._distances.position(is_grouped=self._choice is Choice.AFFINITY, mates=mates)

    async def measure(self) -> None:
        """Measure how far others are; to be called before each announcement.

        Raises:
            Unreachable: see ``Distances.measure``.
        """
        members = self.group.members
        await self._distances.measure(self._neighbours.near() if members is None else members)

    def regroup(self) -> bool:
        """Find the cohort that follows from what is announced by now; return whether it has another name.

        To be called after each look, and announced at once: others would go by the name of before.
        """
        if self._choice is not Choice.AFFINITY:
            return False
        own = Placed(self._key, self.name, self.position())  # as it stands now; others hear of it at the next announcement
        names = cohorts([own, *(each for each in self._neighbours.others() if each.position.is_grouped)])
        before, name = self.name, names[self._key]
        members = frozenset(PublicKey(key) for key in names if names[key] == name and key != self._key)
        self.group = Group(name, members)
        return name != before

    # In words.

    def why(self, mates: Sequence[PublicKey]) -> str:
        """Return why this peer is where it is; ``mates`` are those who proved that they are of its cohort."""
        if self._choice is Choice.LABEL:
            return f"label given: --cohort {self.name}; {_counted(len(mates), 'mate')} with its token"
        if self._choice.is_alone:
            return _WHY_ALONE[self._choice]
        if self._choice is Choice.HOST:
            return f"{_counted(len(mates), 'other peer')} of the same user on this host" if mates else f"alone: {self._nobody()}"
        members = self.group.members or frozenset()
        return self._near(sorted(members)) if members else f"alone: {self._nobody()}"

    def suggestion(self) -> str:
        """Return who is near and might be a mate if the persons trust each other; nothing where nobody is, or affinity decides anyway."""
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
                who = "the aggregator" if key == self._operator else peer_name(key)[-8:]
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
            return "no other peer of this user on this host; strangers are no mates in this run"
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
