"""Which architecture a microbatch has, which samples, and the seed of its augmentation: pure functions of run, base, step, peer and index.

Anyone can so tell what a microbatch had to be. It follows from the digest of the commit that it is trained on, so nobody works ahead.
Nothing here knows the data.
"""

from collections.abc import Iterable, Iterator
from itertools import count as count_from

from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.records import ClaimStep
from manta_swarm.protocol.signing import sha256

_WORD_BITS = 64


def place_of_microbatch(count: int, base: bytes, key: bytes, index: int) -> int:
    """Return which of a round's ``count`` architectures microbatch ``index`` of a peer trains: in turn, from a place of its own.

    The place follows from the base's digest and the key, so where a round ends in mid-sweep, the swarm favours none of them.
    """
    return (base[0] + key[0] + index) % count


def work_of(count: int, base: bytes, key: bytes, steps: Iterable[ClaimStep]) -> tuple[int, ...]:
    """Return how many microbatches of each of a round's ``count`` architectures the indices of a claim's steps are.

    Indices may be any numbers: nothing here takes as long as they are large.
    """
    work = [0] * count
    for step in steps:
        microbatches = (step.last - step.first) // step.every + 1
        for number in range(min(microbatches, count)):  # what comes ``count`` microbatches later is of the same architecture
            work[place_of_microbatch(count, base, key, step.first + number * step.every)] += (microbatches - number - 1) // count + 1
        for index in step.skipped:
            work[place_of_microbatch(count, base, key, index)] -= 1
    return tuple(work)


def microbatch_seed(seed: int, base: bytes, step: int, key: bytes, index: int) -> int:
    """Return the seed of a microbatch's augmentation: uniform, 0 <= it < 2^64."""
    return int.from_bytes(sha256(encode(("microbatch seed", seed, base, step, key, index)))[:8], "big")


def sample_indices(seed: int, base: bytes, step: int, key: bytes, index: int, dataset_size: int, count: int) -> tuple[int, ...]:
    """Return the ``count`` samples of a microbatch, each 0 <= it < ``dataset_size``, drawn uniformly without replacement.

    A microbatch larger than the data set starts over whenever it has had all of them.

    Raises:
        ValueError: an empty data set, or a negative count.
    """
    if dataset_size < 1 or count < 0:
        raise ValueError(f"{count} samples of {dataset_size} cannot be drawn")
    words = _words(encode(("microbatch samples", seed, base, step, key, index)))
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += _draw(words, dataset_size, min(count - len(drawn), dataset_size))
    return tuple(drawn)


def held_shards(seed: int, key: bytes, train_shards: int, count: int) -> tuple[int, ...]:
    """Return which ``count`` of a set's shards to train with a peer holds that has no room for all: the same ones for ever.

    They are the first of an order that is the key's own, so one more is one beside those of before, and many peers together hold all.
    In ascending order: a microbatch's samples are then drawn from those of these shards, one after the other.

    Raises:
        ValueError: none, or more than there are.
    """
    if not 1 <= count <= train_shards:
        raise ValueError(f"{count} of {train_shards} shards cannot be held")
    return tuple(sorted(shards_in_order(seed, key, train_shards)[:count]))


def shards_in_order(seed: int, key: bytes, train_shards: int) -> list[int]:
    """Return the shards to train with in the order in which a key holds them: a shuffle of range(``train_shards``)."""
    return _draw(_words(encode(("held shards", seed, key))), train_shards, train_shards)


def _draw(words: Iterator[int], size: int, count: int) -> list[int]:
    """Return the first ``count`` of a Fisher-Yates shuffle of range(size); ``moved`` holds the places that differ from range(size)."""
    moved: dict[int, int] = {}
    drawn = []
    for place in range(count):
        other = place + _below(words, size - place)
        drawn.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return drawn


def _below(words: Iterator[int], bound: int) -> int:
    """Return a number below ``bound``, every one equally likely: words in the last, incomplete multiple of it are skipped."""
    limit = 2**_WORD_BITS - 2**_WORD_BITS % bound
    return next(word for word in words if word < limit) % bound


def _words(label: bytes) -> Iterator[int]:
    """Yield 64-bit words for ever: of SHA-256(SHA-256(label) || counter), four a digest."""
    start = sha256(label)
    for counter in count_from():
        digest = sha256(start + counter.to_bytes(8, "big"))
        for offset in range(0, len(digest), _WORD_BITS // 8):
            yield int.from_bytes(digest[offset : offset + _WORD_BITS // 8], "big")
