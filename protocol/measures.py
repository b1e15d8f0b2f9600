"""How good a peer finds the model on its own held-out images: its signed word, which travels to the log's operator and is never logged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from manta_swarm.protocol.fields import MAX_ROUND, check_digest
from manta_swarm.protocol.signed import Signing

MAX_MEASURE_BYTES = 256
MAX_SIGNED_BYTES = 384
MAX_SAMPLES = 2**32


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
class BlobDistribution:
    """The least, the median and the best of the peers' shares of right images, from 0 to 1; each peer counts alike."""

    least: float
    median: float
    best: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> "BlobDistribution":
        """Return the spread of at least one share; the median of an even number is the mean of the two in the middle."""
        ordered, middle = sorted(shares), len(shares) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return cls(ordered[0], median, ordered[-1])
