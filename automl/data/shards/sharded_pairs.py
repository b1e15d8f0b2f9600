"""Stereo pairs in shards: each read when it is asked for, and those asked for last kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.shards.part import Part
from manta_swarm.automl.data.shards.reading import Shards
from manta_swarm.automl.data.views import Pair, StereoDataset
from manta_swarm.protocol.signing import Digest


@dataclass(frozen=True)
class ShardedPairs(StereoDataset):
    """A stereo set whose digest is the root over its shards."""

    shards: Shards = field(kw_only=True, repr=False)
    part: Part | None = field(default=None, kw_only=True, repr=False)  # that ``train`` has the pairs of; None: of all

    @cached_property
    def digest(self) -> Digest:
        """See automl.data.shards.layout."""
        return self.shards.list.digest

    def with_part(self, numbers: Sequence[int]) -> "ShardedPairs":
        """Return the set as it is where only some shards to train with are here; see ``Part``."""
        part = Part(self.shards.list, numbers)
        train = LazyPairs(lambda index: _pair_at(self.shards, part.places([index])[0]), part.num_train)
        return replace(self, train=train, part=part)

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield views of training pairs of the whole set, see ``StereoDataset``."""
        whole = self if self.part is None else sharded_pairs(self.name, self.shards)
        return super(ShardedPairs, whole).calibration_batches(resolution, batch, limit)


def sharded_pairs(name: str, shards: Shards) -> ShardedPairs:
    """Return the pairs in ``shards``; see there for what is damaged or missing."""
    first = shards.list.num_train
    train = LazyPairs(lambda place: _pair_at(shards, place), first)
    held_out = LazyPairs(lambda place: _pair_at(shards, first + place), shards.list.num_held_out)
    return ShardedPairs(name, train, held_out, shards=shards)


def _pair_at(shards: Shards, place: int) -> Pair:
    found = shards.sample(place)
    assert isinstance(found, Pair)
    return found
