"""Stereo pairs in shards: each read when it is asked for, and those asked for last kept."""

from dataclasses import dataclass, field
from functools import cached_property

from automl.data.pairs import LazyPairs
from automl.data.shards.reading import Shards
from automl.data.views import Pair, StereoDataset
from protocol.signing import Digest


@dataclass(frozen=True)
class ShardedPairs(StereoDataset):
    """A stereo set whose digest is the root over its shards."""

    shards: Shards = field(kw_only=True, repr=False)

    @cached_property
    def digest(self) -> Digest:
        """See automl.data.shards.layout."""
        return self.shards.list.digest


def sharded_pairs(name: str, shards: Shards) -> ShardedPairs:
    """Return the pairs in ``shards``; see there for what is damaged or missing."""
    first = shards.list.num_train

    def pair_at(place: int) -> Pair:
        found = shards.sample(place)
        assert isinstance(found, Pair)
        return found

    train = LazyPairs(pair_at, first)
    held_out = LazyPairs(lambda place: pair_at(first + place), shards.list.num_held_out)
    return ShardedPairs(name, train, held_out, shards=shards)
