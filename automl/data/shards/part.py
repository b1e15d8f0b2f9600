"""A set in shards of which only some of those to train with are here: lots are then drawn from their samples alone.

Held-out samples, and those that statistics are made with, are those of the whole set.
"""

from collections.abc import Sequence

import numpy as np

from manta_swarm.automl.data.shards.layout import ShardList


class Part:
    """Some of a set's shards to train with."""

    def __init__(self, list_: ShardList, numbers: Sequence[int]) -> None:
        """Take these, in ascending order: the samples of one after those of the other.

        Raises:
            ValueError: none, or others than there are.
        """
        if not numbers or list(numbers) != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < list_.num_train_shards:
            raise ValueError(f"{len(numbers)} shards that are no part of {list_.num_train_shards} to train with")
        ends = np.cumsum([shard.samples for shard in list_.shards])
        counts = np.array([list_.shards[number].samples for number in numbers])
        self.numbers = tuple(numbers)
        self._ends = np.cumsum(counts)
        self._offsets = ends[list(numbers)] - self._ends  # from a sample's number in the part to its place in the set

    @property
    def num_train(self) -> int:
        """Samples of all these shards."""
        return int(self._ends[-1])

    def places(self, indices: Sequence[int]) -> list[int]:
        """Return where samples of this part stand in the set."""
        wanted = np.array(indices, np.int64)
        found: list[int] = (wanted + self._offsets[np.searchsorted(self._ends, wanted, "right")]).tolist()
        return found
