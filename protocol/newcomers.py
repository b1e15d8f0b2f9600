"""When an operator that begins with an empty folder takes part: its key may have promised, accepted, signed and kept before. Pure.

A disk may be lost, and nobody can tell that from one that never was there. So whoever gets the run from others, when its log has entries,
is a *newcomer*: it follows the log, and promises, accepts, signs and keeps nothing, nor takes a turn, before what its old self did can't
matter any more. It asks each of the others once where that one stands; then

- what its old self accepted or signed begins at most where the longest of the logs that it heard of ends, with the batch accepted after it:
  once its own log is longer all of that is decided;
- what its old self kept was for a round at most ``LATER`` after the newest that it had, which another had nearly: once its own log has
  that round nothing of it can be lost;
- whoever its old self promised to listen to had remembered that ballot before it asked: it listens to none older than the greatest it
  heard of.

The others' word is believed: where one of them lies while another's disk is lost, that one may fork the log. A newcomer has nothing to
say to another one: two whose disks are lost at once stay out for good.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from manta_swarm.protocol.ballots import NOBODY, Ballot
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.manifest import MAX_OPERATORS
from manta_swarm.protocol.merkle import MAX_SIZE

LATER = 3  # rounds after the newest of its log for which an operator keeps contributions at most
_BEHIND = 1  # a round that the old self had in its log, and another one has accepted only


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where an operator stands, as it tells a newcomer."""

    promised: Ballot
    size: int  # of its log, with the batch that it accepted after it
    round: int  # the newest of its log

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MAX_SIZE or not 0 <= self.round <= MAX_ROUND:
            raise ValueError("no position of an operator")


@dataclass(frozen=True, slots=True)
class Heard:
    """A standing, and whose."""

    key: bytes
    position: LogPosition


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What a newcomer has heard, and may not forget either."""

    heard: tuple[Heard, ...] = ()

    def __post_init__(self) -> None:
        if len(self.heard) > MAX_OPERATORS:
            raise ValueError("more operators than a run has")

    def hearing(self, key: bytes, position: LogPosition) -> "Newcomer":
        """Return it with what the operator ``key`` said; the first word of each counts."""
        return self if key in self.keys else replace(self, heard=(*self.heard, Heard(key, position)))

    @property
    def keys(self) -> frozenset[bytes]:
        """Who was heard."""
        return frozenset(each.key for each in self.heard)

    @property
    def size(self) -> int:
        """A log that is longer has all that the old self may have signed or accepted, or something else in its place."""
        return max((each.position.size for each in self.heard), default=0)

    @property
    def round(self) -> int:
        """With this round the log has all that the old self kept and that has an inclusion promise."""
        return max((each.position.round for each in self.heard), default=0) + _BEHIND + LATER

    @property
    def promised(self) -> Ballot:
        """The old self promised to listen to none later."""
        return max((each.position.promised for each in self.heard), default=NOBODY)

    def is_over(self, others: Collection[bytes], size: int, round: int) -> bool:
        """Return whether an operator takes part from now on, who listens to no ballot older than ``promised``.

        Args:
            others: the keys of all the run's other operators.
            size: of its log.
            round: the newest of its log.
        """
        return self.keys.issuperset(others) and size > self.size and round >= self.round
