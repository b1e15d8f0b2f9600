"""What a round pays for serving bytes: on the word of those who took them, so bounded, and proof of nothing. Integers, pure.

A claim's *thanks* name up to ``MAX_THANKED`` keys from which its peer took verified bytes since its claim before, and how many. Nobody else
can see whether that is true: two keys of one person may thank each other for bytes that never went anywhere. So a round has a fixed part
of its pool for it (``Manifest.serving_pool``), and each key whose word counts has an equal part of that to say something of: who lies moves
that, and no more. In an audited run the word of proven keys counts, in an open one that of all: there keys are free.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from protocol.fields import check_digest, require

MAX_THANKED = 8  # keys that a claim names
MAX_SERVED_BYTES = 2**40  # by one key, of one claim

Thanks = tuple[tuple[bytes, int], ...]  # key -> verified bytes that were taken from it, sorted by key


def check_thanks(own: bytes, thanks: Thanks) -> None:
    """Refuse what may not stand in a claim of the key ``own``.

    Raises:
        ValueError: it may not.
    """
    keys = [key for key, _ in thanks]
    require(len(keys) <= MAX_THANKED and keys == sorted(set(keys)), f"a claim thanks at most {MAX_THANKED} keys, sorted, none twice")
    require(own not in keys, "a claim does not thank its own key")
    for key, served in thanks:
        check_digest(key, "a key that is thanked")
        require(1 <= served <= MAX_SERVED_BYTES, f"a key is thanked for 1 to {MAX_SERVED_BYTES} bytes")


def serving_shares(pool: int, thanks: Iterable[tuple[bytes, Thanks]], keys: Collection[bytes]) -> dict[bytes, int]:
    """Return key -> what a round pays it for serving bytes; who gets nothing is not in it.

    Each of those whose word counts has ``pool`` // their number, which goes to whom it thanks, in proportion to the bytes, rounded down.
    What is rounded off, the part of one that thanks nobody, and what would go to others than ``keys``, is paid to nobody.

    Args:
        pool: of the round, for serving.
        thanks: of each claim whose key's word counts: key and thanks.
        keys: of all claims of the round's table.
    """
    said = list(thanks)
    paid = Counter[bytes]()
    for _, one in said:
        total = sum(served for _, served in one)
        paid.update({key: pool // len(said) * served // total for key, served in one if key in keys})
    return {key: paid[key] for key in sorted(paid) if paid[key]}


def most_thanked(served: Iterable[tuple[bytes, int]]) -> Thanks:
    """Return what a claim says of what was taken from each key: those of most bytes, ties by key."""
    most = sorted(((key, min(count, MAX_SERVED_BYTES)) for key, count in served if count > 0), key=lambda one: (-one[1], one[0]))
    return tuple(sorted(most[:MAX_THANKED]))


def claims_of_bits(bits: int, count: int) -> Sequence[bool]:
    """Return for each of ``count`` claims whether its bit is set, that of the first one being the lowest.

    Raises:
        ValueError: there are more bits than claims.
    """
    require(0 <= bits < 2**count, "bits of more claims than there are")
    return [bool(bits >> place & 1) for place in range(count)]
