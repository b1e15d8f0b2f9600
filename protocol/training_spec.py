"""What the rules need to know of a run's training, and no more: what a round asks for, and what it costs. ``automl`` has the real one."""

from typing import Protocol


class TrainingSpec(Protocol):
    """A run's training as its manifest fixes it: a pure function of its arguments, the same everywhere."""

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        """Return the MACs of each architecture that a round asks of a cohort, in the order that claims count them in."""
        ...

    def role(self, round: int, cohort: str) -> int:
        """Return which contributions of a round are like enough to be clipped by one threshold: those of the same number."""
        ...

    def sorts_after(self, round: int) -> bool:
        """Return whether the update that ends a round reorders the weights: gradients from before do not fit after it."""
        ...
