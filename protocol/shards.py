"""A data set in shards that travels through the swarm: what its manifest says of it. What shards are to the byte is automl's affair.

A shard, and the list of them all, travel in pieces under an RFC 9162 root, each piece checked by itself, so that anybody can give it.
"""

from dataclasses import dataclass

PIECE_BYTES = 1 << 20  # of all but the last
MAX_LIST_BYTES = 8 << 20
MAX_SHARDS = 7_000  # so that a list of so many, and of as many classes as there can be, is a record (protocol.encoding.MAX_ITEMS)
MAX_SHARD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TravellingShards:
    """What a peer needs to know of a set to get it from others, beside the set's digest. The operator answers for its licence."""

    list_root: bytes  # over the pieces of the list of the shards
    list_bytes: int
    size_bytes: int  # of all shards
    train_shards: int  # how many of them are of samples to train with: the first ones

    def __post_init__(self) -> None:
        if len(self.list_root) != 32:
            raise ValueError(f"list_root has {len(self.list_root)} bytes, not 32")
        if not 1 <= self.list_bytes <= MAX_LIST_BYTES:
            raise ValueError(f"a list of shards has 1 to {MAX_LIST_BYTES} bytes")
        if not 1 <= self.train_shards < MAX_SHARDS:
            raise ValueError(f"a set has 2 to {MAX_SHARDS} shards, of which one at least is held out")
        if not 1 <= self.size_bytes <= MAX_SHARDS * MAX_SHARD_BYTES:
            raise ValueError("size_bytes is of shards that cannot be")
