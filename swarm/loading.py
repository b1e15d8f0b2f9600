"""Ctrl-C while a program loads its libraries, which takes seconds: it just ends. No library is imported here."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_at_ctrl_c() -> Iterator[None]:
    """Let SIGINT end the process as the system does, without an exception; for imports only, when there is nothing to clean up yet.

    A KeyboardInterrupt in the middle of an import comes out as whatever the library makes of it (numpy: infinite recursion).
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # whoever started this program wants it ignored
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
