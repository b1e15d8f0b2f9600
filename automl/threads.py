"""How the threads of a computation wait for each other: asleep, so that a core on which other programs work is not waited for at work.

Threads share out each operation, some thousand a second, and meet at its end. OpenMP has those that are first spin there for some
milliseconds. On cores that nobody else wants that is the fastest; where one of them does not have its core, all others burn theirs.
No torch here: it has to be said before OpenMP is loaded.
"""

import os

_POLICY = "OMP_WAIT_POLICY"
_CHOSEN = (_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def wait_asleep() -> None:
    """Let threads that wait sleep, here and in the processes that are started from here; whoever has chosen otherwise has that.

    To be called before torch is imported.
    """
    if not any(name in os.environ for name in _CHOSEN):
        os.environ[_POLICY] = "PASSIVE"
