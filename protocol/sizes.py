"""A cohort's size, in model-parallel: how large the architectures are that it trains. It is said by the end of the cohort's name.

The name is in each claim, so whoever has the log knows which architecture a contribution is of. A size is its
peers' own choice: credit pays for what the architecture costs, and the microbatches can be computed again whatever the size.
"""

import re

NUM_SIZES = 4
ALL = NUM_SIZES  # architectures of every cost: a name that says nothing
_SIZED = re.compile(r".+\.size-([1-3])")
_MAX_NAME = 63  # characters, see ``protocol.fields.check_name``
_MAX_BARE = _MAX_NAME - len(".size-1")


def is_size(size: int) -> bool:
    """Return whether there is such a size: 1, the least, to ``ALL``."""
    return 1 <= size <= NUM_SIZES


def sized_name(name: str, size: int) -> str:
    """Return what a cohort of this name goes by in claims and rosters where it has this size; a long name loses its end by it.

    Raises:
        ValueError: there is no such size.
    """
    if not is_size(size):
        raise ValueError(f"a size is 1 to {NUM_SIZES}, not {size}")
    return name if size == ALL else f"{name[:_MAX_BARE]}.size-{size}"


def size_of(name: str) -> int:
    """Return the size that a cohort's name says."""
    sized = _SIZED.fullmatch(name)
    return ALL if sized is None else int(sized[1])
