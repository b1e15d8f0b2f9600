"""What a program that trains settles with the C library and OpenMP: freed memory is kept, and threads that wait are asleep. No torch.

A microbatch takes and frees some hundred megabytes. glibc gives large blocks back to the system as soon as they are free and asks for them
again at the next microbatch, and the system clears each page before it hands it out: on a CPU a fifth of a microbatch of the base
classifier is spent on that. Elsewhere than with glibc nothing is changed. No I/O here.

Threads of a computation share out each operation, some thousand a second, and meet at its end. OpenMP has those that are first spin there
for some milliseconds. On cores that nobody else wants that is the fastest; where one of them does not have its core, all others burn
theirs. How they wait has to be said before OpenMP is loaded.
"""

import ctypes
import os
from functools import cache

# glibc's malloc.h: what ``mallopt`` changes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST = 2**31 - 1
_BLOCK_BYTES = (2**30, 32 * 2**20)  # below which a block is kept; the second is the most that glibc before 2.35 takes
_CHOSEN = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_")

_POLICY = "OMP_WAIT_POLICY"
_WAIT_CHOSEN = (_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def keep_freed_memory() -> bool:
    """Keep from now on what this process frees; return whether it does. To be called before there are threads.

    Whoever has set one of glibc's own variables has chosen already, and that holds. All threads share one arena then: the others have
    heaps of 64 MiB each, which go back to the system once they are empty, whatever is set.
    """
    if any(name in os.environ for name in _CHOSEN) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    glibc = _glibc()
    if glibc is None or not any(glibc.mallopt(_MMAP_THRESHOLD, size_bytes) for size_bytes in _BLOCK_BYTES):
        return False
    return bool(glibc.mallopt(_TRIM_THRESHOLD, _LARGEST) and glibc.mallopt(_ARENA_MAX, 1))


def give_back_memory() -> None:
    """Give back to the system what is free: for a pause. It takes some hundredths of a second, in whatever thread."""
    glibc = _glibc()
    if glibc is not None:
        glibc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library; None: this program runs with another one."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # there is none to ask on Windows
        return None
    return library if hasattr(library, "gnu_get_libc_version") else None


def wait_asleep() -> None:
    """Let threads that wait sleep, here and in the processes that are started from here; whoever has chosen otherwise has that.

    To be called before torch is imported.
    """
    if not any(name in os.environ for name in _WAIT_CHOSEN):
        os.environ[_POLICY] = "PASSIVE"
