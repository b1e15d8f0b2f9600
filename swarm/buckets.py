"""Where a key stands among the members of a run: the hash of a key says its buckets, and whether it is in the sample."""

from functools import lru_cache

from protocol.signing import sha256

MAX_BITS = 16


@lru_cache(maxsize=4096)
def _hash_of(key: bytes) -> int:
    return int.from_bytes(sha256(key), "big")


def first_bits(key: bytes, bits: int) -> int:
    """Return the first so many bits of a key's hash: which of 2^bits buckets is its own."""
    return _hash_of(key) >> (256 - bits)


def depth_of(key: bytes) -> int:
    """Return how many zero bits a key's hash ends with, at most ``MAX_BITS``."""
    number = _hash_of(key) | 1 << MAX_BITS
    return (number & -number).bit_length() - 1
