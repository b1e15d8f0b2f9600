"""Records of runs whose images stay with their peers: what the manifest says of them, and how good a peer finds the model on its own.

Nobody but their peer has such images, so nobody can compute its microbatches again: its credit can never be audited, and is capped.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from manta_swarm.protocol.fields import MAX_ROUND, check_digest
from manta_swarm.protocol.signed import Signing

SHARED, PRIVATE = "shared", "private"
DATA = (SHARED, PRIVATE)
NO_LEASES = "in this run data stay with their owners, and leases would hand them out: leave --gateway out"
MAX_CLASSES = 2048
MAX_CLASS_NAME = 64  # characters; a class's name is that of a folder
_SEPARATORS = frozenset('/\\:*?"<>|')  # of paths, and what some file systems refuse

MAX_MEASURE_BYTES = 256
MAX_SIGNED_BYTES = 384
MAX_SAMPLES = 2**32


@dataclass(frozen=True, slots=True)
class PrivateData:
    """What peers need to know to prepare images of their own for one run, and what these may earn them."""

    classes: tuple[str, ...]  # names of the classes' folders, in the order of the labels
    mirrored: int  # 1: a mirrored image is of the same class, and microbatches mirror them; else 0
    credit_percent: int  # of a round's pool that one key earns at most; rounded up

    def __post_init__(self) -> None:
        if not 2 <= len(self.classes) <= MAX_CLASSES:
            raise ValueError(f"private data have 2 to {MAX_CLASSES} classes, not {len(self.classes)}")
        for name in self.classes:
            check_class_name(name)
        if len({name.casefold() for name in self.classes}) != len(self.classes):
            raise ValueError("two classes have one name: some file systems tell no capitals from small letters")
        if self.mirrored not in (0, 1):
            raise ValueError("mirrored is 0 or 1")
        if not 1 <= self.credit_percent <= 100:
            raise ValueError("credit_percent is between 1 and 100")


def check_class_name(name: str) -> None:
    """Refuse what cannot be the name of a folder everywhere: 1-64 printable characters in Unicode's form C, no separators or dot in front.

    Raises:
        ValueError: the name is refused.
    """
    is_plain = 0 < len(name) <= MAX_CLASS_NAME and name.isprintable() and unicodedata.is_normalized("NFC", name)
    if not is_plain or name.startswith(".") or name != name.strip() or not _SEPARATORS.isdisjoint(name):
        raise ValueError(f"a class needs a name that a folder can have, not {name!r}")


@dataclass(frozen=True, slots=True)
class Measure:
    """How many of a peer's own held-out images the largest and the smallest subnet of a state get right."""

    signing: ClassVar[Signing] = Signing("measure", MAX_MEASURE_BYTES, by="key")

    run: bytes
    key: bytes
    round: int  # whose state was measured
    samples: int  # held-out images
    largest: int  # of them right
    smallest: int

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.key, "key")
        if not 0 <= self.round <= MAX_ROUND:
            raise ValueError("round out of range")
        if (
            not 1 <= self.samples <= MAX_SAMPLES
            or not 0 <= min(self.largest, self.smallest) <= max(self.largest, self.smallest) <= self.samples
        ):
            raise ValueError("more right than there are images, or none")


@dataclass(frozen=True, slots=True)
class AccuracySpread:
    """The least, the median and the best of the peers' shares of right images, from 0 to 1; each peer counts alike."""

    least: float
    median: float
    best: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> "AccuracySpread":
        """Return the spread of at least one share; the median of an even number is the mean of the two in the middle."""
        ordered, middle = sorted(shares), len(shares) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return cls(ordered[0], median, ordered[-1])
