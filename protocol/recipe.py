"""How a run's microbatches and updates are made, where there is a choice: what the manifest fixes beside the optimizer.

Pure integers and names: what a percentage does to pixels, and which weights are matrices, is automl's affair.
"""

from dataclasses import dataclass

DECAYS = ("all", "matrices")
MAX_PERCENT = 200
ALL_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Recipe:
    """How strongly images are changed in training, by round and architecture, which weights decay, and when networks teach each other."""

    first_percent: int = 100  # of the usual strength of augmentation, in the first round
    last_percent: int = 100  # in the last one; in between it goes evenly from the one to the other
    smaller_percent: int = 100  # of a round's strength: what every architecture has but the largest
    decay: str = "matrices"  # one of DECAYS: all weights, or all but those of normalisations, biases and transforms of kernels
    taught_percent: int = 0  # of the rounds, the last ones, in which all learn from the largest network of the base's state, too

    def __post_init__(self) -> None:
        for percent in (self.first_percent, self.last_percent, self.smaller_percent):
            if not 0 <= percent <= MAX_PERCENT:
                raise ValueError(f"augmentation is of 0 to {MAX_PERCENT} percent")
        if self.decay not in DECAYS:
            raise ValueError(f"what decays is one of {', '.join(DECAYS)}")
        if not 0 <= self.taught_percent <= ALL_PERCENT:
            raise ValueError(f"microbatches are taught in 0 to {ALL_PERCENT} percent of the rounds")

    def strength(self, round: int, num_rounds: int, *, is_largest: bool) -> int:
        """Return the percentage of the usual augmentation that a microbatch of a round (1 to ``num_rounds``) has."""
        change = (self.last_percent - self.first_percent) * (round - 1) // max(num_rounds - 1, 1)
        percent = self.first_percent + change
        return percent if is_largest else percent * self.smaller_percent // 100


USUAL = Recipe()
